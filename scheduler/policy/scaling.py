"""How many workers a model has. Rules: SESSIONS.md 3, last point."""

from dataclasses import dataclass

from ..state.units import SECOND, Instant, Span, after

IDLE_SPAN = Span(60 * SECOND)
"""How long a worker was not needed before it is taken down."""

COOLDOWN = Span(30 * SECOND)
"""The least time between two workers that are taken down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The workers that a model may have."""

    min_workers: int
    max_workers: int
    seats: int


def workers_wanted(scale: Scale, turns: int, waiting: int) -> int:
    """As many workers as seat everybody, within the model's bounds."""
    needed = -(-(turns + waiting) // max(1, scale.seats))
    return min(max(needed, scale.min_workers), scale.max_workers)


def may_shrink_at(fewer_since: Instant, shrunk_at: Instant | None) -> Instant:
    """When a worker too many is taken down: it was for a minute, and the last one went half a minute ago."""
    idle = after(fewer_since, IDLE_SPAN)
    return idle if shrunk_at is None else max(idle, after(shrunk_at, COOLDOWN))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One model as another that needs a device sees it."""

    turns: int
    waiting: int
    workers: int
    min_workers: int


def gives_up_a_worker(models: dict[str, Load]) -> str | None:
    """Of the models above their least number, the one with the fewest people a worker; None when none is."""
    above = [(load, name) for name, load in models.items() if load.workers > load.min_workers]
    if not above:
        return None
    return min(above, key=lambda each: ((each[0].turns + each[0].waiting) / each[0].workers, each[1]))[1]
