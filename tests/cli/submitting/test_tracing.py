"""Traces of gpuctl: without OTEL_ variables they cost no import, and a collector that is away costs a line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cli.fake_scheduler import FakeScheduler

RUN_S_MAX = 60.0
OF_OTHERS = [name for name in os.environ if name.startswith(("OTEL_", "TRACEPARENT"))]

CODE = """
import sys
from gpufleet.cli.__main__ import run
code = run(["submit", "--", "true"])
print([name for name in sys.modules if name.startswith("opentelemetry")], file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in OF_OTHERS:
        monkeypatch.delenv(name)
    yield


def submit(fake: FakeScheduler, **variables: str) -> subprocess.CompletedProcess[str]:
    """A submit in a process of its own."""
    environment = {**os.environ, "GPUCTL_SCHEDULER": fake.address, **variables}
    command = [sys.executable, "-P", "-c", CODE]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=RUN_S_MAX, check=False)


def test_without_variables_a_submit_imports_nothing_of_opentelemetry(fake: FakeScheduler) -> None:
    done = submit(fake)
    assert done.returncode == 0 and done.stdout.strip().isdecimal()
    assert done.stderr == "[]\n"


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_collector_that_is_away_costs_a_line_and_no_job(fake: FakeScheduler, protocol: str) -> None:
    away = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    done = submit(fake, **away)
    assert done.returncode == 0 and done.stdout.strip().isdecimal()
    told, modules = done.stderr.splitlines()
    assert told.startswith("gpuctl: the trace may not have arrived: ") and "opentelemetry" in modules


def test_what_the_variables_ask_for_and_nobody_knows_is_a_line(fake: FakeScheduler) -> None:
    done = submit(fake, OTEL_TRACES_EXPORTER="zipkin")
    assert done.returncode == 0
    assert 'OTEL_TRACES_EXPORTER is "zipkin"; otlp, console and none are known' in done.stderr.splitlines()[0]


def test_the_submit_carries_the_trace_that_the_command_began(fake: FakeScheduler) -> None:
    done = submit(fake, OTEL_TRACES_EXPORTER="console")
    (request,) = fake.asked("Submit")
    context = request.specs[0].trace_context
    assert context.endswith(("-01", "-03"))
    assert '"name": "gpuctl submit"' in done.stderr and f'"0x{context[3:35]}"' in done.stderr
