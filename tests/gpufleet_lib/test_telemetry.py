"""Telemetry: off it costs nothing, on it hands whole traces to a collector; trace contexts pass in either case."""

from __future__ import annotations

import logging
import subprocess
import sys
from concurrent import futures
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from gpufleet.telemetry import traceparent
from gpufleet.telemetry.spans import OFF, is_wanted, recording, start

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4317"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_SDK_DISABLED": "TRUE"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
    ],
)
def test_only_otel_variables_turn_it_on(variables: dict[str, str], wanted: bool) -> None:
    assert is_wanted(variables) is wanted
    if not wanted:
        assert start("scheduler", variables) is OFF


def test_off_it_imports_nothing_and_passes_the_parent_on() -> None:
    code = f"""
import sys
from gpufleet.telemetry import spans
off = spans.start("cli", {{}})
with off.span("submit", parent={PARENT!r}, job=1) as span:
    span.set(node="n1")
    assert span.traceparent == {PARENT!r}
assert off.record("wait", begin_ns=1, end_ns=2, parent={PARENT!r}) == {PARENT!r}
off.close()
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=60)


def test_steps_in_different_programs_are_one_trace_with_the_right_parents() -> None:
    scheduler, agent = InMemorySpanExporter(), InMemorySpanExporter()
    first, second = recording("scheduler", scheduler), recording("agent", agent)
    with first.span("submit", parent=PARENT, job=41) as submit:
        with first.span("commit", parent=submit.traceparent) as commit:
            commit.set(records=3)
        waited = first.record("queued", begin_ns=10, end_ns=25, parent=submit.traceparent)
    with second.span("launch", parent=waited) as launch:
        for_the_job = launch.traceparent
    first.close()
    second.close()

    spans = {span.name: span for span in [*scheduler.get_finished_spans(), *agent.get_finished_spans()]}
    assert {f"{span.context.trace_id:032x}" for span in spans.values()} == {PARENT[3:35]}
    parents = {name: f"{span.parent.span_id:016x}" for name, span in spans.items() if span.parent}
    assert parents == {
        "submit": PARENT[36:52],
        "commit": submit.traceparent[36:52],
        "queued": submit.traceparent[36:52],
        "launch": waited[36:52],
    }
    assert spans["queued"].end_time == 25 and spans["queued"].start_time == 10
    assert dict(spans["commit"].attributes or {}) == {"records": 3}
    assert for_the_job[36:52] == f"{spans['launch'].context.span_id:016x}"
    assert spans["launch"].resource.attributes["service.name"] == "gpufleet-agent"


def test_without_a_parent_a_step_begins_a_trace_even_inside_another_step() -> None:
    exporter = InMemorySpanExporter()
    telemetry = recording("scheduler", exporter)
    with telemetry.span("job 1") as one, telemetry.span("job 2", parent="not a context") as two:
        assert traceparent.trace_id_of(one.traceparent) != traceparent.trace_id_of(two.traceparent)
    telemetry.close()
    assert [span.parent for span in exporter.get_finished_spans()] == [None, None]


def test_a_step_that_fails_is_recorded_as_failed() -> None:
    exporter = InMemorySpanExporter()
    telemetry = recording("scheduler", exporter)
    with pytest.raises(ValueError, match="boom"), telemetry.span("commit"):
        raise ValueError("boom")
    telemetry.close()
    (span,) = exporter.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps the names of the spans that it gets, by service."""

    def __init__(self) -> None:
        self.got: dict[str, list[str]] = {}

    def Export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_spans:
            names = {each.key: each.value.string_value for each in resource.resource.attributes}
            spans = [span.name for scope in resource.scope_spans for span in scope.spans]
            self.got.setdefault(names["service.name"], []).extend(spans)
        return trace_service_pb2.ExportTraceServiceResponse()


def test_a_collector_gets_the_spans_that_otel_variables_send_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = Collector()
    add_servicer: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    with futures.ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        add_servicer(collector, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        telemetry = start("scheduler")
        assert telemetry.is_on
        with telemetry.span("submit"):
            pass
        telemetry.close()
        monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
        telemetry = start("scheduler")
        telemetry.record("commit", begin_ns=1, end_ns=2)
        telemetry.close()
        server.stop(None).wait()
    assert collector.got == {"gpufleet-scheduler": ["submit"], "ours": ["commit"]}


@pytest.mark.parametrize(
    ("variables", "warning"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, 'OTEL_TRACES_EXPORTER is "zipkin"'),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "x", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, 'protocol is "http/json"'),
    ],
)
def test_what_cannot_be_sent_is_a_warning_and_the_program_goes_on(
    caplog: pytest.LogCaptureFixture, variables: dict[str, str], warning: str
) -> None:
    with caplog.at_level(logging.WARNING):
        assert start("scheduler", variables) is OFF
    assert warning in caplog.text


def test_a_missing_exporter_is_a_warning_that_says_what_to_install() -> None:
    code = """
import sys
sys.modules["opentelemetry.exporter.otlp.proto.grpc.trace_exporter"] = None  # as if it were not installed
from gpufleet.telemetry.spans import OFF, start
assert start("scheduler", {"OTEL_TRACES_EXPORTER": "otlp"}) is OFF
"""
    run = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert "pip install 'gpufleet[telemetry]'" in run.stderr


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        PARENT.upper(),
        f"{PARENT}-x",
        "ff" + PARENT[2:],
        PARENT.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32),
    ],
)
def test_what_is_no_trace_context_is_dropped(text: str) -> None:
    assert not traceparent.is_traceparent(text)
    assert traceparent.from_metadata([("traceparent", text)]) == ""
    assert traceparent.inherited_traceparent({"TRACEPARENT": text}) == ""
    assert traceparent.trace_id_of(text) == ""


def test_a_trace_context_goes_through_metadata_and_environment() -> None:
    assert traceparent.from_metadata([("x", b"1"), *traceparent.to_metadata(PARENT)]) == PARENT
    assert traceparent.inherited_traceparent({"TRACEPARENT": PARENT}) == PARENT
    assert traceparent.to_metadata("") == ()
    assert traceparent.from_metadata(None) == ""
    made = traceparent.new_traceparent()
    assert traceparent.is_traceparent(made) and made != traceparent.new_traceparent()
    assert len(traceparent.trace_id_of(made)) == 32


@given(st.text(alphabet="0123456789abcdef-", max_size=60))
def test_any_text_is_a_trace_context_or_dropped(text: str) -> None:
    assert traceparent.from_metadata([("traceparent", text)]) in ("", text)
