"""Metrics by OTLP: what each program sends to a real receiver, and that silence costs nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from gpufleet.telemetry import metrics
from gpufleet.telemetry.device_metrics import INSTRUMENTS
from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.gateway.stage import Stage, browser
from tests.metrics.receiver import Receiver, receiving, receiving_http

pytestmark = pytest.mark.slow

OF_EVERY_PROGRAM = {"process.cpu.time", "process.memory.usage", "process.uptime"}
OF_SCHEDULER = {
    "gpufleet.jobs",
    "gpufleet.nodes",
    "gpufleet.devices",
    "gpufleet.job.wait",
    "gpufleet.job.ends",
    "gpufleet.pass.duration",
    "gpufleet.commit.duration",
    "gpufleet.events",
    "gpufleet.events.waiting",
    "gpufleet.sessions",
    "gpufleet.workers",
    "gpufleet.seats",
    "gpufleet.store.failing",
    "gpufleet.file_store.failing",
}
OF_AGENT = {
    "hw.gpu.utilization",
    "hw.gpu.memory.usage",
    "hw.gpu.memory.limit",
    "hw.gpu.memory.utilization",
    "hw.status",
    "system.cpu.utilization",
    "system.memory.usage",
    "gpufleet.spool.free",
    "gpufleet.attempts",
}
OF_GATEWAY = {
    "gpufleet.people",
    "gpufleet.connected",
    "gpufleet.frames",
    "gpufleet.frames.io",
    "gpufleet.input.shown",
}
OF_WORKER = {
    "gpufleet.worker.sessions",
    "gpufleet.worker.seats",
    "gpufleet.worker.ready",
    "gpufleet.worker.frames",
    "gpufleet.worker.frames.io",
    "gpufleet.worker.step.duration",
    "gpufleet.worker.encode.duration",
}


def names(receiver: Receiver, service: str) -> set[str]:
    return {point.name for point in list(receiver.points) if point.service == f"gpufleet-{service}"}


async def test_every_program_tells_what_it_measures(tmp_path: Path) -> None:
    async with receiving() as receiver:
        variables = receiver.variables() | {"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=lab"}
        stage = Stage(tmp_path)
        stage.fleet.scheduler.environment.update(variables)
        try:
            await stage.fleet.scheduler.start()
            await stage.fleet.add_node(environment=variables)
            worker = stage.worker("told", variables=variables)
            gateway = stage.another_gateway("telling", variables=variables)
            await worker.is_served()
            async with stage.fleet.client() as person:
                await person.run("true")
            async with browser(stage, gateway=await gateway.address()) as ann:
                await ann.hello("told")
                await ann.text("turn")
                clicked = await ann.click(0.5, 0.5)
                while ann.newest < clicked:
                    await ann.frame()
                seated = {"model": "told", "state": "seated"}

                def is_seated() -> bool:
                    point = receiver.newest("gpufleet.sessions", **seated)
                    return point is not None and point.value == 1

                await until("her session is counted", is_seated)
                wanted = {"scheduler": OF_SCHEDULER, "agent": OF_AGENT, "gateway": OF_GATEWAY, "worker": OF_WORKER}
                for service, own in wanted.items():
                    missing = (own | OF_EVERY_PROGRAM).difference
                    await until(
                        f"{service} tells {missing(names(receiver, service))}",
                        lambda service=service, missing=missing: not missing(names(receiver, service)),
                    )
                await ann.say(type="leave")
                await ann.text("end")
        finally:
            await stage.end()
    device = receiver.newest("hw.gpu.memory.limit", **{"hw.id": "VIRTUAL-n1-1"})
    assert device is not None and (device.value, device.unit) == (16e9, "By")
    assert device.labels["hw.type"] == "gpu" and device.labels["gpufleet.device.index"] == 1
    assert device.resource["service.instance.id"] == "n1"
    assert device.resource["deployment.environment.name"] == "lab"
    wait = receiver.newest("gpufleet.job.wait", band="normal")
    assert wait is not None and (wait.value, wait.unit) == (1, "s")


async def test_metrics_arrive_over_http_when_the_program_ends(tmp_path: Path) -> None:
    async with receiving_http() as receiver:
        slow = {"OTEL_METRIC_EXPORT_INTERVAL": "3600000"}
        code = (
            "from gpufleet.telemetry import metrics; told = metrics.start('cli', instance='one'); "
            "told.counter('gpufleet.x', '{x}', 'X.').add(3, of='it'); told.close()"
        )
        variables = receiver.variables(http=True) | slow
        command = [sys.executable, "-P", "-c", code]
        await asyncio.to_thread(subprocess.run, command, env=variables, check=True, timeout=DEADLINE_SECONDS)
        point = receiver.newest("gpufleet.x", of="it")
        assert point is not None and point.value == 3


def test_without_variables_metrics_are_off_and_nothing_is_imported() -> None:
    code = """
import sys
from gpufleet.telemetry import metrics
off = metrics.start("scheduler", {})
assert off is metrics.OFF and not off.is_on
off.counter("x", "", "").add(3)
off.histogram("x", "s", "", metrics.SECONDS).record(3)
off.observe([], dict)
off.close()
assert not [name for name in sys.modules if name.startswith(("opentelemetry", "prometheus_client", "uvicorn"))]
"""
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=DEADLINE_SECONDS)


@pytest.mark.parametrize(
    "program",
    [
        "scheduler.program",
        "node_agent.agent",
        "node_agent.machine",
        "inference.worker",
        "gateway.metrics",
        "cli.submitting.tracing",
    ],
)
def test_no_program_brings_telemetry_along_before_somebody_asks(program: str) -> None:
    code = f"""
import sys
import gpufleet.{program}
found = [name for name in sys.modules if name.startswith(("opentelemetry", "prometheus_client", "requests"))]
assert not found, found
"""
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=DEADLINE_SECONDS)


@pytest.mark.parametrize(
    ("variables", "warning"),
    [
        ({"OTEL_METRICS_EXPORTER": "prometheus"}, "give scheduler and gateway --metrics-port instead"),
        ({"OTEL_METRICS_EXPORTER": "statsd"}, 'OTEL_METRICS_EXPORTER is "statsd"'),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "x", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/json"}, '"http/json"'),
    ],
)
def test_what_cannot_be_sent_is_a_warning(
    caplog: pytest.LogCaptureFixture, variables: dict[str, str], warning: str
) -> None:
    with caplog.at_level("WARNING"):
        assert metrics.start("agent", variables) is metrics.OFF
    assert warning in caplog.text


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4317"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_METRICS_EXPORTER": "none"}, False),
        ({"OTEL_METRICS_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_metrics_have_variables_of_their_own(variables: dict[str, str], wanted: bool) -> None:
    assert metrics.is_wanted(variables) is wanted


def test_names_and_units_are_those_of_the_conventions_where_these_have_one() -> None:
    from opentelemetry.semconv._incubating.metrics import hw_metrics

    known = {value: name for name, value in vars(hw_metrics).items() if name.startswith("HW_")}
    of_hardware = [each for each in INSTRUMENTS if each.name.startswith("hw.")]
    assert of_hardware and {each.name for each in of_hardware} <= set(known)
    source = Path(hw_metrics.__file__).read_text()
    for each in of_hardware:
        described = source.partition(f'{known[each.name]}: Final = "{each.name}"')[2].partition('"""\n\n')[0]
        assert f"Unit: {each.unit}\n" in described, each
