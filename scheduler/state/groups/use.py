"""What groups have used: decayed, for their turns, and of GPUs in the week that runs, for their caps.

A week begins on Monday at 00:00 UTC. What ended in it is counted here, in the store; what runs is counted by
`GroupHold`, an index, from its placement or the beginning of the week on.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime

from ..ids import JobId, UserName
from ..shares import WHOLE_MILLI
from ..units import DAY, HOUR, SECOND, Instant, Span
from ..usage import UserHold, decayed
from .group import GroupId

WEEK = Span(7 * DAY)
FIRST_MONDAY = 4 * DAY
"""Monday, 5 January 1970, 00:00 UTC, in microseconds: where weeks are counted from."""


def week_of(at: Instant) -> Instant:
    """When the week of an instant began."""
    return Instant((at - FIRST_MONDAY) // WEEK * WEEK + FIRST_MONDAY)


def week_text(week: Instant) -> str:
    """When a week ends, for people."""
    return datetime.fromtimestamp((week + WEEK) / SECOND, tz=UTC).strftime("Monday, %Y-%m-%d 00:00 UTC")


def milli_us_in_week(gpu_milli: int, placed_at: Instant, ended_at: Instant) -> int:
    """What an attempt used of GPUs in the week of its end, in thousandths of a GPU-microsecond."""
    return gpu_milli * max(0, ended_at - max(placed_at, week_of(ended_at)))


def hours_of(gpu_milli_us: int) -> float:
    """GPU-hours of thousandths of a GPU-microsecond."""
    return gpu_milli_us / (WHOLE_MILLI * HOUR)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupUse:
    """What a group's ended attempts count for at an instant: see `Usage`; and of GPUs in the week from `week` on."""

    group: GroupId
    cpu_seconds: float
    at: Instant
    week: Instant
    gpu_milli_us: int = 0

    def by(self, at: Instant) -> float:
        """What it still counts for at a later instant, in CPU-seconds."""
        return decayed(self.cpu_seconds, at - self.at)

    def in_week(self, week: Instant) -> int:
        """What they used of GPUs in this week, in thousandths of a GPU-microsecond."""
        return self.gpu_milli_us if self.week == week else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberUse:
    """What the ended attempts of one user in a group used of GPUs in the week from `week` on."""

    group: GroupId
    user: UserName
    week: Instant
    gpu_milli_us: int = 0

    def in_week(self, week: Instant) -> int:
        """What they used in this week, in thousandths of a GPU-microsecond."""
        return self.gpu_milli_us if self.week == week else 0


@dataclass(slots=True)
class GroupHold:
    """What the active jobs of a group hold: all of them, and those of each user with GPUs."""

    total: UserHold = field(default_factory=UserHold)
    with_gpus: dict[JobId, tuple[UserName, int, Instant]] = field(default_factory=dict)
    _week: Instant | None = field(default=None, compare=False)
    _weighted_start: int = field(default=0, compare=False)

    def add(self, job: JobId, user: UserName, gpu_milli: int, placed_at: Instant) -> None:
        """Note a job with GPUs."""
        if gpu_milli:
            self.with_gpus[job] = (user, gpu_milli, placed_at)
            if self._week is not None:
                self._weighted_start += gpu_milli * max(placed_at, self._week)

    def drop(self, job: JobId) -> None:
        """It holds nothing any more."""
        gone = self.with_gpus.pop(job, None)
        if gone is not None and self._week is not None:
            self._weighted_start -= gone[1] * max(gone[2], self._week)

    def used_in_week(self, week: Instant, at: Instant) -> int:
        """What they used of GPUs from the beginning of a week on, in thousandths of a GPU-microsecond.

        It is asked of the same week again and again, which costs nothing then.
        """
        if week != self._week:
            self._week = week
            self._weighted_start = sum(milli * max(placed, week) for _, milli, placed in self.with_gpus.values())
        return max(0, self.total.gpu_milli * at - self._weighted_start)

    def milli_of_users(self) -> dict[UserName, int]:
        """What each user holds of GPUs, in thousandths."""
        found: dict[UserName, int] = {}
        for user, milli, _ in self.with_gpus.values():
            found[user] = found.get(user, 0) + milli
        return found

    def used_by_users(self, week: Instant, at: Instant) -> dict[UserName, int]:
        """What the active jobs of each user used of GPUs from the beginning of a week on."""
        found: dict[UserName, int] = {}
        for user, milli, placed in self.with_gpus.values():
            found[user] = found.get(user, 0) + milli * max(0, at - max(placed, week))
        return found
