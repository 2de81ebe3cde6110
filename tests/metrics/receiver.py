"""A receiver of OTLP as collectors are: over gRPC and over HTTP, for traces and metrics. It keeps what it is sent."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import uvicorn
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from gpufleet.net.http_server import QuietServer
from tests.e2e.processes import until


@dataclass(frozen=True)
class Step:
    """One span that was received."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    begin_ns: int
    end_ns: int
    labels: dict[str, Any]


@dataclass(frozen=True)
class Point:
    """One value of a metric that was received; of a histogram the number of values. `resource` says whose."""

    service: str
    name: str
    unit: str
    value: float
    labels: dict[str, Any]
    resource: dict[str, Any]


@dataclass
class Receiver:
    """Everything that came, in the order in which it came."""

    grpc_port: int = 0
    http_port: int = 0
    steps: list[Step] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)

    def variables(self, *, http: bool = False) -> dict[str, str]:
        """What sends a program's spans and metrics here soon."""
        soon = {"OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_METRIC_EXPORT_INTERVAL": "300"}
        if not http:
            return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.grpc_port}", **soon}
        endpoint = f"http://127.0.0.1:{self.http_port}"
        protocol = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, **protocol, **soon}

    def trace(self, trace: str) -> list[Step]:
        """The steps of a trace."""
        return [step for step in list(self.steps) if step.trace == trace]

    def newest(self, name: str, **labels: Any) -> Point | None:
        """The newest value of a metric with these labels."""
        found = [each for each in list(self.points) if each.name == name and labels.items() <= each.labels.items()]
        return found[-1] if found else None

    def take_traces(self, request: trace_service_pb2.ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            service = _labels(resource.resource.attributes)["service.name"]
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                self.steps.append(
                    Step(
                        service=service,
                        name=span.name,
                        trace=span.trace_id.hex(),
                        id=span.span_id.hex(),
                        parent=span.parent_span_id.hex(),
                        begin_ns=span.start_time_unix_nano,
                        end_ns=span.end_time_unix_nano,
                        labels=_labels(span.attributes),
                    )
                )

    def take_metrics(self, request: metrics_service_pb2.ExportMetricsServiceRequest) -> None:
        for resource in request.resource_metrics:
            whose = _labels(resource.resource.attributes)
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                for value, point in _values(metric):
                    labels = _labels(point.attributes)
                    self.points.append(Point(whose["service.name"], metric.name, metric.unit, value, labels, whose))


def _values(metric: Any) -> Iterator[tuple[float, Any]]:
    kind = metric.WhichOneof("data")
    for point in getattr(metric, kind).data_points:
        if kind == "histogram":
            yield point.count, point
        else:
            yield getattr(point, point.WhichOneof("value")), point


def _labels(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


class _Traces(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    async def Export(self, request: Any, context: Any) -> Any:
        self._receiver.take_traces(request)
        return trace_service_pb2.ExportTraceServiceResponse()


class _Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    async def Export(self, request: Any, context: Any) -> Any:
        self._receiver.take_metrics(request)
        return metrics_service_pb2.ExportMetricsServiceResponse()


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """A receiver that listens."""
    receiver = Receiver()
    server = grpc.aio.server()
    add_traces: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    add_metrics: Any = metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server
    add_traces(_Traces(receiver), server)
    add_metrics(_Metrics(receiver), server)
    receiver.grpc_port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield receiver
    finally:
        await server.stop(None)


@asynccontextmanager
async def receiving_http() -> AsyncIterator[Receiver]:
    """A receiver that listens for HTTP."""
    receiver = Receiver()
    application: Any = _http(receiver)
    config = uvicorn.Config(application, port=0, interface="asgi3", lifespan="off", ws="none", log_config=None)
    server = QuietServer(config)
    serving = asyncio.create_task(server.serve())
    try:
        await until("the receiver listens", lambda: server.started)
        receiver.http_port = server.servers[0].sockets[0].getsockname()[1]
        yield receiver
    finally:
        server.should_exit = True
        await serving


def _http(receiver: Receiver) -> Any:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        packing = dict(scope["headers"]).get(b"content-encoding", b"")
        unpack: Any = {b"gzip": gzip.decompress, b"deflate": zlib.decompress}.get(packing, bytes)
        if scope["path"] == "/v1/traces":
            receiver.take_traces(trace_service_pb2.ExportTraceServiceRequest.FromString(unpack(body)))
        elif scope["path"] == "/v1/metrics":
            receiver.take_metrics(metrics_service_pb2.ExportMetricsServiceRequest.FromString(unpack(body)))
        kind = [(b"content-type", b"application/x-protobuf")]
        await send({"type": "http.response.start", "status": 200, "headers": kind})
        await send({"type": "http.response.body", "body": b""})

    return answer
