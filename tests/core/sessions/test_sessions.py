"""Lines and turns under random people: what must hold whatever happens, and what a bound promises."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.story import sentence, tell
from scheduler.policy.sessions.scaling import Load, Scale, gives_up_a_worker, may_shrink_at, workers_wanted
from scheduler.policy.sessions.turns import SeatNow, TurnNow, bounds, limit_changes, longest_turn, released_by
from scheduler.state.ids import UserName
from scheduler.state.records import Record
from scheduler.state.replies import Refused
from scheduler.state.sessions.commands import OfferSeat, TellPlace
from scheduler.state.sessions.events import (
    Connection,
    ConnectionLost,
    JoinRequested,
    LeaveRequested,
    ReportedTurn,
    ServeRequested,
    SessionEvent,
    StepBroke,
    TurnClosed,
    WorkerJoined,
    WorkerLost,
    WorkerReported,
    WorkerState,
)
from scheduler.state.sessions.records import (
    ModelFailed,
    ModelReady,
    ModelStopped,
    ModelUpdated,
    SessionRecord,
    UpdateFailed,
    WorkerDied,
)
from scheduler.state.sessions.session import (
    EndReason,
    Granted,
    Identity,
    Model,
    ModelName,
    SessionId,
    SessionLimits,
    WorkerId,
)
from scheduler.state.units import SECOND, Instant, Span, after
from tests.core.fleet import Fleet, Turn

CANVAS = ModelName("canvas")
LIMITS = SessionLimits()


class People:
    """A model, its workers, and people who come and go; `claims`: everybody takes the seat that is offered at once."""

    def __init__(self, seed: int, *, workers: int, seats: int, claims: bool) -> None:
        self.random = random.Random(seed)
        self.fleet = Fleet()
        self.seats = seats
        self.claims = claims
        self.streams = 0
        self.workers: dict[WorkerId, int] = {}
        self.people: dict[int, Connection] = {}
        self.numbers = 0
        self.offered: dict[SessionId, OfferSeat] = {}
        self.promised: dict[SessionId, Instant] = {}
        self.met: set[type[Record]] = set()
        limits = replace(LIMITS, idle=Span(3600 * SECOND))
        model = Model(name=CANVAS, owner=UserName("alice"), limits=limits, chosen=("idle",))
        self.do(ServeRequested(at=self.now, model=model))
        for number in range(workers):
            self.join_worker(WorkerId(f"w{number}"))

    @property
    def now(self) -> Instant:
        return self.fleet.now

    def do(self, event: SessionEvent) -> None:
        self.follow(self.fleet.take_up(event))

    def follow(self, turn: Turn) -> None:
        for record in turn.records:
            self.met.add(type(record))
            assert tell(record).startswith(type(record).__name__)
            assert sentence(record)[0].islower()
        for command in turn.session_commands:
            if isinstance(command, TellPlace) and command.bound is not None:
                self.promised.setdefault(command.session, command.bound)
            if isinstance(command, OfferSeat):
                self.offered[command.session] = command
        self.check()
        if self.claims:
            for offer in [each for each in turn.session_commands if isinstance(each, OfferSeat)]:
                promised = self.promised.get(offer.session)
                assert promised is None or turn.at <= promised, f"session {offer.session} was called too late"
                self.claim(offer)

    def check(self) -> None:
        durable, live = self.fleet.state.durable, self.fleet.state.live.turns
        sessions = durable.sessions
        assert sorted(sessions.by_identity.values()) == sorted(sessions.by_id)
        waiting = [each.id for each in sessions.line(CANVAS)]
        seated = [session for seats in sessions.seated.values() for session in seats]
        assert sorted([*waiting, *seated]) == sorted(sessions.by_id)
        assert sorted(live.turns) == sorted(seated)
        for worker in live.workers.values():
            assert len(sessions.seated.get(worker.id, ())) <= worker.seats
        ready = [each for each in live.workers.values() if each.state is WorkerState.READY]
        free = sum(each.seats - len(sessions.seated.get(each.id, ())) for each in ready)
        starting = sum(each.seats for each in live.workers.values()) - sum(each.seats for each in ready)
        there = [session for session in waiting if live.connection_of(session) is not None]
        assert not (free and there), "a seat is free and somebody waits who is there"
        claimed = [turn for turn in live.turns.values() if turn.started_at is not None]
        limited = sum(1 for turn in claimed if turn.ends_at is not None)
        assert limited == min(len(claimed), max(0, len(there) - starting))
        assert set(live.connections.values()) <= sessions.by_id.keys()

    def claim(self, offer: OfferSeat, *, since_input: int = 0) -> None:
        turn = self.fleet.state.live.turns.turns.get(offer.session)
        age = 0 if turn is None or turn.started_at is None else self.now - turn.started_at
        seen = ReportedTurn(session=offer.session, epoch=offer.epoch, age=Span(age), since_input=Span(since_input))
        self.report(offer.worker, seen)

    def report(self, worker: WorkerId, *turns: ReportedTurn) -> None:
        stream = self.workers.get(worker, 0)
        self.do(
            WorkerReported(
                at=self.now, worker=worker, stream=stream, state=WorkerState.READY, turns=turns, seats=self.seats
            )
        )

    # --- what happens

    def join_worker(self, worker: WorkerId) -> None:
        self.streams += 1
        self.workers[worker] = self.streams
        self.do(
            WorkerJoined(
                at=self.now,
                worker=worker,
                model=CANVAS,
                endpoint="h:1",
                stream=self.streams,
                by=UserName("alice"),
            )
        )
        self.report(worker)

    def lose_worker(self, worker: WorkerId) -> None:
        """Before or behind that a gateway says, of some, that a step of theirs was under way."""
        there = [offer for offer in self.offered.values() if offer.worker == worker]
        before = [offer for offer in there if offer.session % 3 == 0]
        behind = [offer for offer in there if offer.session % 3 == 1]
        self.break_steps(before)
        self.lose_stream(worker)
        self.break_steps(behind)

    def break_steps(self, offers: Iterable[OfferSeat]) -> None:
        for offer in offers:
            digest = self.random.choice(("", "a1b2"))
            self.do(
                StepBroke(at=self.now, connection=offer.connection, epoch=offer.epoch, input=digest, has_frame=True)
            )

    def lose_stream(self, worker: WorkerId) -> None:
        self.do(WorkerLost(at=self.now, worker=worker, stream=self.workers.pop(worker)))

    def join(self, person: int) -> None:
        self.numbers += 1
        connection = Connection(gateway=1, number=self.numbers)
        self.people[person] = connection
        self.do(
            JoinRequested(
                at=self.now,
                connection=connection,
                model=CANVAS,
                identity=Identity(f"p{person}"),
                key_digest=f"key {self.numbers}",
            )
        )

    def leave(self, person: int, *, is_final: bool) -> None:
        self.do(LeaveRequested(at=self.now, connection=self.people[person], is_final=is_final))

    def lose(self, person: int) -> None:
        self.do(ConnectionLost(at=self.now, connection=self.people[person]))

    def end(self, session: SessionId) -> None:
        offer = self.offered.get(session)
        if offer is not None and offer.worker in self.workers:
            self.do(
                TurnClosed(
                    at=self.now,
                    worker=offer.worker,
                    stream=self.workers[offer.worker],
                    session=session,
                    epoch=offer.epoch - self.random.choice((0, 0, 1)),
                    reason=EndReason.MODEL_FAILED,
                )
            )

    def advance(self, span: int) -> None:
        end = after(self.now, span)
        while self.now < end:
            for turn in self.fleet.advance(min(SECOND, end - self.now)):
                self.follow(turn)


MET: set[type[Record]] = set()
NOT_MET: set[type[Record]] = {ModelStopped, ModelReady, WorkerDied, ModelFailed, ModelUpdated, UpdateFailed}
"""These are met in test_serving.py, or in transcripts."""


def test_every_kind_of_record_of_a_session_is_met_and_told() -> None:
    for seed in range(40):
        if set(get_args(SessionRecord)) - NOT_MET <= MET:
            return
        test_lines_and_seats_hold_together_whatever_happens(seed)
    pytest.fail(f"never met: {set(get_args(SessionRecord)) - NOT_MET - MET}")


@pytest.mark.parametrize("seed", range(40))
def test_lines_and_seats_hold_together_whatever_happens(seed: int) -> None:
    people = People(seed, workers=2, seats=2, claims=False)
    choose = people.random
    for _ in range(150):
        person = choose.randrange(12)
        match choose.randrange(10):
            case 0 | 1 | 2:
                people.join(person)
            case 3 if person in people.people:
                people.leave(person, is_final=choose.random() < 0.5)
            case 4 if person in people.people:
                people.lose(person)
            case 5 | 6 if people.offered:
                people.claim(choose.choice(list(people.offered.values())), since_input=choose.randrange(30 * SECOND))
            case 7 if people.offered:
                people.end(choose.choice(list(people.offered)))
            case 8:
                worker = WorkerId(f"w{choose.randrange(3)}")
                if worker in people.workers:
                    people.lose_worker(worker)
                else:
                    people.join_worker(worker)
            case _:
                people.advance(choose.randrange(1, 20 * SECOND))
    MET.update(people.met)
    # Nobody comes back: within the times that are kept, everybody is gone.
    for person in people.people:
        people.lose(person)
    people.advance(200 * SECOND)
    assert not people.fleet.state.durable.sessions.by_id


@pytest.mark.parametrize("seed", range(25))
def test_a_bound_is_kept_while_every_seat_is_claimed_and_no_worker_is_lost(seed: int) -> None:
    people = People(seed, workers=1 + seed % 3, seats=1 + seed % 2, claims=True)
    choose = people.random
    for person in range(30):
        people.join(person)
        if choose.random() < 0.2:
            people.leave(choose.randrange(person + 1), is_final=True)
        people.advance(choose.randrange(1, 40 * SECOND))
    people.advance(1800 * SECOND)
    assert len(people.promised) > 5
    assert not list(people.fleet.state.durable.sessions.line(CANVAS))


def test_a_connection_is_of_one_person() -> None:
    people = People(1, workers=1, seats=1, claims=True)
    people.join(1)
    taken = JoinRequested(
        at=people.now, connection=people.people[1], model=CANVAS, identity=Identity("other"), key_digest="another key"
    )
    turn = people.fleet.take_up(taken)
    assert isinstance(turn.reply, Refused)
    assert not turn.records
    people.leave(1, is_final=True)
    assert not people.fleet.state.durable.sessions.by_id


def test_an_older_epoch_does_nothing() -> None:
    people = People(1, workers=1, seats=1, claims=True)
    people.join(1)
    session = next(iter(people.offered))
    people.join(1)
    assert people.offered[session].epoch == 2
    stale = TurnClosed(
        at=people.now,
        worker=WorkerId("w0"),
        stream=people.workers[WorkerId("w0")],
        session=session,
        epoch=1,
        reason=EndReason.LEFT,
    )
    people.do(stale)
    assert people.fleet.state.durable.sessions.by_id[session].state == Granted(worker=WorkerId("w0"))
    people.do(replace(stale, epoch=2))
    assert not people.fleet.state.durable.sessions.by_id


def test_an_older_stream_of_a_worker_ends_no_turn() -> None:
    people = People(1, workers=1, seats=1, claims=True)
    people.join(1)
    (session,) = people.offered
    worker = WorkerId("w0")
    closed = TurnClosed(
        at=people.now,
        worker=worker,
        stream=people.workers[worker],
        session=session,
        epoch=people.offered[session].epoch,
        reason=EndReason.LEFT,
    )
    people.do(replace(closed, stream=closed.stream - 1))
    assert people.fleet.state.durable.sessions.by_id[session].state == Granted(worker=worker)
    people.do(closed)
    assert not people.fleet.state.durable.sessions.by_id


turns_of_a_model = st.dictionaries(
    st.integers(1, 50).map(SessionId),
    st.builds(
        TurnNow,
        st.integers(0, 100 * SECOND).map(Instant),
        st.none() | st.integers(100 * SECOND, 200 * SECOND).map(Instant),
    ),
    max_size=12,
)


@given(turns_of_a_model, st.integers(0, 20), st.integers(0, 5))
def test_as_many_turns_are_limited_as_people_wait_for_whom_there_is_no_seat(
    turns: dict[SessionId, TurnNow], waiting: int, free: int
) -> None:
    now = Instant(100 * SECOND)
    changes = limit_changes(turns, waiting, free, LIMITS, now)
    before = {session for session, turn in turns.items() if turn.ends_at is not None}
    after_it = (before | changes.limited.keys()) - set(changes.lifted)
    assert len(after_it) == min(len(turns), max(0, waiting - free))
    assert not before & changes.limited.keys(), "an end that was told is never moved"
    for session, ends_at in changes.limited.items():
        assert ends_at >= now + LIMITS.turn_warning
        assert ends_at >= turns[session].started_at + LIMITS.turn
    others = set(turns.keys() - after_it - before)
    if changes.limited:
        assert all(turns[one].started_at <= turns[other].started_at for one in changes.limited for other in others), (
            "the longest are limited first"
        )
    kept = [turns[session].ends_at for session in before - set(changes.lifted)]
    gone = [turns[session].ends_at for session in changes.lifted]
    assert all((one or 0) >= (other or 0) for one in gone for other in kept), "the latest ends are lifted first"


def test_the_bound_of_a_place_is_the_nth_release() -> None:
    now = Instant(0)
    seats = [SeatNow(turn=TurnNow(Instant(-30 * SECOND), None)), SeatNow(called_at=Instant(-5 * SECOND))]
    assert longest_turn(LIMITS) == 81 * SECOND
    assert [at // SECOND for at in bounds(seats, 4, LIMITS, now)] == [41, 76, 122, 157]
    assert bounds([], 4, LIMITS, now) == []


def test_a_turn_without_an_end_counts_behind_those_that_have_one_however_long_it_has_lasted() -> None:
    now = Instant(0)
    old, limited = TurnNow(Instant(-600 * SECOND), None), TurnNow(Instant(0), Instant(60 * SECOND))
    first, second = bounds([SeatNow(turn=old), SeatNow(turn=limited)], 2, LIMITS, now)
    assert first == second == released_by(SeatNow(turn=limited), LIMITS, now)


def test_as_many_workers_are_wanted_as_seat_everybody() -> None:
    scale = Scale(min_workers=1, max_workers=4, seats=2)
    assert [workers_wanted(scale, turns, waiting) for turns, waiting in ((0, 0), (2, 0), (2, 1), (8, 90))] == [
        1,
        1,
        2,
        4,
    ]
    assert may_shrink_at(Instant(0), None) == Instant(60 * SECOND)
    assert may_shrink_at(Instant(0), Instant(50 * SECOND)) == Instant(80 * SECOND)


def test_the_model_with_the_fewest_people_a_worker_gives_one_up() -> None:
    busy = Load(turns=4, waiting=4, workers=2, min_workers=1)
    idle = Load(turns=1, waiting=0, workers=2, min_workers=1)
    least = Load(turns=0, waiting=0, workers=1, min_workers=1)
    assert gives_up_a_worker({"busy": busy, "idle": idle, "least": least}) == "idle"
    assert gives_up_a_worker({"least": least}) is None
