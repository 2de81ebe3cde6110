"""OpenTelemetry, when OTEL_ variables ask for it; otherwise nothing is imported and a span costs a method call.

`start` gives the program's `Telemetry`. A span's parent is a traceparent, a text that events and records can carry:
`with telemetry.span("commit", parent=event.trace_context) as span:` and `span.traceparent` goes on to the next step.
Without recording, a span's traceparent is its parent's, so that a trace of others passes through.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from gpufleet.telemetry import otlp
from gpufleet.telemetry.traceparent import is_traceparent

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span as RecordedSpan
    from opentelemetry.trace import Tracer

Value = str | int | float | bool


class Span:
    """A step of a trace; this one is not recorded."""

    __slots__ = ("traceparent",)

    def __init__(self, traceparent: str) -> None:
        self.traceparent = traceparent

    def set(self, **attributes: Value) -> None:
        """Add attributes."""

    def end(self) -> None:
        """Of a step that `begin` began: it is over."""

    def __enter__(self) -> Span:
        return self

    def __exit__(self, *problem: object) -> None:
        return None


class Telemetry:
    """What a program records; this one records nothing."""

    is_on = False

    def span(self, name: str, *, parent: str = "", **attributes: Value) -> AbstractContextManager[Span]:
        """A step that lasts as long as the `with`; without a parent it begins a trace."""
        return Span(parent)

    def begin(self, name: str, *, parent: str = "", **attributes: Value) -> Span:
        """A step that lasts until the span's `end`, which may come in another task."""
        return Span(parent)

    def record(self, name: str, *, begin_ns: int, end_ns: int, parent: str = "", **attributes: Value) -> str:
        """A step that is over, in nanoseconds since 1970; the answer is its traceparent."""
        return parent

    def close(self) -> None:
        """Send what is waiting, for a bounded time: see otlp.close_in_time."""


OFF = Telemetry()


def is_wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the OTEL_ variables ask for traces."""
    return otlp.is_wanted(otlp.Signal.TRACES, environment)


def start(program: str, environment: Mapping[str, str] = os.environ, *, instance: str = "") -> Telemetry:
    """The program's telemetry, as the OTEL_ variables say; off when they are silent.

    What they ask for and this installation lacks is a warning and no error: such variables are often set for a whole
    machine. Close it at the end.
    """
    if not is_wanted(environment):
        return OFF
    exporter = otlp.span_exporter(environment)
    return OFF if exporter is None else recording(program, exporter, instance=instance)


def recording(program: str, exporter: SpanExporter, *, instance: str = "") -> Telemetry:
    """Telemetry that hands its spans to this exporter, from a thread."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=otlp.resource_of(program, instance), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return _Recording(provider, exporter)


class _Recording(Telemetry):
    is_on = True

    def __init__(self, provider: TracerProvider, exporter: SpanExporter) -> None:
        self._provider = provider
        self._exporter = exporter
        self._tracer: Tracer = provider.get_tracer("gpufleet")

    @contextmanager
    def span(self, name: str, *, parent: str = "", **attributes: Value) -> Iterator[Span]:
        with self._tracer.start_as_current_span(name, _context(parent), attributes=attributes) as recorded:
            yield _RecordedSpan(recorded)

    def begin(self, name: str, *, parent: str = "", **attributes: Value) -> Span:
        return _RecordedSpan(self._tracer.start_span(name, context=_context(parent), attributes=attributes))

    def record(self, name: str, *, begin_ns: int, end_ns: int, parent: str = "", **attributes: Value) -> str:
        recorded = self._tracer.start_span(name, context=_context(parent), attributes=attributes, start_time=begin_ns)
        recorded.end(end_ns)
        return _traceparent_of(recorded)

    def close(self) -> None:
        # When the wait is over, the exporter is shut down: that makes the export that is under way give up.
        otlp.close_in_time(self._provider.shutdown, self._exporter.shutdown, "telemetry-close")


class _RecordedSpan(Span):
    __slots__ = ("_recorded",)

    def __init__(self, recorded: RecordedSpan) -> None:
        super().__init__(_traceparent_of(recorded))
        self._recorded = recorded

    def set(self, **attributes: Value) -> None:
        self._recorded.set_attributes(attributes)

    def end(self) -> None:
        self._recorded.end()


def _context(parent: str) -> Context:
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    # An empty context, not the current one: steps of many jobs are interleaved in one loop.
    carrier = {"traceparent": parent} if is_traceparent(parent) else {}
    return TraceContextTextMapPropagator().extract(carrier, context=Context())


def _traceparent_of(recorded: RecordedSpan) -> str:
    context = recorded.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
