"""The lines, once a turn of the loop: who is called, whose turn is limited, whose time is over, who is told what.

`settle` is to sessions what the pass is to jobs. Rules: docs/rules/sessions.md 1.1 to 1.12.
"""

from collections.abc import Iterator

from ...policy.sessions.turns import (
    CLAIM_SPAN,
    SeatNow,
    TurnNow,
    bounds,
    end_if_limited,
    estimates,
    limit_changes,
    next_called,
)
from ...state.sessions.commands import EndTurn, SessionCommand, TellPlace
from ...state.sessions.events import WorkerState
from ...state.sessions.records import ClaimMissed, SessionRecord, TurnGranted
from ...state.sessions.session import EndReason, Granted, Model, Session, SessionId, SessionLimits
from ...state.sessions.turns import (
    PLACE_KEPT,
    TURN_KEPT,
    AvoidanceOver,
    IdleNoticed,
    LimitCause,
    Limited,
    LimitLifted,
    Note,
    PlaceNotice,
    PlaceNoticed,
    Settled,
    Stage,
    StageReached,
    TurnLive,
    WorkerLive,
)
from ...state.state import State
from ...state.units import SECOND, Instant, Span, after
from ..decision import NOTHING, Decision, together
from ..dependencies import with_consequences
from . import worker_seats
from .decide import end_session, news_for, offer, stage_news, without_missing_worker
from .worker_seats import WorkerChanges
from .workers import models_due, see_to_workers

CLAIMS_MISSED_MAX = 2
"""Offers that a person may leave unclaimed; then the session ends."""

NEWS_INTERVAL = Span(5 * SECOND)
"""How often, at most, people behind the first ten are told where they stand."""

OWN_SEATS = "others of your address have as many turns as one address may have at a time"
"""Why nobody can say when somebody is called whose address has its seats."""

FIRST_PLACES = 10
"""Places whose people are told at once when anything changes."""

IDLE_TOLD_WITHIN = Span(SECOND)
"""An end for want of input that moves by less is not told again: so much a report may take on its way."""

REPORTED_WITHIN = Span(2 * SECOND)
"""A worker that holds turns reports once in a second: one that was not heard for so long knows more than it told."""


def session_deadlines(state: State) -> Iterator[Instant]:
    """When time alone changes something for a session."""
    live, sessions = state.live.turns, state.durable.sessions
    for session_id in live.away:
        yield _kept_until(state, session_id)
    for session_id, turn in live.turns.items():
        if turn.worker not in live.missing:
            heard_at = _heard_at(state, turn)
            yield from _turn_deadlines(turn, _limits(state, sessions.by_id[session_id]), heard_at)
    for _, until in live.avoided.values():
        yield until
    for since in live.missing.values():
        yield after(since, PLACE_KEPT)
    if sessions.lines:
        yield after(live.swept_at, NEWS_INTERVAL)


def _heard_at(state: State, turn: TurnLive) -> Instant:
    worker = state.live.turns.workers.get(turn.worker)
    return Instant(0) if worker is None or not worker.reports else worker.heard_at


def _turn_deadlines(turn: TurnLive, limits: SessionLimits, heard_at: Instant) -> Iterator[Instant]:
    if turn.started_at is None:
        yield after(turn.called_at, CLAIM_SPAN)
        return
    if turn.renewed_at is not None:
        yield after(turn.renewed_at, TURN_KEPT)
    if turn.ends_at is not None:
        match turn.stage:
            case Stage.NOTHING | Stage.LIMITED:
                yield after(turn.ends_at, -limits.turn_warning)
            case Stage.WARNED:
                yield turn.ends_at
            case Stage.GRACE:
                yield after(turn.ends_at, limits.grace)
    if turn.input_at is not None:
        warned = Span(limits.idle - limits.idle_warning if turn.idle_told is None else limits.idle)
        until = after(turn.input_at, warned)
        if _tells_until(heard_at, until):
            yield until
    if _is_idle_news(turn, limits):
        yield turn.called_at


def _is_idle_news(turn: TurnLive, limits: SessionLimits) -> bool:
    """Whether what a person was told of the end for want of input is true no longer."""
    if turn.idle_told is None:
        return False
    return turn.input_at is None or after(turn.input_at, limits.idle) > after(turn.idle_told, IDLE_TOLD_WITHIN)


def _tells_until(heard_at: Instant, until: Instant) -> bool:
    """Whether a worker was heard so lately that it would have told of input. One that is cut off ends nobody's turn."""
    return heard_at >= after(until, -REPORTED_WITHIN)


def _limits(state: State, session: Session) -> SessionLimits:
    return state.durable.models[session.model].limits


def _kept_until(state: State, session_id: SessionId) -> Instant:
    """How long it is waited for somebody who is away: never longer than the turn."""
    presence, turn = state.live.turns.presence[session_id], state.live.turns.turns.get(session_id)
    until = after(presence.away_since, presence.kept_for)
    return until if turn is None or turn.ends_at is None else min(until, turn.ends_at)


def on_time(state: State, at: Instant) -> Decision:
    """Carry out every deadline of a session that has come."""
    live, sessions = state.live.turns, state.durable.sessions
    decisions: list[Decision] = []
    ended: set[SessionId] = set()
    for session_id in live.away:
        if _kept_until(state, session_id) <= at:
            ended.add(session_id)
            has_closed = live.presence[session_id].has_closed
            reason = EndReason.LEFT if has_closed else EndReason.DISCONNECTED
            decisions.append(end_session(state, at, sessions.by_id[session_id], reason))
    for session_id, turn in live.turns.items():
        if turn.renewed_at is not None and after(turn.renewed_at, TURN_KEPT) <= at and session_id not in ended:
            ended.add(session_id)
            message = "the way to the worker was away for too long"
            decisions.append(end_session(state, at, sessions.by_id[session_id], EndReason.DISCONNECTED, message))
        if session_id not in ended and turn.worker not in live.missing:
            session = sessions.by_id[session_id]
            decisions.append(_on_turn(state, at, session, turn, _limits(state, session)))
    for worker, since in live.missing.items():
        if after(since, PLACE_KEPT) <= at:
            decisions.append(without_missing_worker(state, at, worker, but=ended))
    for session_id, (_, until) in live.avoided.items():
        if until <= at and session_id not in ended:
            decisions.append(Decision(notes=(AvoidanceOver(session=session_id),)))
    return together(*decisions)


def _on_turn(state: State, at: Instant, session: Session, turn: TurnLive, limits: SessionLimits) -> Decision:
    if turn.started_at is None:
        if at < after(turn.called_at, CLAIM_SPAN):
            return NOTHING
        if session.claims_missed + 1 >= CLAIMS_MISSED_MAX:
            return end_session(state, at, session, EndReason.CLAIM_TIMEOUT)
        # The ticket lives longer than the offer: it must not open the seat that somebody else is offered next.
        void = EndTurn(worker=turn.worker, session=session.id, epoch=session.epoch, reason=EndReason.CLAIM_TIMEOUT)
        missed = ClaimMissed(at=at, session=session.id, model=session.model)
        return Decision(records=(missed,), session_commands=(void,))
    if turn.ends_at is not None and at >= after(turn.ends_at, limits.grace):
        reason = EndReason.TURN_ENDED if turn.cause is LimitCause.LINE else EndReason.DRAINING
        return end_session(state, at, session, reason)
    heard_at = _heard_at(state, turn)
    idle_at = None if turn.input_at is None else after(turn.input_at, limits.idle)
    if idle_at is not None and at >= idle_at and _tells_until(heard_at, idle_at):
        return end_session(state, at, session, EndReason.IDLE)
    notes: list[Note] = []
    commands: list[SessionCommand] = []
    stage = _stage_at(turn, limits, at)
    if stage is not None and stage > turn.stage:
        notes.append(StageReached(session=session.id, stage=stage))
        commands.extend(news_for(state, session.id, *stage_news(turn, stage, limits)))
    idle_from = None if turn.input_at is None else after(turn.input_at, limits.idle - limits.idle_warning)
    is_idle = idle_from is not None and at >= idle_from
    if is_idle and turn.idle_told is None and idle_from is not None:
        is_idle = _tells_until(heard_at, idle_from)
    if is_idle != (turn.idle_told is not None) or _is_idle_news(turn, limits):
        ends_at = idle_at if is_idle else None
        notes.append(IdleNoticed(session=session.id, ends_at=ends_at))
        commands.extend(_told_idle(state, session.id, ends_at))
    return Decision(session_commands=tuple(commands), notes=tuple(notes))


def _told_idle(state: State, session: SessionId, ends_at: Instant | None) -> tuple[SessionCommand, ...]:
    if ends_at is None:
        return news_for(state, session, "IDLE_OVER", "the turn goes on", None)
    return news_for(state, session, "IDLE_WARNING", "still there? the turn ends without input", ends_at)


def _stage_at(turn: TurnLive, limits: SessionLimits, at: Instant) -> Stage | None:
    if turn.ends_at is None:
        return None
    if at >= turn.ends_at:
        return Stage.GRACE
    return Stage.WARNED if at >= after(turn.ends_at, -limits.turn_warning) else Stage.LIMITED


def settle(state: State, at: Instant) -> Decision:
    """See to every line that something happened to: seats first, then limits, then news."""
    live = state.live.turns
    is_sweep = bool(state.durable.sessions.lines) and at >= after(live.swept_at, NEWS_INTERVAL)
    names = tuple(state.durable.models) if is_sweep else tuple(dict.fromkeys((*live.dirty, *models_due(state, at))))
    if not names:
        return NOTHING
    workers = with_consequences(state, see_to_workers(state, names, at))
    changes = worker_seats.changes_of(workers)
    # A model may have given up a worker for another one.
    givers = (state.durable.jobs[job].spec.serves for job in changes.going)
    names = tuple(dict.fromkeys((*names, *givers)))
    models = (state.durable.models[name] for name in names if name in state.durable.models)
    decisions = [_Line(state, model, at, changes).settled(is_sweep=is_sweep) for model in models]
    return together(*decisions, workers, Decision(notes=(Settled(models=names, at=at, is_sweep=is_sweep),)))


class _Line:
    """One model's line as it is seen to."""

    def __init__(self, state: State, model: Model, at: Instant, changes: WorkerChanges) -> None:
        self.state = state
        self.changes = changes
        self.starting_seats = worker_seats.starting_seats(state, model, at, changes)
        self.model = model
        self.at = at
        self.live = state.live.turns
        self.line = list(state.durable.sessions.line(model.name))
        self.workers = sorted(self.live.workers_of(model.name), key=lambda worker: worker.id)
        self.free = {worker.id: self._free_seats(worker) for worker in self.workers}
        self.granted: list[tuple[Session, WorkerLive]] = []
        self.records: list[SessionRecord] = []
        self.commands: list[SessionCommand] = []
        self.notes: list[Note] = []

    def _free_seats(self, worker: WorkerLive) -> int:
        taken = len(self.state.durable.sessions.seated.get(worker.id, ()))
        is_open = worker.state is WorkerState.READY and not worker_seats.takes_nobody(self.state, worker, self.changes)
        return max(0, worker.seats - taken) if is_open else 0

    def settled(self, *, is_sweep: bool) -> Decision:
        """What follows, in order."""
        self._call()
        self._limit()
        self._tell(is_sweep=is_sweep)
        return Decision(records=tuple(self.records), session_commands=tuple(self.commands), notes=tuple(self.notes))

    def _call(self) -> None:
        """Offer each free seat to the first who is there."""
        yields = self.live.yields
        while any(self.free.values()):
            called = next_called((each.id for each in self.line), self._may_be_called, yields)
            if called is None:
                return
            session = self.state.durable.sessions.by_id[called]
            self.line.remove(session)
            yields = {}
            worker = self._worker_for(session.id)
            assert worker is not None
            self.free[worker.id] -= 1
            self.granted.append((session, worker))
            epoch = session.epoch + 1
            self.records.append(
                TurnGranted(at=self.at, session=session.id, model=self.model.name, worker=worker.id, epoch=epoch)
            )
            connection = self.live.connection_of(session.id)
            assert connection is not None
            self.commands.extend(offer(session, worker.id, epoch, connection))

    def _may_be_called(self, session: SessionId) -> bool:
        is_there = self.live.connection_of(session) is not None
        return is_there and not self._has_its_seats(session) and self._worker_for(session) is not None

    def _has_its_seats(self, session: SessionId) -> bool:
        """Whether as many of a person's address have a turn as may at a time."""
        most, address = self.model.limits.seats_per_address, self.live.addresses.get(session)
        if not most or address is None:
            return False
        called = {each.id for each, _ in self.granted}
        by_id = self.state.durable.sessions.by_id
        near = (by_id[each] for each in self.live.at_address[address])
        seated = sum(
            1
            for each in near
            if each.model == self.model.name and (isinstance(each.state, Granted) or each.id in called)
        )
        return seated >= most

    def _worker_for(self, session: SessionId) -> WorkerLive | None:
        """The worker with the most free seats that the person has not failed to reach."""
        avoided, _ = self.live.avoided.get(session, (None, None))
        fit = [worker for worker in self.workers if self.free[worker.id] and worker.id != avoided]
        return max(fit, key=lambda worker: self.free[worker.id], default=None)

    def _turns(self) -> dict[SessionId, TurnLive]:
        """The granted seats of the model on workers that are there."""
        seated = self.state.durable.sessions.seated
        return {
            session_id: self.live.turns[session_id]
            for worker in self.workers
            for session_id in seated.get(worker.id, ())
        }

    def _limit(self) -> None:
        limits = self.model.limits
        draining = {worker.id for worker in self.workers if worker_seats.is_drained(self.state, worker, self.changes)}
        turns: dict[SessionId, TurnNow] = {}
        for session_id, turn in self._turns().items():
            if turn.started_at is None:
                continue
            if turn.worker in draining:
                if turn.cause is not LimitCause.DRAIN:
                    ends_at = turn.ends_at or end_if_limited(turn.started_at, limits, self.at)
                    self._limit_one(session_id, ends_at, LimitCause.DRAIN)
            else:
                turns[session_id] = TurnNow(turn.started_at, turn.ends_at)
        waiting = self._waiting()
        # Who is there and waits was not called: a seat that is free is none for them, they can not reach it.
        free = 0 if waiting else sum(self.free.values())
        changes = limit_changes(turns, waiting, free + self.starting_seats, limits, self.at)
        for session_id, ends_at in changes.limited.items():
            self._limit_one(session_id, ends_at, LimitCause.LINE)
        for session_id in changes.lifted:
            self.notes.append(LimitLifted(session=session_id))
            message = f"{self._why_lifted(waiting)}: the turn has no end"
            self.commands.extend(news_for(self.state, session_id, "TURN_UNLIMITED", message, None))

    def _why_lifted(self, waiting: int) -> str:
        if not waiting:
            return "nobody waits any more"
        return "another worker is being started" if self.starting_seats else "fewer people wait now"

    def _limit_one(self, session_id: SessionId, ends_at: Instant, cause: LimitCause) -> None:
        self.notes.append(Limited(session=session_id, ends_at=ends_at, cause=cause))
        turn = TurnLive(worker=self.live.turns[session_id].worker, called_at=self.at, ends_at=ends_at, cause=cause)
        stage = _stage_at(turn, self.model.limits, self.at)
        assert stage is not None
        if stage is not Stage.LIMITED:
            self.notes.append(StageReached(session=session_id, stage=stage))
        self.commands.extend(news_for(self.state, session_id, *stage_news(turn, stage, self.model.limits)))

    def _waiting(self) -> int:
        """People in the line who are there."""
        return sum(1 for each in self.line if self.live.connection_of(each.id) is not None)

    def _seats(self, *, firm_only: bool = False) -> Iterator[SeatNow]:
        """Every seat of the model that is not starting or going, or free: who waits can not reach a free one.

        `firm_only`: without the turns that have no end, and are given none as long as seats are starting.
        """
        going = {worker.id for worker in self.workers if worker_seats.takes_nobody(self.state, worker, self.changes)}
        turns = {session: turn for session, turn in self._turns().items() if turn.worker not in going}
        yield from (SeatNow(called_at=self.at) for _ in self.granted)
        limited = {note.session: note.ends_at for note in self.notes if isinstance(note, Limited)}
        lifted = {note.session for note in self.notes if isinstance(note, LimitLifted)}
        for session_id, turn in turns.items():
            if turn.started_at is None:
                yield SeatNow(called_at=turn.called_at)
            else:
                ends_at = None if session_id in lifted else limited.get(session_id, turn.ends_at)
                if ends_at is not None or not firm_only:
                    yield SeatNow(turn=TurnNow(turn.started_at, ends_at))

    def _tell(self, *, is_sweep: bool) -> None:
        """Tell who stands first at once, who has news of their own at once, and everybody now and then."""
        length = len(self.line)
        wanted = [
            (place, session)
            for place, session in enumerate(self.line, start=1)
            if self.live.connection_of(session.id) is not None
            and (is_sweep or place <= FIRST_PLACES or _is_due(self.live.told.get(session.id)))
        ]
        if not wanted:
            return
        last = wanted[-1][0]
        seats = list(self._seats())
        promised = self._places_promised()
        firm = seats if promised is None else self._seats(firm_only=True)
        latest = bounds(firm, last if promised is None else min(last, promised), self.model.limits, self.at)
        usual = self.live.turn_spans.get(self.model.name, self.model.limits.turn)
        probable = estimates(seats, last, usual, self.model.limits, self.at)
        cause = self.live.causes.get(self.model.name, "")
        no_bound = "" if len(latest) >= last else self._why_no_bound()
        for place, session in wanted:
            bound = latest[place - 1] if place <= len(latest) else None
            waits_for_own = self._has_its_seats(session.id)
            if waits_for_own:
                bound = None  # it depends on when they leave, and not on the line
            told = self.live.told.get(session.id)
            none = OWN_SEATS if waits_for_own else no_bound
            is_same_cause = bound is not None or (told is not None and told.cause == none)
            if told is not None and is_same_cause and not _is_news(told, place, length, bound):
                continue
            connection = self.live.connection_of(session.id)
            assert connection is not None
            why = none if bound is None else _why_later(told, bound, cause)
            self.notes.append(PlaceNoticed(session=session.id, told=PlaceNotice(place, length, bound, why)))
            self.commands.append(
                TellPlace(
                    connection=connection,
                    session=session.id,
                    place=place,
                    line_length=length,
                    estimate=probable[place - 1] if probable and not waits_for_own else None,
                    bound=bound,
                    bound_cause=why,
                )
            )

    def _places_promised(self) -> int | None:
        """How many of the line have a bound while seats are starting; None where none is, and all have one.

        For as many as those seats no turn is limited: until such a seat is there, or will not be, nobody knows how
        long the last of them wait. The place of who is there is never before the number of those who are.
        """
        return max(0, self._waiting() - self.starting_seats) if self.starting_seats else None

    def _why_no_bound(self) -> str:
        if any(self.free.values()):
            return "the worker that has a free seat could not be reached and is tried again soon"
        return worker_seats.why_no_bound(self.state, self.model, self.at, self.changes)


def _why_later(told: PlaceNotice | None, bound: Instant, cause: str) -> str:
    """What made the bound of a place later; empty where it is not."""
    if told is not None and told.bound is not None and bound > after(told.bound, SECOND):
        return cause or "others stand in front"
    return ""


def _is_due(told: PlaceNotice | None) -> bool:
    return told is None or told.is_due


def _is_news(told: PlaceNotice, place: int, length: int, bound: Instant | None) -> bool:
    if told.is_due or (told.place, told.line_length) != (place, length) or (told.bound is None) != (bound is None):
        return True
    return bound is not None and told.bound is not None and abs(bound - told.bound) > SECOND
