"""Trace contexts as text: the W3C `traceparent` that travels from a submit to the job's own TRACEPARENT.

A trace context goes through every program whether or not anything records it; so it is made, read and passed on here
without OpenTelemetry.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

TRACEPARENT = "traceparent"
TRACEPARENT_VARIABLE = "TRACEPARENT"

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def is_traceparent(text: str) -> bool:
    """Whether the text is a trace context; what is none is dropped, never passed on."""
    return _TRACEPARENT.fullmatch(text) is not None


def new_traceparent() -> str:
    """A new trace that nobody records; its id still names one request in all logs.

    For a program that does not record and was given none. It is marked as not sampled, so that programs after it do
    not record fragments.
    """
    digits = os.urandom(24).hex()
    return f"00-{digits[:32]}-{digits[32:]}-00"


def inherited_traceparent(environment: Mapping[str, str] = os.environ) -> str:
    """The trace context that this process was started in, by TRACEPARENT; empty without one."""
    given = environment.get(TRACEPARENT_VARIABLE, "")
    return given if is_traceparent(given) else ""


def trace_id_of(traceparent: str) -> str:
    """The 32 hexadecimal digits that name the trace, as people search for them; empty without one."""
    return traceparent[3:35] if is_traceparent(traceparent) else ""


def to_metadata(traceparent: str) -> tuple[tuple[str, str], ...]:
    """The trace context as metadata of a call."""
    return ((TRACEPARENT, traceparent),) if traceparent else ()


def from_metadata(metadata: Sequence[tuple[str, str | bytes]] | None) -> str:
    """The trace context of a call as a server sees it; empty without one."""
    for key, value in metadata or ():
        if key == TRACEPARENT and isinstance(value, str) and is_traceparent(value):
            return value
    return ""
