"""How devices that somebody holds went lately, reading after reading: what warnings are decided by. Never stored.

After a start of the scheduler every course begins anew, so that what lasts is told later then, and never too early.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .ids import DeviceUuid
from .nodes import DeviceSample
from .units import MINUTE, SECOND, Instant, Span

IDLE_PERCENT = 5
"""Below this utilisation a device is idle."""

NEIGHBOURS_SPAN = Span(2 * MINUTE)
"""Readings that are further apart tell nothing of the time between them."""

SLOWED_SPAN_MAX = Span(10 * SECOND)
"""So much of the time since the last reading counts as slowed down, or as not, at most."""


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
