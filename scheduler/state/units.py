"""Units: time in whole microseconds, memory in bytes (1 MB = 10^6 bytes)."""

from typing import NewType

Instant = NewType("Instant", int)
"""A point in time: microseconds since 1970-01-01 UTC on the scheduler's own slewed clock."""

NEVER = Instant(2**62)
"""Later than every instant."""

Span = NewType("Span", int)
"""A length of time in microseconds."""

MILLISECOND = Span(1_000)
SECOND = Span(1_000_000)
MINUTE = Span(60 * SECOND)
HOUR = Span(60 * MINUTE)
DAY = Span(24 * HOUR)

MB = 10**6
GB = 10**9


def after(start: Instant, span: int) -> Instant:
    """The instant `span` microseconds after `start`."""
    return Instant(start + span)


def seconds(count: float) -> Span:
    """A span of `count` seconds, to the microsecond."""
    return Span(round(count * SECOND))
