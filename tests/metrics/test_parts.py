"""The parts behind /metrics: what a page says of devices and leaves out, and every bound and refusal of the port."""

from __future__ import annotations

import asyncio
import gzip
import os
import socket
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gpufleet.v1 import node_pb2
from prometheus_client.parser import text_string_to_metric_families

from bench.big_fleet import big_fleet
from gpufleet.config.shared_settings import MetricsSettings, listening_conflicts
from gpufleet.errors import GpufleetError, Reason
from gpufleet.telemetry import metrics_door
from gpufleet.telemetry.metrics import Instrument, InstrumentKind, Readings, measuring, on_loop, prometheus_name
from gpufleet.telemetry.metrics_door import MetricsDoor
from scheduler.metrics.fleet import MODELS_MAX, OTHERS, bounded
from scheduler.metrics.page import Page
from scheduler.metrics.rendering import page
from scheduler.metrics.snapshot import DeviceSnapshot, Ordered
from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.metrics.scraping import scrape

ROOT = Path(__file__).resolve().parents[2]
FRESH = Ordered(own=b"", left_out=0, stale_s=11.0, is_packed=False)


def device(sample: node_pb2.DeviceSample | None, *, age_s: float = 1.0, name: str = "NVIDIA H200") -> DeviceSnapshot:
    told = b"" if sample is None else sample.SerializeToString()
    return DeviceSnapshot("n1", "host1", "GPU-1", 0, name, "00000000:01:00.0", told, age_s, 0.5)


def values(text: bytes) -> Mapping[str, list[float]]:
    found: dict[str, list[float]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.value)
    return found


def test_a_device_tells_what_it_can_measure_in_base_units() -> None:
    sample = node_pb2.DeviceSample(
        utilization_percent=97,
        memory_used_bytes=36,
        memory_total_bytes=144,
        power_mw=312_500,
        energy_mj=7_000,
        clock_sm_mhz=1_980,
        ecc_uncorrected_count=2,
        is_healthy=False,
        processes_are_known=True,
        throttle_reasons=["sw_power_cap"],
    )
    told = values(page([device(sample)], FRESH))
    assert told["hw_gpu_utilization_ratio"] == [0.97]
    assert told["hw_gpu_memory_utilization_ratio"] == [0.25]
    assert told["hw_power_watts"] == [312.5]
    assert told["hw_energy_joules_total"] == [7]
    assert told["gpufleet_device_clock_hertz"] == [1.98e9]
    assert told["hw_errors_total"] == [2]
    assert told["hw_status"] == [0, 1]
    assert told["gpufleet_device_throttled"] == [1]
    assert told["gpufleet_device_held_ratio"] == [0.5]
    assert "hw_temperature_celsius" not in told and "gpufleet_device_fan_ratio" not in told


def test_clocks_that_are_down_for_idleness_are_not_throttled() -> None:
    idle = node_pb2.DeviceSample(throttle_reasons=["gpu_idle"])
    assert values(page([device(idle)], FRESH))["gpufleet_device_throttled"] == [0]


@pytest.mark.parametrize(("age_s", "is_told"), [(11.0, True), (11.1, False)])
def test_an_old_sample_tells_its_age_alone(age_s: float, is_told: bool) -> None:
    told = values(page([device(node_pb2.DeviceSample(utilization_percent=3), age_s=age_s)], FRESH))
    assert ("hw_gpu_utilization_ratio" in told) is is_told
    assert told["gpufleet_device_sample_age_seconds"] == [age_s]


def test_a_device_without_telemetry_tells_what_is_held_of_it() -> None:
    told = values(page([device(None)], FRESH))
    assert told == {"gpufleet_device_held_ratio": [0.5], "gpufleet_devices_left_out": [0]}


def test_names_of_devices_may_hold_what_prometheus_has_to_escape() -> None:
    name = 'a "GPU" \\ of\ntwo lines'
    text = page([device(None, name=name)], FRESH).decode()
    (family, *_) = text_string_to_metric_families(text)
    assert family.samples[0].labels["modelName"] == name


def test_a_page_is_packed_and_says_what_it_left_out() -> None:
    ordered = Ordered(own=b"# HELP x X.\n# TYPE x gauge\nx 1.0\n", left_out=8, stale_s=11.0, is_packed=True)
    told = values(gzip.decompress(page([], ordered)))
    assert told == {"x": [1], "gpufleet_devices_left_out": [8]}


def test_models_beyond_the_bound_are_told_together() -> None:
    counts = Counter({(f"m{number}", "waiting"): number for number in range(MODELS_MAX + 50)})
    named = {f"m{number}" for number in range(50, MODELS_MAX + 50)}
    readings = list(bounded(counts, named))
    assert len(readings) == MODELS_MAX + 1
    assert [value for value, labels in readings if labels["model"] == OTHERS] == [sum(range(50))]


@pytest.mark.parametrize(
    ("name", "unit", "kind", "told"),
    [
        ("hw.gpu.utilization", "1", InstrumentKind.GAUGE, "hw_gpu_utilization_ratio"),
        ("hw.status", "1", InstrumentKind.SUM, "hw_status"),
        ("hw.energy", "J", InstrumentKind.COUNT, "hw_energy_joules_total"),
        ("gpufleet.jobs", "{job}", InstrumentKind.SUM, "gpufleet_jobs"),
    ],
)
def test_names_in_prometheus_follow_the_rules_of_opentelemetry(
    name: str, unit: str, kind: InstrumentKind, told: str
) -> None:
    assert prometheus_name(Instrument(name=name, unit=unit, doc="", kind=kind)) == told


def test_python_s_exporter_writes_the_same_names_but_for_ratios() -> None:
    written = measuring("test", None, is_scraped=True)
    some = [
        Instrument(name="hw.energy", unit="J", doc="E.", kind=InstrumentKind.COUNT),
        Instrument(name="hw.gpu.memory.usage", unit="By", doc="M.", kind=InstrumentKind.SUM),
        Instrument(name="hw.temperature", unit="Cel", doc="T."),
    ]
    written.observe(some, lambda: {each.name: [(1.0, {})] for each in some})
    assert {prometheus_name(each) for each in some} <= set(values(written.text()))
    written.close()


async def test_a_reading_that_fails_is_logged_and_the_rest_is_told(caplog: pytest.LogCaptureFixture) -> None:
    told = measuring("test", None, is_scraped=True)

    def fail() -> Readings:
        raise ValueError("no")

    told.observe([Instrument(name="gpufleet.broken", unit="", doc="B.")], fail)
    text = await asyncio.to_thread(told.text)
    assert b"gpufleet_broken" not in text and b"process_memory_usage_bytes" in text
    assert "metrics could not be read" in caplog.text
    told.close()


async def test_what_the_loop_alone_may_read_is_read_there() -> None:
    on = []

    async def read() -> Readings:
        on.append(threading.current_thread())
        return {"x": [(1.0, {})]}

    assert await asyncio.to_thread(on_loop(asyncio.get_running_loop(), read)) == {"x": [(1.0, {})]}
    assert on == [threading.main_thread()]


def test_a_loop_that_is_closed_answers_nothing() -> None:
    loop = asyncio.new_event_loop()
    loop.close()

    async def read() -> Readings:
        return {"x": []}

    assert on_loop(loop, read)() == {}


# --- the port


async def nobody_is_refused(token: str | None) -> None:
    return None


@asynccontextmanager
async def served(door: MetricsDoor) -> AsyncIterator[str]:
    serving = asyncio.create_task(door.serve())
    try:
        yield str(door.address)
    finally:
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving


async def test_more_readers_than_the_bound_are_told_to_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_door, "READERS_MAX", 2)
    go, reading = asyncio.Event(), 0

    async def page(is_packed: bool) -> bytes:
        nonlocal reading
        reading += 1
        await go.wait()
        return b"x 1\n"

    door = MetricsDoor(MetricsSettings(port=0), check=nobody_is_refused, page=page)
    async with served(door) as address:
        first = [asyncio.create_task(scrape(address, pack=False)) for _ in range(2)]
        await until("both are read", lambda: reading == 2)
        refused = await scrape(address)
        assert refused.status == 503 and refused.headers["retry-after"] == "5"
        go.set()
        assert [(await each).text for each in first] == ["x 1\n", "x 1\n"]


async def test_a_page_that_fails_is_an_answer_and_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def page(is_packed: bool) -> bytes:
        raise ValueError("no such thing")

    door = MetricsDoor(MetricsSettings(port=0), check=nobody_is_refused, page=page)
    async with served(door) as address:
        failed = await scrape(address)
    assert failed.status == 500 and "no such thing" not in failed.text
    assert "metrics could not be told" in caplog.text


async def test_a_port_that_is_taken_names_its_flag() -> None:
    async def page(is_packed: bool) -> bytes:
        return b""

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(GpufleetError) as refused:
            MetricsDoor(MetricsSettings(port=other.getsockname()[1]), check=nobody_is_refused, page=page)
    assert refused.value.reason is Reason.PORT_TAKEN and "--metrics-port" in refused.value.next_step


def test_without_prometheus_s_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.prometheus", None)
    with pytest.raises(GpufleetError) as refused:
        measuring("test", None, is_scraped=True)
    assert refused.value.reason is Reason.EXTRA_MISSING
    assert "pip install 'gpufleet[telemetry]'" in refused.value.next_step


@pytest.mark.parametrize(
    ("settings", "has_tls", "is_insecure", "conflicts"),
    [
        (MetricsSettings(), False, False, []),
        (MetricsSettings(host="0.0.0.0"), False, False, []),
        (MetricsSettings(port=9461), False, False, []),
        (MetricsSettings(port=9461, host="0.0.0.0"), False, False, ["metrics.host"]),
        (MetricsSettings(port=9461, host="0.0.0.0"), True, False, []),
        (MetricsSettings(port=9461, host="0.0.0.0"), False, True, []),
    ],
)
def test_beyond_this_machine_it_needs_a_certificate_or_the_word_insecure(
    settings: MetricsSettings, has_tls: bool, is_insecure: bool, conflicts: list[str]
) -> None:
    own = Path("own.pem") if has_tls else None
    found = listening_conflicts("127.0.0.1", own, own, settings, is_insecure=is_insecure)
    assert [key for key, _ in found] == conflicts


async def test_a_page_that_is_given_up_in_the_middle_ends_its_process_and_the_next_one_is_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Enough that the process still writes when nobody reads any more: far more than a pipe and a reader hold.
    fleet = big_fleet(200)
    engine: Any = SimpleNamespace(view=fleet.state, now=lambda: fleet.now)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'gen'}")  # a checkout's packages have other names
    pages = Page(engine, measuring("test", None, is_scraped=True))
    try:
        with monkeypatch.context() as small:
            small.setattr("scheduler.metrics.page.PAGE_BYTES_MAX", 1)
            async with asyncio.timeout(DEADLINE_SECONDS):
                with pytest.raises(GpufleetError, match=r"the page has .* bytes") as refused:
                    await pages.text(False)
        assert refused.value.reason is Reason.METRICS_UNAVAILABLE
        assert len(values(await pages.text(False))["gpufleet_device_held_ratio"]) == 1_600
    finally:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await pages.close()
