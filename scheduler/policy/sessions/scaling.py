"""How many workers a model has. Rules: docs/rules/sessions.md 3.5 and 3.6."""

from dataclasses import dataclass

from ...state.sessions.serving import Requests
from ...state.sessions.session import HttpService, Model
from ...state.units import SECOND, Instant, Span, after

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


def grows_at(http: HttpService, requests: Requests, ready_since: Instant | None) -> Instant | None:
    """When a program gets one more replica because a request has waited for too long; None while that is not so.

    The wait counts from when all its replicas were ready: what a new one takes over is told a moment later.
    """
    if requests.waits_since is None or ready_since is None:
        return None
    return after(max(requests.waits_since, ready_since), http.target_wait)


def replicas_wanted(model: Model, requests: Requests, replicas: int, grows: Instant | None, at: Instant) -> int:
    """As many replicas as its program's requests need, within the model's bounds.

    One for each `target_concurrency` requests; from `grows` on one more than the `replicas` that there are.
    """
    http = model.http
    assert http is not None
    scale = Scale(min_workers=model.min_workers, max_workers=model.max_workers, seats=http.target_concurrency)
    wanted = workers_wanted(scale, requests.under_way, requests.waiting)
    is_late = grows is not None and grows <= at
    return min(max(wanted, replicas + 1), model.max_workers) if is_late else wanted


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
