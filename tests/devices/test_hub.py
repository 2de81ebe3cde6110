"""Looking at the devices of a machine, and monitors that sum up what they do."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from gpufleet.devices.device import Device, DeviceProcess, DeviceSample, SourceStatus, Trouble, TroubleKind, Vendor
from gpufleet.devices.hub import Hub, Monitor
from gpufleet.devices.sampler import Sampler
from gpufleet.devices.tally import POINTS_MAX, DeviceTally, TreeReading
from gpufleet.devices.virtual import NoDevices

WAIT_SECONDS = 60.0
FAST_SECONDS = 0.05
GB = 10**9
SECOND_US = 10**6


class Driver:
    """Two devices whose next readings a test chooses; a device in `hanging` does not answer."""

    def __init__(self) -> None:
        self.samples = {
            uuid: DeviceSample(
                uuid=uuid,
                memory_total_bytes=80 * GB,
                memory_used_bytes=0,
                memory_free_bytes=80 * GB,
                utilization_percent=0,
                power_mw=100_000,
                energy_mj=0,
                processes=(),
            )
            for uuid in ("GPU-a", "GPU-b")
        }
        self.answers = threading.Event()
        self.answers.set()
        self.reads = 0

    def list(self) -> tuple[Device, ...]:
        return tuple(
            Device(uuid=uuid, index=index, name="GPU", memory_bytes=80 * GB, vendor=Vendor.NVIDIA)
            for index, uuid in enumerate(self.samples)
        )

    def read(self, device: Device) -> DeviceSample:
        if device.uuid == "GPU-b":
            self.answers.wait()
        self.reads += 1
        return self.samples[device.uuid]

    def set(self, uuid: str, **values: Any) -> None:
        self.samples[uuid] = replace(self.samples[uuid], **values)

    def clear_troubles(self, uuids: tuple[str, ...]) -> None: ...

    def status(self) -> SourceStatus:
        return SourceStatus(kind="test")

    def close(self) -> None: ...


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def environment() -> dict[str, str]:
    return {}


@pytest.fixture
def hub(driver: Driver, environment: dict[str, str]) -> Iterator[Hub]:
    hub = Hub(Sampler(driver), environment=environment, read_timeout_seconds=WAIT_SECONDS)
    yield hub
    driver.answers.set()
    hub.close()


class ReadAtOnce:
    """A source without threads: each look is a reading, made by who looks."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._tallies = {device.uuid: DeviceTally() for device in driver.list()}

    def list(self) -> tuple[Device, ...]:
        return self._driver.list()

    def sample(self) -> tuple[DeviceSample, ...]:
        return self.fresh(max_age_seconds=0, timeout_seconds=0)

    def fresh(
        self, *, max_age_seconds: float, timeout_seconds: float, uuids: tuple[str, ...] | None = None
    ) -> tuple[DeviceSample, ...]:
        samples = tuple(self._driver.read(device) for device in self.list() if uuids is None or device.uuid in uuids)
        for sample in samples:
            self._tallies[sample.uuid].take(sample)
        return samples

    def drain(self) -> dict[str, DeviceTally]:
        drained, self._tallies = self._tallies, {uuid: DeviceTally() for uuid in self._tallies}
        return drained

    def set_interval(self, seconds: float) -> None: ...

    def clear_troubles(self, uuids: tuple[str, ...]) -> None: ...

    def status(self) -> SourceStatus:
        return self._driver.status()

    def close(self) -> None: ...


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"no {what}"
        time.sleep(0.005)


def samples_of(monitor: Monitor, index: str) -> int:
    return int(monitor.statistics()["gpu_stats"][index].get("utilization", {}).get("samples", 0))


def test_a_look_shows_each_device_with_its_score(hub: Hub, driver: Driver) -> None:
    driver.set("GPU-b", memory_used_bytes=60 * GB, memory_free_bytes=20 * GB, utilization_percent=75)
    first, second = hub.look(max_age_seconds=0)
    assert (first.index, first.memory_free_mb, first.availability_score, first.power_draw_w) == (0, 80_000, 1.0, 100.0)
    assert second.availability_score == round(0.6 * 20 / 80 + 0.4 * 0.25, 4)
    assert first.is_healthy and first.as_dict()["processes"] == ()


def test_nothing_is_read_while_nobody_looks_and_a_look_takes_what_is_young_enough(hub: Hub, driver: Driver) -> None:
    hub.look(max_age_seconds=0)
    before = driver.reads
    hub.look(max_age_seconds=60)
    assert driver.reads == before
    hub.look(max_age_seconds=0)
    assert driver.reads == before + 2


def test_a_device_that_does_not_answer_hides_no_other_and_is_shown_as_unhealthy(driver: Driver) -> None:
    # The other device is read before the look and is young enough for it: the time in which the one that hangs is
    # waited for in vain decides nothing then, however short it is and however long a thread waits for its turn.
    now = 0.0
    sampler = Sampler(driver, clock=lambda: now)
    hub = Hub(sampler, environment={}, read_timeout_seconds=WAIT_SECONDS)
    try:
        hub.look(max_age_seconds=0)
        driver.answers.clear()
        driver.set("GPU-a", utilization_percent=50)
        now = 1000.0
        sampler.fresh(max_age_seconds=0, timeout_seconds=WAIT_SECONDS, uuids=("GPU-a",))
        first, second = hub.look(max_age_seconds=500, timeout_seconds=0.1)
        assert first.is_healthy and first.utilization_percent == 50
        assert not second.is_healthy and "did not answer within 0.1 s" in second.unhealthy_reason
        driver.answers.set()
        assert hub.look(max_age_seconds=0)[1].is_healthy
    finally:
        driver.answers.set()
        hub.close()


def test_processes_are_told_apart_into_our_own_and_those_of_others(hub: Hub, driver: Driver) -> None:
    driver.set("GPU-a", processes=(DeviceProcess(pid=os.getpid(), memory_bytes=GB), DeviceProcess(pid=1)))
    own, foreign = sorted(hub.look(max_age_seconds=0)[0].processes or (), key=lambda each: -each.pid)
    assert (own.is_own, own.is_foreign, own.memory_mb) == (True, False, 1000)
    assert (foreign.is_own, foreign.is_foreign, foreign.memory_mb) == (False, True, None)


def test_a_monitor_sums_up_from_its_start_to_its_stop(hub: Hub, driver: Driver) -> None:
    driver.set("GPU-a", energy_mj=5_000_000_000)  # used before: not ours
    with hub.start(interval_seconds=FAST_SECONDS) as monitor:
        wait_until(lambda: samples_of(monitor, "0") >= 1, "reading at rest")
        driver.set("GPU-a", utilization_percent=90, memory_used_bytes=40 * GB, energy_mj=5_003_600_000)
        rested = samples_of(monitor, "0")
        wait_until(lambda: samples_of(monitor, "0") > rested + 1, "reading under load")
    told = monitor.statistics()
    first = told["gpu_stats"]["0"]
    assert first["utilization"]["min"] == 0 and first["utilization"]["max"] == 90
    assert first["memory_used_mb"]["max"] == 40_000 and first["memory_usage_percent"]["max"] == 50
    assert first["energy_wh"] == 1.0 and told["energy_wh"] == 1.0
    assert first["power_draw_w"] == {"min": 100.0, "max": 100.0, "mean": 100.0}
    assert 0 < told["idle_share"] < 1
    assert told["gpu_seconds"] == pytest.approx(2 * told["monitoring_duration_seconds"], abs=0.01)
    assert len(first["series"]["seconds"]) == len(first["series"]["utilization_percent"]) > 1
    # It has ended: what is read later is not its own.
    driver.set("GPU-a", utilization_percent=10, energy_mj=9_000_000_000)
    hub.look(max_age_seconds=0)
    assert monitor.statistics() == told == monitor.stop()


def test_a_short_stretch_is_read_at_its_end_however_long_the_interval(hub: Hub, driver: Driver) -> None:
    with hub.start(interval_seconds=3600) as monitor:
        driver.set("GPU-a", utilization_percent=77)
    assert monitor.statistics()["gpu_stats"]["0"]["utilization"]["max"] == 77


def test_monitors_that_run_at_once_each_get_every_reading(hub: Hub) -> None:
    with hub.start(interval_seconds=FAST_SECONDS, devices=[0]) as outer:
        wait_until(lambda: samples_of(outer, "0") >= 3, "readings")
        before = samples_of(outer, "0")
        with hub.start(interval_seconds=FAST_SECONDS, devices=["GPU-a", "GPU-b"]) as inner:
            wait_until(lambda: samples_of(inner, "0") >= 3, "readings")
    assert samples_of(outer, "0") >= before + samples_of(inner, "0")
    assert list(outer.statistics()["gpu_stats"]) == ["0"]
    assert list(inner.statistics()["gpu_stats"]) == ["0", "1"]


@pytest.mark.parametrize(
    ("listed", "watched"),
    [("GPU-b", ["1"]), ("1,0", ["0", "1"]), ("", []), ("0,7,1", ["0"]), ("MIG-1", ["0", "1"])],
)
def test_a_monitor_watches_what_is_visible(
    hub: Hub, environment: dict[str, str], listed: str, watched: list[str]
) -> None:
    environment["CUDA_VISIBLE_DEVICES"] = listed
    with hub.start(interval_seconds=3600) as monitor:
        assert list(monitor.statistics()["gpu_stats"]) == watched


def test_a_device_in_trouble_adds_no_figures_and_ends_no_monitor(hub: Hub, driver: Driver) -> None:
    with hub.start(interval_seconds=FAST_SECONDS) as monitor:
        wait_until(lambda: samples_of(monitor, "0") >= 1, "a reading")
        gone = Trouble(kind=TroubleKind.VANISHED, detail="it fell off the bus")
        driver.samples["GPU-a"] = DeviceSample(uuid="GPU-a", troubles=(gone,))
        wait_until(lambda: not hub.look(max_age_seconds=0)[0].is_healthy, "trouble")
        count = samples_of(monitor, "0")
        other = samples_of(monitor, "1")
        wait_until(lambda: samples_of(monitor, "1") > other, "readings of the other device")
        assert samples_of(monitor, "0") == count


def test_processes_count_from_the_start_of_the_monitor(driver: Driver) -> None:
    readings = iter([TreeReading(cpu_seconds=100.0, memory_bytes=GB, read_bytes=50, write_bytes=7)])
    later = TreeReading(cpu_seconds=103.0, memory_bytes=3 * GB, read_bytes=80, write_bytes=7)
    hub = Hub(
        Sampler(driver),
        environment={},
        read_tree=lambda pid: next(readings, later),
        read_timeout_seconds=WAIT_SECONDS,
    )
    try:
        with hub.start(interval_seconds=3600, pid=42) as monitor:
            pass
        processes = monitor.statistics()["process_stats"]["0"]
        assert (processes["cpu_seconds"], processes["read_bytes"], processes["write_bytes"]) == (3.0, 30, 0)
        assert processes["memory_mb"] == {"min": 1000.0, "max": 3000.0, "mean": 2000.0}
    finally:
        hub.close()


def test_a_monitor_of_any_length_stays_small(driver: Driver) -> None:
    now_us = 0
    hub = Hub(ReadAtOnce(driver), environment={}, clock_us=lambda: now_us)
    try:
        monitor = hub.start(interval_seconds=3600)
        for count in range(5000):
            now_us += 3600 * SECOND_US
            driver.set("GPU-a", utilization_percent=count % 100)
            hub.look(max_age_seconds=0)
            monitor.message()  # collects
        told = monitor.stop()
        assert told["monitoring_duration_seconds"] == 5000 * 3600
        assert told["gpu_stats"]["0"]["utilization"]["samples"] >= 5000
        assert POINTS_MAX / 2 <= len(told["gpu_stats"]["0"]["series"]["seconds"]) <= POINTS_MAX
    finally:
        hub.close()


def test_a_clock_that_goes_back_makes_no_negative_span(driver: Driver) -> None:
    now_us = 100 * SECOND_US
    hub = Hub(ReadAtOnce(driver), environment={}, clock_us=lambda: now_us)
    try:
        monitor = hub.start(interval_seconds=3600)
        for now_us in (105 * SECOND_US, 40 * SECOND_US, 41 * SECOND_US):  # noqa: B007  # the clock that the hub reads
            hub.look(max_age_seconds=0)
            monitor.message()
        told = monitor.stop()
        assert told["monitoring_duration_seconds"] == 0.0 and told["gpu_seconds"] == 0.0
        seconds = told["gpu_stats"]["0"]["series"]["seconds"]
        assert seconds == sorted(seconds) and seconds[0] >= 0
    finally:
        hub.close()


def test_a_monitor_of_no_devices_counts_nothing_and_ends(environment: dict[str, str]) -> None:
    hub = Hub(NoDevices(SourceStatus(kind="none", note="no driver", next_step="install it")), environment=environment)
    shown = hub.look(max_age_seconds=0)
    assert (len(shown), shown.reason, shown.next_step) == (0, "no driver", "install it")
    with hub.start(interval_seconds=FAST_SECONDS, devices=[0], pid=os.getpid()) as monitor:
        wait_until(lambda: "process_stats" in monitor.statistics(), "reading of processes")
    told = monitor.statistics()
    assert told["gpu_stats"] == {} and told["sample_count"] >= 1 and "energy_wh" not in told
    hub.close()


def test_what_makes_no_sense_is_refused_with_what_would(hub: Hub) -> None:
    with pytest.raises(ValueError, match=r"interval_seconds: 0 is not 0.05 to 3,600 seconds"):
        hub.start(interval_seconds=0)
    with pytest.raises(ValueError, match="devices: there is no 2; there are 0, 1, or their UUIDs"):
        hub.start(devices=[0, 2])


def test_closing_ends_what_runs_and_every_thread(driver: Driver) -> None:
    hub = Hub(Sampler(driver), environment={}, read_timeout_seconds=WAIT_SECONDS)
    monitor = hub.start(interval_seconds=FAST_SECONDS)
    hub.close()
    assert not monitor.is_running
    ours = ("gpu-monitor", "device-0", "device-1")
    wait_until(lambda: not [each for each in threading.enumerate() if each.name in ours], "end of the threads")
