"""From an input in the browser to the frame on its screen as one trace, as a collector of OpenTelemetry gets it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from tests.e2e.processes import until
from tests.gateway.stage import Stage, browser

ROOT = "input to frame shown"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps the spans that it gets, with the service that sent each."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []

    def Export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_spans:
            service = {each.key: each.value.string_value for each in resource.resource.attributes}["service.name"]
            self.spans += [(service, span) for scope in resource.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def steps(self, trace_id: bytes) -> set[tuple[str, str]]:
        """The service and name of each span of a trace."""
        return {(service, span.name) for service, span in list(self.spans) if span.trace_id == trace_id}


@contextmanager
def collecting() -> Iterator[tuple[Collector, dict[str, str]]]:
    """A collector, and the variables that send spans to it."""
    collector = Collector()
    add_servicer: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    with futures.ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        add_servicer(collector, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield collector, {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_BSP_SCHEDULE_DELAY": "100"}
        server.stop(None).wait()


async def test_an_input_is_followed_from_the_browser_to_the_frame_that_it_has_shown(stage: Stage) -> None:
    with collecting() as (collector, variables):
        worker = stage.worker("traced", variables=variables)
        gateway = stage.another_gateway("tracing", variables=variables)
        await worker.is_served()
        async with browser(stage, gateway=await gateway.address()) as ann:
            await ann.hello("traced")
            turn = await ann.text("turn")
            await ann.frame()
            for _ in range(20):
                clicked = await ann.click(0.5, 0.5)
                while ann.newest < clicked:
                    await ann.frame()
            expected = {
                ("gpufleet-gateway", ROOT),
                ("gpufleet-worker", "step"),
                ("gpufleet-worker", "encode"),
                ("gpufleet-gateway", "sent"),
                ("gpufleet-gateway", "shown"),
            }

            def roots() -> list[Any]:
                return [span for _, span in list(collector.spans) if span.name == ROOT]

            await until(
                "the trace is whole", lambda: any(collector.steps(each.trace_id) == expected for each in roots())
            )
            root = roots()[0]
            attributes = {each.key: each.value for each in root.attributes}
            assert (attributes["session"].string_value, attributes["kind"].string_value) == (turn["session"], "pointer")
            steps = {span.name: span for _, span in collector.spans if span.trace_id == root.trace_id and span != root}
            assert {span.parent_span_id for span in steps.values()} == {root.span_id}
            order = [steps[name].end_time_unix_nano for name in ("step", "encode", "sent", "shown")]
            assert order == sorted(order) and order[-1] <= root.end_time_unix_nano
            assert len(roots()) < 20, "inputs are followed now and then, and not all"
            await ann.say(type="leave")
            await ann.text("end")
        worker.end()
        gateway.end()
