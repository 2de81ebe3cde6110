"""Between when and when a job starts: the range that held for nine of ten jobs of its class, around its estimate.

It is made of how forecasts of finished waits turned out (`state/waits.py`): split conformal prediction over a window of
the newest scores, by the closest class of which enough is known. Where little is known the range is wider, and where
next to nothing is, there is none. A job that is expected to wait long is compared with others that were.
"""

import math
from dataclasses import dataclass

from ..state.jobs import Job
from ..state.units import Instant, Span, after
from ..state.waits import WaitClass, Waits, wait_classes, wait_scored

LOW, HIGH = 0.02, 0.92
"""The quantiles of the scores that the range lies between: nine of ten."""

SCORES_WANTED = 30
"""A class with so many scores stands for itself."""

SCORES_LEAST = 5
"""With fewer scores in all there is no range."""

BOUND_RANGES_MAX = 5
"""A bound that is more than so many times the range says nothing that helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Nine of ten such jobs start from `earliest` to `latest`."""

    earliest: Instant
    latest: Instant


class Ranges:
    """The ranges of one moment; what a class says is found once."""

    def __init__(self, waits: Waits, at: Instant) -> None:
        self._waits = waits
        self._at = at
        self._of_class: dict[WaitClass, tuple[float, float]] = {}

    def of(self, job: Job, expected: Span) -> Range | None:
        """The range of a job that is expected to start after a span; None where too little is known."""
        scores = self._scores(job, expected)
        if scores is None:
            return None
        low, high = wait_scored(expected, scores[0]), wait_scored(expected, scores[1] + self._waits.correction)
        return Range(earliest=after(self._at, min(low, high)), latest=after(self._at, high))

    def _scores(self, job: Job, expected: Span) -> tuple[float, float] | None:
        classes = wait_classes(job.spec, job.band, expected)
        known = [(each, len(self._waits.scores.get(each, ()))) for each in classes]
        chosen = next((each for each, count in known if count >= SCORES_WANTED), None)
        if chosen is None:
            chosen, count = known[-1]
            if count < SCORES_LEAST:
                return None
        if chosen not in self._of_class:
            self._of_class[chosen] = _quantiles(sorted(self._waits.scores[chosen]))
        return self._of_class[chosen]


def _quantiles(scores: list[float]) -> tuple[float, float]:
    """The two quantiles; of few scores the outermost, and something on top."""
    count = len(scores)
    low = max(0, math.floor(LOW * (count + 1)) - 1)
    high = min(count - 1, math.ceil(HIGH * (count + 1)) - 1)
    widened = 0.0 if count >= SCORES_WANTED else math.log(1 + SCORES_WANTED / (2 * count))
    return scores[low] - widened, scores[high] + widened


def helps(bound: Instant | None, likely: Range | None, at: Instant) -> bool:
    """Whether a bound is worth showing beside a range: it is at most BOUND_RANGES_MAX times as far away."""
    return bound is None or likely is None or bound - at <= BOUND_RANGES_MAX * max(0, likely.latest - at)
