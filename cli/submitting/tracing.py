"""The first span of a job's trace, where OTEL_ variables ask for one: the command that submits it.

Without such variables nothing is imported for it; a trace that TRACEPARENT names goes on either way.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpufleet.v1 import scheduler_pb2

    from gpufleet.net.channel import Metadata
    from gpufleet.telemetry.spans import Telemetry

TOLD_CHARS_MAX = 300
"""Of what a library says when a trace cannot be sent."""


class Tracing:
    """What a command records; nothing without a telemetry."""

    def __init__(self, telemetry: Telemetry | None = None) -> None:
        self._telemetry = telemetry

    @contextmanager
    def submitting(self, command: str, request: scheduler_pb2.SubmitRequest) -> Iterator[Metadata]:
        """The request as a step of the command's trace; answers the metadata that its call needs for that."""
        if self._telemetry is None:
            yield ()
            return
        from gpufleet.telemetry.traceparent import inherited_traceparent, to_metadata

        with self._telemetry.span(command, parent=inherited_traceparent()) as span:
            for spec in request.specs:
                spec.trace_context = span.traceparent
            yield to_metadata(span.traceparent)


def is_traced() -> bool:
    """Whether a trace is asked for."""
    return any(name.startswith("OTEL_") for name in os.environ)


@contextmanager
def tracing() -> Iterator[Tracing]:
    """Record until the command ends. What is not sent by then is, which takes a moment: see otlp.close_in_time."""
    if not is_traced():
        yield Tracing()
        return
    from gpufleet.telemetry.spans import start

    with _told_once():
        telemetry = start("gpuctl")
        try:
            yield Tracing(telemetry)
        finally:
            telemetry.close()


@contextmanager
def _told_once() -> Iterator[None]:
    """One line on stderr for what goes wrong with the trace, in place of the libraries' own, which tell each try."""
    import logging

    class First(logging.Handler):
        told = ""

        def emit(self, record: logging.LogRecord) -> None:
            self.told = self.told or record.getMessage()

    first = First(logging.WARNING)
    loggers = [logging.getLogger(name) for name in ("opentelemetry", "gpufleet.telemetry.otlp")]
    for logger in loggers:
        logger.addHandler(first)
        logger.propagate = False
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(first)
            logger.propagate = True
        if first.told:
            print(f"gpuctl: the trace may not have arrived: {first.told[:TOLD_CHARS_MAX]}", file=sys.stderr)
