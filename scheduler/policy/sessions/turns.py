"""Turns: who is limited when others wait, who is called next, and how long a place waits at most.

Pure choices over a few numbers of each turn. Rules: docs/rules/sessions.md 1.2 to 1.4, 1.10 and 1.11.
"""

import heapq
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ...state.sessions.session import SessionId, SessionLimits
from ...state.units import SECOND, Instant, Span, after

CLAIM_SPAN = Span(10 * SECOND)
"""How long an offered seat waits to be claimed."""

SLACK = Span(1 * SECOND)
"""What a bound allows for messages on their way, once a turn."""


class TurnNow(NamedTuple):
    """A claimed turn: since when it has lasted (time on lost workers included) and when it ends, if it is limited."""

    started_at: Instant
    ends_at: Instant | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitChanges:
    """Turns that are limited from now on, each with its end, and turns that are not limited any more."""

    limited: Mapping[SessionId, Instant]
    lifted: tuple[SessionId, ...]


def limit_changes(
    turns: Mapping[SessionId, TurnNow], waiting: int, seats_free: int, limits: SessionLimits, now: Instant
) -> LimitChanges:
    """What the line does to the turns of one model.

    As many turns are limited as people wait for whom no seat is free or starting. The longest are limited first, and an
    end once told is never moved to an earlier time; the latest ends are lifted first.
    """
    wanted = min(max(0, waiting - seats_free), len(turns))
    limited = {session: turn.ends_at for session, turn in turns.items() if turn.ends_at is not None}
    if len(limited) > wanted:
        latest_first = sorted(limited, key=lambda session: (-limited[session], -session))
        return LimitChanges(limited={}, lifted=tuple(latest_first[: len(limited) - wanted]))
    longest_first = sorted(turns.keys() - limited.keys(), key=lambda session: (turns[session].started_at, session))
    chosen = longest_first[: wanted - len(limited)]
    return LimitChanges(
        limited={session: end_if_limited(turns[session].started_at, limits, now) for session in chosen}, lifted=()
    )


def end_if_limited(started_at: Instant, limits: SessionLimits, now: Instant) -> Instant:
    """When a turn that is limited now ends: it has its whole turn, and never less than the warning."""
    return max(after(started_at, limits.turn), after(now, limits.turn_warning))


class SeatNow(NamedTuple):
    """A seat of a ready worker: free, offered since `called_at`, or with the turn that holds it."""

    called_at: Instant | None = None
    turn: TurnNow | None = None


def longest_turn(limits: SessionLimits) -> Span:
    """The longest that one person behind another keeps a seat: claim, turn, grace, and the slack."""
    return Span(CLAIM_SPAN + limits.turn + limits.grace + SLACK)


def released_by(seat: SeatNow, limits: SessionLimits, now: Instant) -> Instant:
    """The latest that a seat comes free once somebody waits for it."""
    if seat.turn is not None:
        ends_at = seat.turn.ends_at
        if ends_at is None:
            ends_at = end_if_limited(seat.turn.started_at, limits, now)
        return after(ends_at, limits.grace + SLACK)
    if seat.called_at is not None:
        return after(seat.called_at, longest_turn(limits))
    return now


def bounds(seats: Iterable[SeatNow], places: int, limits: SessionLimits, now: Instant) -> list[Instant]:
    """When the first `places` of a line have a seat at the latest, in their order; empty when there is no seat.

    The promise holds while every offered seat is claimed and no worker is lost (docs/rules/sessions.md 1.11). A turn
    without an end counts behind those that have one: while these are as many as wait, it is given none, however long it
    has lasted.
    """
    ends, endless = [], []
    last_end = now
    for seat in seats:
        latest = released_by(seat, limits, now)
        if seat.turn is not None and seat.turn.ends_at is None:
            endless.append(latest)
            continue
        ends.append(latest)
        if seat.turn is not None:
            last_end = max(last_end, latest)
    ends += [max(latest, last_end) for latest in endless]
    return _releases(ends, places, longest_turn(limits))


def estimates(
    seats: Iterable[SeatNow], places: int, usual_turn: Span, limits: SessionLimits, now: Instant
) -> list[Instant]:
    """When the first `places` of a line probably have a seat, if turns last as long as they did lately."""
    ends: list[Instant] = []
    for seat in seats:
        latest = released_by(seat, limits, now)
        begun = seat.turn.started_at if seat.turn is not None else seat.called_at
        ends.append(latest if begun is None else max(now, min(latest, after(begun, usual_turn))))
    return _releases(ends, places, min(usual_turn, longest_turn(limits)))


def _releases(ends: list[Instant], places: int, span: Span) -> list[Instant]:
    heapq.heapify(ends)
    found: list[Instant] = []
    while ends and len(found) < places:
        found.append(ends[0])
        heapq.heapreplace(ends, after(ends[0], span))
    return found


def next_called(
    line: Iterable[SessionId], may_be_called: Callable[[SessionId], bool], yields: Container[SessionId]
) -> SessionId | None:
    """Who of the line is offered a free seat: the first that may be and did not just let one pass.

    Who let one pass is called all the same when nobody else can be. None when nobody can.
    """
    second: SessionId | None = None
    for session in filter(may_be_called, line):
        if session not in yields:
            return session
        second = session if second is None else second
    return second
