"""How true forecasts of starts turned out: what a range beside an estimate is made of. Nothing is decided by it.

A waiting job is expected to start some time after its forecast was made; when it is placed, the true wait against the
expected one is a score of its class. The newest of each class are kept, so that their quantiles follow the fleet.
After a start of the scheduler they are learned again from the attempts of the newest jobs that have ended: each carries
the forecast of its job. Forecasts of jobs that wait then are made anew.

Waits that come in a burst are known too late for that. So what was told is followed, too: each range that did not hold
widens the next ones a little, each that held narrows them by less (Gibbs and Candès, "Adaptive Conformal Inference
Under Distribution Shift", 2021).
"""

import math
from collections import deque
from dataclasses import dataclass, field

from .ids import JobId
from .shares import WHOLE_MILLI
from .specs import Band, JobSpec
from .units import MINUTE, Instant, Span

FORECASTS_KEPT = 10_000
"""Waiting jobs of which a forecast is remembered; the oldest is forgotten first."""

SCORES_KEPT = 200
"""Scores of a class that are kept, the newest."""

SLACK = MINUTE
"""Waits are compared with this on top, so that seconds of one that is short weigh little."""

MISSES_WANTED = 0.08
"""Jobs that may start later than they were told: one of twelve."""

STEP = 0.03
"""How much a range that did not hold widens the next ones, as a score."""

CORRECTION_MIN, CORRECTION_MAX = -0.5, 3.0

WaitClass = tuple[Band | None, int | None, int | None]
"""Whose waits are alike: a band, the powers of two of GPUs asked for and of minutes expected; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What was expected of a waiting job at an instant: to start after `wait`, likely by `latest` if that was known."""

    at: Instant
    wait: Span
    latest: Instant | None = None


@dataclass(slots=True)
class Waits:
    """The forecasts of jobs that wait, and the scores of those that were placed: log of true wait against expected.

    `correction` is added to the score of an upper end, by how the ranges held that were told.
    """

    forecasts: dict[JobId, Forecast] = field(default_factory=dict)
    scores: dict[WaitClass, deque[float]] = field(default_factory=dict)
    correction: float = 0.0

    def expect(self, job: JobId, forecast: Forecast) -> None:
        """Remember the first forecast of a job."""
        if job not in self.forecasts:
            self.forecasts[job] = forecast
            if len(self.forecasts) > FORECASTS_KEPT:
                del self.forecasts[next(iter(self.forecasts))]

    def learn(self, spec: JobSpec, band: Band, forecast: Forecast, placed_at: Instant) -> None:
        """A job was placed: how its wait compares with its forecast."""
        score = score_of(Span(max(0, placed_at - forecast.at)), forecast.wait)
        for each in wait_classes(spec, band, forecast.wait):
            self.scores.setdefault(each, deque(maxlen=SCORES_KEPT)).append(score)
        if forecast.latest is not None:
            step = STEP * ((placed_at > forecast.latest) - MISSES_WANTED)
            self.correction = min(max(self.correction + step, CORRECTION_MIN), CORRECTION_MAX)


def score_of(wait: Span, expected: Span) -> float:
    """0 for a wait as expected; e for one that is 2.7 times as long."""
    return math.log((wait + SLACK) / (expected + SLACK))


def wait_scored(expected: Span, score: float) -> Span:
    """The wait that has this score."""
    return Span(max(0, round((expected + SLACK) * math.exp(score) - SLACK)))


def wait_classes(spec: JobSpec, band: Band, expected: Span) -> tuple[WaitClass, ...]:
    """The classes of a job that is expected to wait so long, from the closest to all jobs."""
    gpus = -(-spec.resources.gpu_milli // WHOLE_MILLI)
    minutes = (expected // MINUTE).bit_length()
    return ((band, gpus.bit_length(), minutes), (band, None, minutes), (band, None, None), (None, None, None))
