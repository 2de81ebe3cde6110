"""What must be true of lines, seats and turns, seen from above: promises are remembered, places compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scheduler.core.sessions.turns import NEWS_INTERVAL
from scheduler.core.story import tell
from scheduler.ports import Commit
from scheduler.state.durable import Entity, EntityKey
from scheduler.state.jobs import Stopping
from scheduler.state.sessions.commands import OfferSeat, SessionCommand, TellEnd, TellPlace
from scheduler.state.sessions.events import Connection, WorkerState
from scheduler.state.sessions.records import (
    ClaimMissed,
    ModelServed,
    SessionEnded,
    SessionJoined,
    SessionRequeued,
    TicketRenewed,
    TurnGranted,
)
from scheduler.state.sessions.session import EndReason, Granted, ModelName, Session, SessionId, Waiting, WorkerId
from scheduler.state.sessions.turns import WorkerLive
from scheduler.state.state import State
from scheduler.state.units import MILLISECOND, SECOND, Instant, Span
from tests.simulation.checks import Checks
from tests.simulation.disks import SimulatedOutputs, SimulatedStore
from tests.simulation.left import SimulatedPlace
from tests.simulation.session_world import SessionWorld
from tests.simulation.world import Broken

if TYPE_CHECKING:
    from tests.simulation.machine import Machine
    from tests.simulation.scheduler import SchedulerProcess

STALL_SPAN = Span(100 * MILLISECOND)
"""A commit that takes longer holds up the whole scheduler: no bound can allow for that."""

NEWS_SPAN = Span(NEWS_INTERVAL + SECOND)
"""After something that no bound allows for, everybody is told a new one within so long."""

UNKNOWN_SECONDS_MAX = 100.0
"""By then a worker is told to end a turn that nobody knows: a commit takes 70 s at most, and a broken stream 20 s."""


@dataclass(frozen=True, slots=True)
class Promise:
    """A bound that one page was told. A scheduler that starts again knows of none, and pages say that it was away."""

    term: int
    connection: Connection
    bound: Instant


class SessionChecks(Checks):
    """The eye of the sessions' simulation."""

    def __init__(
        self,
        world: SessionWorld,
        store: SimulatedStore,
        outputs: SimulatedOutputs,
        machines: Mapping[str, Machine],
        place: SimulatedPlace,
    ) -> None:
        super().__init__(world, store, outputs, machines, place)
        self._sessions_world = world
        self.alive: dict[SessionId, ModelName] = {}
        """Every session that is stored and has not ended."""
        self.joined = 0
        self.ended = 0
        self._lines: dict[ModelName, list[SessionId]] = {}
        self._epochs: dict[SessionId, int] = {}
        self._missed: dict[ModelName, set[SessionId]] = {}
        self._promised: dict[SessionId, Promise] = {}
        self._upset_at: dict[ModelName, Instant] = {}
        self._ready_seats: dict[ModelName, int] = {}
        self._fronted: set[SessionId] = set()
        self._unknown_since: dict[tuple[str, str, int], float] = {}

    # --- what is stored

    def committed(self, process: SchedulerProcess, before: Mapping[EntityKey, Entity], commit: Commit) -> None:
        super().committed(process, before, commit)
        if self._world.is_traced:
            for record in commit.records:
                self._world.note("scheduler: stores {}", tell(record))
        state, now = process.state, process.engine.now()
        if now - commit.at > STALL_SPAN:
            self._upset_at = dict.fromkeys(state.durable.models, now)
        touched: dict[ModelName, None] = {}
        requeued: set[SessionId] = set()
        granted: list[TurnGranted] = []
        ended: set[SessionId] = set()
        for record in commit.records:
            match record:
                case SessionJoined(session=session):
                    self.joined += 1
                    self.alive[session.id] = session.model
                    touched[session.model] = None
                case SessionEnded(session=session_id, model=model, reason=reason, message=message):
                    if not isinstance(reason, EndReason) or not message:
                        raise Broken(f"session {session_id} ends and nobody knows why")
                    if "workers went down" in message and f"s{session_id}" not in self._sessions_world.broken_steps:
                        raise Broken(f"session {session_id} is blamed for workers, and nothing of it was under way")
                    self.ended += 1
                    ended.add(session_id)
                    del self.alive[session_id]
                    self._sessions_world.ended[f"s{session_id}"] = reason
                    decided_ago_s = (now - commit.at) / SECOND
                    self._sessions_world.end_decided_at[f"s{session_id}"] = self._world.now - decided_ago_s
                    touched[model] = None
                    self._promised.pop(session_id, None)
                case SessionRequeued(session=session_id, model=model):
                    self._fronted.add(session_id)
                    requeued.add(session_id)
                    touched[model] = None
                    self._upset_at[model] = now
                case ClaimMissed(session=session_id, model=model):
                    self._missed.setdefault(model, set()).add(session_id)
                    requeued.add(session_id)
                    touched[model] = None
                    self._upset_at[model] = now
                case TurnGranted(session=session_id, model=model, epoch=epoch):
                    self._rises(session_id, epoch)
                    granted.append(record)
                    touched[model] = None
                case TicketRenewed(session=session_id, epoch=epoch):
                    self._rises(session_id, epoch)
                case ModelServed(model=served):
                    touched[served.name] = None
                case _:
                    pass
        gone = {SessionId(int(key)) for kind, key in commit.deletes if kind == "session"}
        if gone - ended:
            raise Broken(f"sessions {gone - ended} are gone and have not ended")
        for model in touched:
            self._line_moves_by_the_rules(state, model, requeued)
        for record in granted:
            self._is_next(state, record)
        self._seats_hold(state)

    def _rises(self, session: SessionId, epoch: int) -> None:
        if epoch <= self._epochs.get(session, 0):
            raise Broken(f"session {session} gets epoch {epoch} behind {self._epochs[session]}")
        self._epochs[session] = epoch

    def _line_moves_by_the_rules(self, state: State, model: ModelName, requeued: set[SessionId]) -> None:
        """Who stays in the line keeps the order; who joins stands behind all others."""
        line = [session.id for session in state.durable.sessions.line(model)]
        # Ids rise as people join for the first time.
        by_rule = sorted(line, key=lambda each: (each not in self._fronted, each))
        if line != by_rule:
            raise Broken(f"the line of {model} is {line}, and should be {by_rule}")
        before = self._lines.get(model, [])
        stays = set(line) - requeued
        old = [each for each in before if each in stays]
        known = set(old)
        new = [each for each in line if each in known]
        if old != new:
            raise Broken(f"the line of {model} was {before} and is {line}, though nobody moved")
        joined = [each for each in line if each not in known and each not in requeued]
        if joined and line[-len(joined) :] != joined:
            raise Broken(f"in the line of {model}, {joined} joined and do not stand behind all others: {line}")
        self._lines[model] = line

    def _is_next(self, state: State, record: TurnGranted) -> None:
        """Who is called is the first who is there, but for who just let one pass or can not reach the worker."""
        sessions, live = state.durable.sessions, state.live.turns
        missed = self._missed.pop(record.model, set())
        called = sessions.by_id.get(record.session)
        if called is None:
            return
        for other in sessions.line(record.model):
            if (other.standing, other.joined_at, other.id) >= (called.standing, called.joined_at, called.id):
                return
            if live.connection_of(other.id) is not None and other.id not in missed and other.id not in live.avoided:
                raise Broken(f"session {record.session} is called before session {other.id}, who is there and in front")

    def _seats_hold(self, state: State) -> None:
        """No worker has more than its seats, no seat is free while somebody waits, and limits are as many as wait."""
        durable, live = state.durable, state.live.turns
        for name in durable.models:
            workers = [each for each in live.workers_of(name) if each.reports]
            for worker in workers:
                taken = len(durable.sessions.seated.get(worker.id, ()))
                if taken > worker.seats and worker.state is not WorkerState.LOADING:
                    raise Broken(f"{worker.id} is given {taken} sessions and has {worker.seats} seats")
            ready = [each for each in workers if each.state is WorkerState.READY and not _is_leaving(state, each)]
            free = [each for each in ready if len(durable.sessions.seated.get(each.id, ())) < each.seats]
            if not free:
                continue
            for session in durable.sessions.line(name):
                avoided, _ = live.avoided.get(session.id, (None, None))
                reachable = any(each.id != avoided for each in free)
                if live.connection_of(session.id) is not None and reachable:
                    raise Broken(f"session {session.id} waits for {name} and {free[0].id} has a free seat")

    def began(self, process: SchedulerProcess) -> None:
        """A scheduler has loaded: nobody is lost by it."""
        sessions = process.state.durable.sessions
        if sessions.by_id.keys() != self.alive.keys():
            raise Broken(f"after a start sessions {sessions.by_id.keys() ^ self.alive.keys()} are not as they were")
        for model, line in self._lines.items():
            if [each.id for each in sessions.line(model)] != line:
                raise Broken(f"after a start the line of {model} is not {line}")

    # --- what is told

    def session_told(self, process: SchedulerProcess, command: SessionCommand) -> None:
        """Something leaves for a gateway or a worker."""
        now = process.engine.now()
        self._world.note("scheduler: tells {}", command)
        match command:
            case TellPlace():
                self._place_told(process.store.term, command)
            case OfferSeat(session=session):
                self._called(process.store.term, session, now)
            case TellEnd(session=session, message=message):
                if not message:
                    raise Broken(f"session {session} is told no reason")
            case _:
                pass

    def _place_told(self, term: int, told: TellPlace) -> None:
        if told.bound is None:
            self._promised.pop(told.session, None)
            if not told.bound_cause:
                raise Broken(f"session {told.session} is told no bound and not why")
            return
        before = self._promised.get(told.session)
        if before is not None and (before.term, before.connection) == (term, told.connection):
            is_later = told.bound > before.bound + SECOND
            if is_later and not told.bound_cause:
                raise Broken(f"session {told.session} is told a bound later by {told.bound - before.bound} us, not why")
        self._promised[told.session] = Promise(term, told.connection, told.bound)

    def _called(self, term: int, session: SessionId, now: Instant) -> None:
        promise, model = self._promised.pop(session, None), self.alive.get(session)
        if promise is not None and promise.term == term and model is not None:
            self._is_kept(session, promise, model, now)

    def _is_kept(self, session: SessionId, promise: Promise, model: ModelName, now: Instant) -> None:
        upset_at = self._upset_at.get(model)
        if now <= promise.bound or (upset_at is not None and now - upset_at <= NEWS_SPAN):
            return
        late = (now - promise.bound) / SECOND
        raise Broken(f"session {session} waits for {model} {late:.1f} s longer than it was told")

    def look(self, process: SchedulerProcess) -> None:
        """Now and then: nobody waits beyond what they were told. (Who is away was told nothing that holds.)"""
        state, now = process.state, process.engine.now()
        if process.waiting or process.engine.store_error:
            self._upset_at = dict.fromkeys(state.durable.models, now)
        self._turns_are_known(state)
        self._idle_times_run()
        for model in state.durable.models:
            ready = sum(each.seats for each in state.live.turns.workers_of(model) if each.state is WorkerState.READY)
            if ready < self._ready_seats.get(model, 0):
                self._upset_at[model] = now
            self._ready_seats[model] = ready
        for session_id, promise in list(self._promised.items()):
            session = state.durable.sessions.by_id.get(session_id)
            if session is None or state.live.turns.connection_of(session_id) != promise.connection:
                del self._promised[session_id]
            elif isinstance(session.state, Waiting) and promise.term == process.store.term:
                self._is_kept(session_id, promise, session.model, now)

    def _turns_are_known(self, state: State) -> None:
        """No worker holds a turn for long that the scheduler does not know to be there: its seat would be lost."""
        # By true time: a scheduler that starts anew may have another clock.
        now = self._world.now
        unknown: dict[tuple[str, str, int], float] = {}
        for worker in self._sessions_world.workers.values():
            for turn in worker.turns.live() if worker.is_alive else ():
                session = state.durable.sessions.by_id.get(SessionId(int(turn.session[1:])))
                is_known = session is not None and session.state == Granted(worker=WorkerId(worker.start))
                key = (worker.start, turn.session, turn.epoch)
                if not is_known and worker.is_connected:
                    unknown[key] = self._unknown_since.get(key, now)
        self._unknown_since = unknown
        for (start, name, epoch), since in unknown.items():
            if now - since > UNKNOWN_SECONDS_MAX:
                raise Broken(f"{start} has {name}.{epoch} for {now - since:.0f} s, and nobody knows")

    def _idle_times_run(self) -> None:
        """Who has a picture and does nothing has a time that comes to its end: else their seat would be lost."""
        for worker in self._sessions_world.workers.values():
            if worker.is_alive and (resting := worker.resting()):
                raise Broken(f"{worker.start} shows {resting[0]} a picture, and its idle time does not run")

    # --- the end

    def left_over(self, process: SchedulerProcess) -> Iterator[str]:
        """Sessions that have not ended; nothing when all have."""
        live, by_id = process.state.live.turns, process.state.durable.sessions.by_id
        if self.alive and not by_id:
            yield f"the end of {sorted(self.alive)} is not stored"
        for each in by_id.values():
            yield f"{_described(each)}, {live.connection_of(each.id)}"


def _is_leaving(state: State, worker: WorkerLive) -> bool:
    """Whether a worker was told to end, and takes nobody any more, whatever it said last."""
    job = None if worker.job is None else state.durable.jobs.get(worker.job)
    return worker.job is not None and (job is None or job.drained_at is not None or isinstance(job.state, Stopping))


def _described(session: Session) -> str:
    return f"session {session.id} of {session.identity} is {session.state} for {session.model}"
