"""A job's trace goes from its submitter through submit, decide, commit and launch into the job itself."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from tests.e2e.fleet import Fleet
from tests.e2e.processes import until

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
SUBMITTER = f"00-{TRACE_ID}-b7ad6b7169203331-01"


@dataclass
class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """An OTLP collector that keeps what it is sent of our trace: (service, step) → its span."""

    port: int = 0
    spans: dict[tuple[str, str], Any] = field(default_factory=dict)

    async def Export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_spans:
            names = {each.key: each.value.string_value for each in resource.resource.attributes}
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                if span.trace_id.hex() == TRACE_ID:
                    self.spans[names["service.name"], span.name] = span
        return trace_service_pb2.ExportTraceServiceResponse()

    def parent_of(self, service: str, step: str) -> str:
        """The span id of a step's parent."""
        return str(self.spans[service, step].parent_span_id.hex())

    def id_of(self, service: str, step: str) -> str:
        """The span id of a step."""
        return str(self.spans[service, step].span_id.hex())


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    server = grpc.aio.server()
    collector = Collector(port=server.add_insecure_port("127.0.0.1:0"))
    add_servicer: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    add_servicer(collector, server)
    await server.start()
    yield collector
    await server.stop(None)


async def test_one_trace_goes_from_the_submitter_into_the_job(tmp_path: Path, collector: Collector) -> None:
    traced = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}", "OTEL_BSP_SCHEDULE_DELAY": "100"}
    async with Fleet(tmp_path, environment=traced) as fleet:
        await fleet.add_node(environment=traced)
        async with fleet.client() as person:
            spec = person.spec("sh", "-c", "echo $TRACEPARENT")
            spec.trace_context = SUBMITTER
            job_id = (await person.submit_specs([spec])).first_job_id
            await person.wait(job_id)
            (told,) = (await person.stdout(job_id)).decode().split()
        steps = {
            ("gpufleet-scheduler", "submit"),
            ("gpufleet-scheduler", "decide"),
            ("gpufleet-scheduler", "commit"),
            ("gpufleet-scheduler", "launch"),
            ("gpufleet-agent", "launch"),
        }
        await until("every step is told", lambda: steps <= set(collector.spans))
    assert collector.parent_of("gpufleet-scheduler", "submit") == SUBMITTER.split("-")[2]
    submit = collector.id_of("gpufleet-scheduler", "submit")
    assert collector.parent_of("gpufleet-scheduler", "launch") == submit
    assert collector.parent_of("gpufleet-agent", "launch") == collector.id_of("gpufleet-scheduler", "launch")
    assert told == f"00-{TRACE_ID}-{collector.id_of('gpufleet-agent', 'launch')}-01"


async def test_without_otel_variables_a_job_still_gets_the_submitters_trace(tmp_path: Path) -> None:
    async with Fleet(tmp_path) as fleet:
        await fleet.add_node()
        async with fleet.client() as person:
            spec = person.spec("sh", "-c", "echo $TRACEPARENT")
            spec.trace_context = SUBMITTER
            job_id = (await person.submit_specs([spec])).first_job_id
            await person.wait(job_id)
            assert (await person.stdout(job_id)).decode().strip() == SUBMITTER
