"""Which numbers hold for a model, and when a worker that ended is started again. Rules: SESSIONS.md 3."""

from collections.abc import Iterable
from dataclasses import replace

from ..state.limits import Limits
from ..state.sessions import Model, SessionLimits
from ..state.units import MINUTE, SECOND, Instant, Span, after

DEATHS_MAX = 5
"""Workers of a model that may end by themselves within DEATHS_SPAN; then the model has failed."""

DEATHS_SPAN = Span(10 * MINUTE)

BACKOFF_MIN = Span(1 * SECOND)
"""The pause before the second worker that is started again; the first is at once, and each later one doubles it."""


def numbers_of(limits: Limits, model: Model) -> SessionLimits:
    """What was named when the model was served, else what the settings say of it, else the defaults."""
    known = limits.sessions.get(model.name, SessionLimits())
    found = replace(known, **{name: getattr(model.limits, name) for name in model.chosen})
    # Each may come from another place, so that together they may make no sense: a warning is always before the end.
    return found if found.idle_warning < found.idle else replace(found, idle_warning=Span(found.idle // 2))


def deaths_since(deaths: Iterable[Instant], at: Instant) -> int:
    """How many of these ends count at an instant."""
    return sum(1 for died in deaths if died >= after(at, -DEATHS_SPAN))


def may_start_at(deaths: tuple[Instant, ...], at: Instant) -> Instant | None:
    """From when a worker may be started after the newest of these ends; None: at once."""
    count = deaths_since(deaths, at)
    if count < 2:
        return None
    pause = Span(BACKOFF_MIN * 2 ** (min(count, DEATHS_MAX) - 2))
    begins_at = after(deaths[-1], pause)
    return begins_at if begins_at > at else None
