"""What the agent does about what ranks left (`--download`), until a record of the scheduler permits to delete it.

    left -> sent -> STORED or NOT_WANTED: it may be deleted
                 -> refused, or not stored now: it is kept, and sent again after a pause
                    -> refused for too long, or beyond the bound of the disk: given up
                       -> LOST is on record: it may be deleted

The scheduler records what became of it before it answers. A refusal permits nothing.
Rule: docs/rules/jobs.md 4.77.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from gpufleet.jobs.runs import RankKey

PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 1.0, 300.0
"""How long what was refused waits before it is sent again: twice as long each time."""

ROOM_AFTER_SECONDS = 3_600.0
"""What was refused for less is not given up for want of room: a store that was away is mostly back by then."""


class ResultsAnswer(Enum):
    """What came of sending what a rank left."""

    STORED = "STORED"
    NOT_WANTED = "NOT_WANTED"
    LOST = "LOST"
    REFUSED = "REFUSED"
    """It was refused, or could not be stored now."""

    @property
    def permits_deletion(self) -> bool:
        """Whether the scheduler has a record of what became of it."""
        return self is not ResultsAnswer.REFUSED


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How long, and how many bytes of it, a node keeps what the scheduler refuses."""

    seconds: float
    bytes_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedResults:
    """What a rank left and was refused: how often, since the agent knows it for so many seconds, and its size."""

    seconds: float = 0.0
    count: int = 0
    size_bytes: int = 0

    @property
    def pause_s(self) -> float:
        """How long it waits now."""
        return min(PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN * 2.0 ** min(self.count - 1, 20))


@dataclass(slots=True)
class Leavings:
    """What was refused of all ranks, in the order in which it was refused first."""

    _refused: dict[RankKey, RefusedResults] = field(default_factory=dict)

    def of(self, key: RankKey) -> RefusedResults:
        """How often, and for how long, this rank's was refused."""
        return self._refused.get(key, RefusedResults())

    def refused(self, key: RankKey, seconds: float, size_bytes: int) -> RefusedResults:
        """It was refused once more, `seconds` after it was sent before."""
        before = self.of(key)
        after = replace(before, seconds=before.seconds + seconds, count=before.count + 1, size_bytes=size_bytes)
        self._refused[key] = after
        return after

    def remembered(self, key: RankKey, seconds: float) -> None:
        """An earlier start of the agent was refused for so long."""
        if seconds > 0:
            self._refused[key] = RefusedResults(seconds=seconds)

    def settled(self, key: RankKey) -> None:
        """It may be deleted."""
        self._refused.pop(key, None)

    def why_given_up(self, key: RankKey, bounds: Bounds) -> str:
        """Why a node keeps this no longer, for people; empty as long as it does."""
        kept = self.of(key)
        if not kept.count:
            return ""
        if kept.seconds >= bounds.seconds:
            return f"it could not be stored for {_span_words(bounds.seconds)}"
        size_bytes = sum(each.size_bytes for each in self._refused.values())
        if size_bytes > bounds.bytes_max and kept.seconds >= ROOM_AFTER_SECONDS and key == next(iter(self._refused)):
            return f"what the node keeps needs {size_bytes:,} bytes, at most {bounds.bytes_max:,} are kept"
        return ""


def _span_words(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
