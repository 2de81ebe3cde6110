"""What a replay is judged by: waits, slowdown, and how well starts were forecast."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .logs import Log
from .replay import Forecast

BOUNDED_SECONDS = 10
"""A job shorter than this counts as this long in the slowdown."""

SHORT_SECONDS = 60
"""The range is compared with waits that are longer."""


def wait_lines(log: Log, starts: Sequence[int]) -> Iterator[str]:
    """Mean and longest wait and mean bounded slowdown of all jobs that start so."""
    waits = [start - job.submitted for job, start in zip(log.jobs, starts, strict=True)]
    slowdowns = [
        max((wait + job.run) / max(job.run, BOUNDED_SECONDS), 1.0) for job, wait in zip(log.jobs, waits, strict=True)
    ]
    yield f"mean wait {statistics.mean(waits):,.0f} s"
    yield f"slowdown {statistics.mean(slowdowns):.1f}"
    yield f"longest wait {max(waits) / 86_400:.1f} days"


@dataclass(frozen=True, slots=True)
class ForecastFigures:
    """How forecasts turned out. `held` and `width` are of jobs that were told a range: the share that started by its
    upper end, and the median of upper end to true wait among those that waited for more than a minute."""

    waited: int
    estimated: int
    error_seconds: float
    ranged: int
    held: float
    between: float
    width: float


def forecast_figures(log: Log, starts: Sequence[int], told: Mapping[int, Forecast]) -> ForecastFigures:
    """How the forecasts that jobs were told at their submit turned out."""
    waits = {number: starts[number] - log.jobs[number].submitted for number in told}
    errors = [abs(each.expected - waits[number]) for number, each in told.items() if each.expected is not None]
    ranged = [(each.likely, waits[number]) for number, each in told.items() if each.likely is not None]
    widths = [last / wait for (_, last), wait in ranged if wait > SHORT_SECONDS]
    return ForecastFigures(
        waited=len(told),
        estimated=len(errors),
        error_seconds=statistics.median(errors or [0]),
        ranged=len(ranged),
        held=statistics.mean([wait <= last for (_, last), wait in ranged] or [0]),
        between=statistics.mean([first <= wait <= last for (first, last), wait in ranged] or [0]),
        width=statistics.median(widths or [0]),
    )


def forecast_lines(figures: ForecastFigures) -> Iterator[str]:
    """The figures of forecasts for people."""
    yield f"{figures.waited:,} jobs waited, {figures.estimated:,} had an estimate, {figures.ranged:,} a range"
    yield f"median error of the estimate {figures.error_seconds:,.0f} s"
    yield f"started by the upper end {100 * figures.held:.1f} % (to reach: 88 to 93)"
    yield f"within the range {100 * figures.between:.1f} %"
    yield f"upper end {figures.width:.1f} times the true wait, median over a minute (to reach: 4)"
