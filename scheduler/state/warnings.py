"""What a person would want to know of an attempt that goes on: values, and what follows from them alone."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from .units import MINUTE, Instant, Span, after

WARNINGS_KEPT = 20
"""Warnings of one attempt. The last ones are kept free for its time limit, which everybody wants to know of."""

TIME_LIMIT_PERCENTS = (80, 90)
"""How much of its time limit an attempt has run for when it is told."""


MEMORY_JUDGED_SPAN = Span(10 * MINUTE)
"""Once an attempt was watched long enough, it is judged for so long by the memory that it used; then at its end."""

MEMORY_SPAN_LEAST = MINUTE
"""An attempt that was watched for less than this is not judged by the memory that it used."""

SLOWED_BY = {
    "hw_slowdown": "its hardware",
    "sw_thermal_slowdown": "heat",
    "hw_thermal_slowdown": "heat",
    "hw_power_brake_slowdown": "the power brake of its machine",
}
"""Reasons for which a driver slows a device down that somebody should see to; its power cap and its user are none."""


class WarningKind(Enum):
    """What is wrong, or about to be."""

    DEVICES_IDLE = "DEVICES_IDLE"
    DEVICE_TROUBLE = "DEVICE_TROUBLE"
    MEMORY_UNUSED = "MEMORY_UNUSED"
    THROTTLED = "THROTTLED"
    TIME_LIMIT_NEAR = "TIME_LIMIT_NEAR"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWarning:
    """One warning. `about` is what it is about: devices as node:index, or the share of the time limit as 80%.

    An attempt is warned once of each kind about each of them, however often it comes and goes.
    """

    kind: WarningKind
    at: Instant
    attempt: int
    sentence: str
    about: tuple[str, ...] = ()


def is_told(warnings: Iterable[JobWarning], kind: WarningKind, about: str) -> bool:
    """Whether an attempt was warned of this."""
    return any(each.kind is kind and about in each.about for each in warnings)


def has_room(count: int, kind: WarningKind) -> bool:
    """Whether one more warning of this kind is kept beside so many."""
    return kind is WarningKind.TIME_LIMIT_NEAR or count < WARNINGS_KEPT - len(TIME_LIMIT_PERCENTS)


def time_limit_marks(
    warnings: Iterable[JobWarning], started_at: Instant, time_limit: Span
) -> tuple[tuple[Instant, int], ...]:
    """When the shares of the time limit are reached that an attempt is still to be warned of, each with its percent."""
    told = tuple(warnings)
    told_up_to = max((each for each in TIME_LIMIT_PERCENTS if is_told(told, *mark_of(each))), default=0)
    # A span is cut to whole microseconds: never before the share is reached.
    return tuple(
        (after(started_at, Span(-(-time_limit * percent // 100))), percent)
        for percent in TIME_LIMIT_PERCENTS
        if percent > told_up_to
    )


def mark_of(percent: int) -> tuple[WarningKind, str]:
    """The warning that so much of the time limit is over."""
    return WarningKind.TIME_LIMIT_NEAR, f"{percent}%"
