"""What a person would want to know of an attempt that goes on: values, and what follows from them alone.

Warnings of devices are decided by their courses: how those that somebody holds went lately, reading after reading.
These are never stored: after a start of the scheduler every course begins anew, so that what lasts is told later then,
and never too early.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from .ids import DeviceUuid
from .nodes import DeviceSample
from .units import MINUTE, SECOND, Instant, Span, after

WARNINGS_KEPT = 20
"""Warnings of one attempt. The last ones are kept free for its time limit, which everybody wants to know of."""

DAMAGES_KEPT = 5
"""Beside them, so many pieces of damaged output are told of; that there was one is never left out."""

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

IDLE_PERCENT = 5
"""Below this utilisation a device is idle."""

NEIGHBOURS_SPAN = Span(2 * MINUTE)
"""Readings that are further apart tell nothing of the time between them."""

SLOWED_SPAN_MAX = Span(10 * SECOND)
"""So much of the time since the last reading counts as slowed down, or as not, at most."""


class WarningKind(Enum):
    """What is wrong, or about to be."""

    DEVICES_IDLE = "DEVICES_IDLE"
    DEVICE_TROUBLE = "DEVICE_TROUBLE"
    MEMORY_UNUSED = "MEMORY_UNUSED"
    OUTPUT_DAMAGED = "OUTPUT_DAMAGED"
    THROTTLED = "THROTTLED"
    TIME_LIMIT_NEAR = "TIME_LIMIT_NEAR"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWarning:
    """One warning. `about` is what it is about: devices as node:index, or the share of the time limit as 80%; of a
    limit that was raised since, nothing; of damaged output its stream and where in it.

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


def has_room(others: Iterable[JobWarning], kind: WarningKind) -> bool:
    """Whether one more warning of this kind is kept beside these."""
    kinds = [each.kind for each in others]
    damages = kinds.count(WarningKind.OUTPUT_DAMAGED)
    if kind is WarningKind.OUTPUT_DAMAGED:
        return damages < DAMAGES_KEPT
    reserved = 0 if kind is WarningKind.TIME_LIMIT_NEAR else len(TIME_LIMIT_PERCENTS)
    return len(kinds) - damages < WARNINGS_KEPT - reserved


def has_damaged_output(warnings: Iterable[JobWarning]) -> bool:
    """Whether some of an attempt's output was changed by its node's disk before it was stored."""
    return any(each.kind is WarningKind.OUTPUT_DAMAGED for each in warnings)


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


def with_marks_again(warnings: tuple[JobWarning, ...]) -> tuple[JobWarning, ...]:
    """The warnings of an attempt whose time limit was raised: that the new one is near is to be told, too.

    Those of the limit before stay, and are about no share any more.
    """
    return tuple(
        replace(each, about=()) if each.kind is WarningKind.TIME_LIMIT_NEAR and each.about else each
        for each in warnings
    )


def mark_of(percent: int) -> tuple[WarningKind, str]:
    """The warning that so much of the time limit is over."""
    return WarningKind.TIME_LIMIT_NEAR, f"{percent}%"


@dataclass(slots=True)
class DeviceCourse:
    """One device. `idle_since`: all readings from then on were idle ones; None while it is busy, or lacks the counter.

    `slowed` is how much longer it was slowed down than not, of late: heat that comes and goes every second adds up to
    nothing, and heat that stays soon does. `slowed_by` are the reasons of the newest reading that had any.
    """

    read_at: Instant
    idle_since: Instant | None = None
    slowed: Span = Span(0)
    slowed_by: tuple[str, ...] = ()

    @property
    def idle(self) -> Span:
        """How long it has been idle, as far as it was read."""
        return Span(0 if self.idle_since is None else self.read_at - self.idle_since)

    def take(self, sample: DeviceSample) -> None:
        """The next reading; one that is not newer than the last says nothing new."""
        since = sample.taken_at - self.read_at
        if since <= 0:
            return
        is_gap = since > sample.summed_span + NEIGHBOURS_SPAN
        if not _is_idle(sample):
            self.idle_since = None
        elif self.idle_since is None or is_gap:
            self.idle_since = sample.taken_at
        step = 0 if is_gap else min(since, SLOWED_SPAN_MAX)
        self.slowed = Span(max(0, self.slowed + (step if sample.slowed_by else -since)))
        self.slowed_by = sample.slowed_by or self.slowed_by
        self.read_at = sample.taken_at


def _is_idle(sample: DeviceSample) -> bool:
    """By its largest utilisation since the last beat, so that work between two beats is seen."""
    utilization = sample.utilization_percent
    if utilization is None:
        return False
    return max(utilization, sample.utilization_percent_max or 0) < IDLE_PERCENT


def follow_readings(
    courses: dict[DeviceUuid, DeviceCourse], held: Sequence[DeviceUuid], samples: Mapping[DeviceUuid, DeviceSample]
) -> None:
    """Go on with the courses of the devices that are held; of others some may stay for a while."""
    for uuid in held:
        sample = samples.get(uuid)
        course = courses.get(uuid)
        if course is not None and sample is not None:
            course.take(sample)
        elif sample is not None:
            since = sample.taken_at if _is_idle(sample) else None
            courses[uuid] = DeviceCourse(read_at=sample.taken_at, idle_since=since)
    if len(courses) > len(held):
        for uuid in courses.keys() - set(held):
            del courses[uuid]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeak:
    """The most memory that a rank had in use on each of its devices in the `span` for which it was watched."""

    span: Span
    used_bytes: Mapping[DeviceUuid, int] = field(default_factory=dict)
