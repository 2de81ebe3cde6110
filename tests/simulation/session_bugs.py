"""Bugs to plant in lines, turns and seats: each breaks one rule in the real code, and the simulation must find out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from inference.core.presence import Presence
from inference.core.turns import Turns as WorkerTurns
from scheduler import engine
from scheduler.core.sessions import decide, turns, worker_seats
from scheduler.policy.sessions.turns import LimitChanges, next_called
from scheduler.state import apply
from scheduler.state import live as live_state
from scheduler.state.sessions import records as session_records
from scheduler.state.sessions import turns as live_turns
from scheduler.state.sessions.events import TurnClosed, WorkerState
from scheduler.state.sessions.session import EndReason, Session, Standing
from scheduler.state.state import State

Plant = Callable[[pytest.MonkeyPatch], None]


def the_end_of_an_old_epoch_is_listened_to(plant: pytest.MonkeyPatch) -> None:
    """What an older turn says late ends the one that goes on."""
    closed = decide._on_turn_closed

    def careless(state: State, event: TurnClosed) -> Any:
        session = state.durable.sessions.by_id.get(event.session)
        return closed(state, event if session is None else replace(event, epoch=session.epoch))

    plant.setattr(decide, "_on_turn_closed", careless)


def a_worker_lets_old_epochs_in(plant: pytest.MonkeyPatch) -> None:
    """A ticket opens again and again."""
    plant.setattr(WorkerTurns, "_highest", lambda self, session: -1)


def a_worker_has_no_end_of_seats(plant: pytest.MonkeyPatch) -> None:
    """It lets everybody in, and the scheduler offers one seat more than there are."""
    free = turns._Line._free_seats
    plant.setattr(WorkerTurns, "_no_seat_for", lambda self, session: None)
    plant.setattr(turns._Line, "_free_seats", lambda self, worker: free(self, worker) + (worker.seats > 0))


def a_missed_seat_can_still_be_opened(plant: pytest.MonkeyPatch) -> None:
    """Who comes too late has a turn that nobody knows of, and nobody looks at what workers list."""
    on_turn = turns._on_turn

    def silent(*arguments: Any) -> Any:
        decision = on_turn(*arguments)
        kept = tuple(
            each for each in decision.session_commands if getattr(each, "reason", None) != EndReason.CLAIM_TIMEOUT
        )
        return replace(decision, session_commands=kept)

    plant.setattr(turns, "_on_turn", silent)
    plant.setattr(decide, "_ended_epoch", lambda *arguments: None)


def the_last_is_called_first(plant: pytest.MonkeyPatch) -> None:
    """Places in the line mean nothing."""
    called = next_called
    plant.setattr(turns, "next_called", lambda line, may, yields: called(reversed(list(line)), may, yields))


def nobody_is_limited(plant: pytest.MonkeyPatch) -> None:
    """Turns go on while others wait, and bounds are told all the same."""
    plant.setattr(turns, "limit_changes", lambda *arguments: LimitChanges(limited={}, lifted=()))


def seats_stay_free(plant: pytest.MonkeyPatch) -> None:
    """One seat of each worker is never offered."""
    free = turns._Line._free_seats
    plant.setattr(turns._Line, "_free_seats", lambda self, worker: max(0, free(self, worker) - 1))


def a_later_bound_has_no_cause(plant: pytest.MonkeyPatch) -> None:
    """It is told as if it had been promised like that."""
    plant.setattr(turns, "_why_later", lambda *arguments: "")


def an_end_is_not_told(plant: pytest.MonkeyPatch) -> None:
    """A session is over and its page knows nothing of it."""
    ended = decide._ended
    plant.setattr(decide, "_ended", lambda *arguments: replace(ended(*arguments), session_commands=()))


def who_lost_a_worker_stands_behind(plant: pytest.MonkeyPatch) -> None:
    """The front of the line is like the rest of it."""
    changed = session_records.changed_by

    def without_front(*arguments: Any) -> Any:
        return tuple(
            replace(each, standing=Standing.LINE) if isinstance(each, Session) else each for each in changed(*arguments)
        )

    plant.setattr(apply, "changed_by", without_front)


def a_silent_worker_counts_as_idle(plant: pytest.MonkeyPatch) -> None:
    """A worker that is cut off ends the turns of people who are at it."""
    plant.setattr(turns, "_tells_until", lambda *arguments: True)


def who_was_asked_is_not_heard(plant: pytest.MonkeyPatch) -> None:
    """Whoever was asked whether anybody is there loses the turn, also with input that the worker told in time."""
    see = live_turns._see

    def deaf(turns: Any, *arguments: Any) -> None:
        asked = {each: turn.input_at for each, turn in turns.turns.items() if turn.idle_told is not None}
        see(turns, *arguments)
        for each, input_at in asked.items():
            turns.turns[each].input_at = input_at

    plant.setattr(live_turns, "_see", deaf)


def nobody_is_waited_for_after_a_start(plant: pytest.MonkeyPatch) -> None:
    """Who does not come back stays for ever."""
    restart = live_turns.restart

    def careless(live: Any, *arguments: Any) -> None:
        restart(live, *arguments)
        live.away.clear()

    plant.setattr(live_state, "restart_sessions", careless)


def an_end_comes_twice_after_a_start(plant: pytest.MonkeyPatch) -> None:
    """Neither a person nor their worker has come back, and each of the two ends the turn."""
    missing = decide.without_missing_worker
    plant.setattr(
        turns, "without_missing_worker", lambda state, at, worker, but: missing(state, at, worker, frozenset())
    )


def a_slow_store_takes_the_time_to_answer(plant: pytest.MonkeyPatch) -> None:
    """An offer counts as missed that has not left yet."""
    plant.setattr(engine, "LATE_SPAN", 10**15)


def seats_that_start_are_promised(plant: pytest.MonkeyPatch) -> None:
    """Who waits for a worker to load is told a bound, though nobody's turn is given an end for them."""
    plant.setattr(turns._Line, "_places_promised", lambda self: None)


def a_worker_that_is_going_is_offered(plant: pytest.MonkeyPatch) -> None:
    """Who is next is sent to a worker that was told to end, and another one is taken to have no seat."""
    plant.setattr(worker_seats, "takes_nobody", lambda state, worker, changes: worker.state is WorkerState.READY)


def to_be_there_is_evidence(plant: pytest.MonkeyPatch) -> None:
    """Whose worker goes down twice is taken for the cause, whatever they did."""
    without = decide._to_another_worker

    def suspecting(state: State, at: Any, session: Session, *why: str) -> Any:
        if session.worker_deaths:
            message = "2 workers went down under this session"
            return decide.end_session(state, at, session, EndReason.MODEL_FAILED, message)
        decision = without(state, at, session, *why)
        records = tuple(
            replace(each, worker_deaths=1) if isinstance(each, session_records.SessionRequeued) else each
            for each in decision.records
        )
        return replace(decision, records=records)

    plant.setattr(decide, "_to_another_worker", suspecting)


def a_frame_before_its_stream_starts_no_clock(plant: pytest.MonkeyPatch) -> None:
    """The idle time of who got their first picture with the stream never runs."""
    begin = Presence.begin

    def begin_with_a_stream(self: Presence, at_us: int) -> None:
        if self.has_stream:
            begin(self, at_us)

    plant.setattr(Presence, "begin", begin_with_a_stream)


SERVED_BUGS: dict[Plant, int] = {
    seats_that_start_are_promised: 160,
    a_worker_that_is_going_is_offered: 0,
}
"""The same for models that the fleet serves."""

SESSION_BUGS: dict[Plant, int] = {
    the_end_of_an_old_epoch_is_listened_to: 15,
    a_worker_lets_old_epochs_in: 0,
    a_worker_has_no_end_of_seats: 0,
    a_missed_seat_can_still_be_opened: 21,
    the_last_is_called_first: 0,
    nobody_is_limited: 4,
    seats_stay_free: 0,
    a_later_bound_has_no_cause: 0,
    an_end_is_not_told: 0,
    who_lost_a_worker_stands_behind: 2,
    a_silent_worker_counts_as_idle: 2,
    who_was_asked_is_not_heard: 1,
    nobody_is_waited_for_after_a_start: 1,
    an_end_comes_twice_after_a_start: 1,
    a_slow_store_takes_the_time_to_answer: 15,
    a_frame_before_its_stream_starts_no_clock: 0,
    to_be_there_is_evidence: 6,
}
"""Each with the seed from which on it is looked for: the first that met it when this was written, which saves time."""
