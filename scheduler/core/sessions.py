"""People and workers of models: what a join, a leave, a lost connection or a lost worker means.

Who is called to a free seat, whose turn is limited and who is told what follows in turns.py, once for all that
happened in a turn of the loop.
"""

from collections.abc import Container
from dataclasses import replace
from typing import assert_never

from ..policy.serving import numbers_of
from ..state.replies import Joined
from ..state.session_commands import (
    EVERY_EPOCH,
    DrainWorker,
    EndTurn,
    ExpectTurn,
    OfferSeat,
    SessionCommand,
    TellEnd,
    TellPerson,
)
from ..state.session_events import (
    CloseRequested,
    Connection,
    ConnectionLost,
    GatewayLost,
    JoinRequested,
    LeaveRequested,
    SeenTurn,
    ServeRequested,
    SessionEvent,
    StopModelRequested,
    ToldLate,
    TurnClosed,
    WorkerJoined,
    WorkerLost,
    WorkerReported,
    WorkerState,
    WorkerUnreachable,
)
from ..state.session_records import (
    ModelReady,
    ModelServed,
    ModelStopped,
    SessionEnded,
    SessionJoined,
    SessionRequeued,
    TicketRenewed,
)
from ..state.sessions import EndReason, Granted, Model, Session, SessionId, SessionLimits, Waiting, WorkerId
from ..state.state import State
from ..state.turns import Attached, LimitCause, Stage, TurnLive, WorkerAvoided, WorkerGivenUp, WorkerLive
from ..state.units import SECOND, Instant, Span, after
from .decision import NOTHING, Decision, refused, together
from .serving import end_of_workers, on_serve

WORKER_DEATHS_MAX = 2
"""Workers that may be lost under a session that was stepped alone there, or was named: then the session is to blame."""

AVOIDED_SPAN = Span(10 * SECOND)
"""A worker that a person could not reach is not offered to them for so long."""


def decide_session(state: State, event: SessionEvent) -> Decision:
    """What follows from an event of the sessions' part. Changes nothing."""
    match event:
        case ServeRequested():
            return on_serve(state, event)
        case StopModelRequested():
            return _on_stop_model(state, event)
        case JoinRequested():
            return _on_join(state, event)
        case LeaveRequested():
            return _on_leave(state, event)
        case WorkerUnreachable():
            return _on_unreachable(state, event)
        case CloseRequested():
            return _on_close(state, event)
        case WorkerJoined():
            return _on_worker_joined(state, event)
        case WorkerLost():
            return _on_worker_lost(state, event)
        case TurnClosed():
            return _on_turn_closed(state, event)
        case WorkerReported():
            return _on_worker_reported(state, event)
        case ConnectionLost() | GatewayLost() | ToldLate():
            return NOTHING
        case _:
            assert_never(event)


def _on_stop_model(state: State, event: StopModelRequested) -> Decision:
    if event.model not in state.durable.models:
        return refused("MODEL_NOT_FOUND", f"no model is called {event.model!r}", field="name")
    message = f"{event.by} stopped the model"
    sessions = [each for each in state.durable.sessions.by_id.values() if each.model == event.model]
    ends = [end_session(state, event.at, each, EndReason.CLOSED, message) for each in sessions]
    by_hand = (worker for worker in state.live.turns.workers_of(event.model) if worker.job is None)
    stopped = Decision(
        records=(ModelStopped(at=event.at, model=event.model, by=event.by),),
        session_commands=tuple(DrainWorker(worker=worker.id) for worker in by_hand),
    )
    return together(*ends, end_of_workers(state, event.at, event.model, message), stopped)


def _on_join(state: State, event: JoinRequested) -> Decision:
    model = state.durable.models.get(event.model)
    if model is None:
        served = ", ".join(sorted(state.durable.models)) or "none is"
        return refused(
            "MODEL_NOT_FOUND", f"no model is called {event.model!r}", field="model", next_step=f"served now: {served}"
        )
    sessions = state.durable.sessions
    there = _session_at(state, event.connection)
    if there is not None and there.identity != event.identity:
        return refused("INVALID_ARGUMENT", "another person has this connection", field="connection")
    earlier = sessions.by_id.get(sessions.by_identity.get(event.identity, SessionId(0)))
    if earlier is not None and earlier.model == event.model:
        return _come_back(state, event, earlier)
    moved = NOTHING
    if earlier is not None:
        moved = end_session(state, event.at, earlier, EndReason.MOVED, f"you joined the line of {event.model}")
    if sessions.line_length(event.model) >= model.limits.line_length:
        return refused(
            "LINE_FULL",
            f"the line of {event.model} has all of its {model.limits.line_length:,} places taken",
            field="model",
            next_step="try again in a minute",
        )
    session = Session(
        id=SessionId(state.durable.counters.next_session),
        model=event.model,
        identity=event.identity,
        key_digest=event.key_digest,
        joined_at=event.at,
    )
    joined = Decision(
        records=(SessionJoined(at=event.at, session=session),),
        notes=(Attached(session=session.id, connection=event.connection),),
        reply=Joined(session=session.id, is_new=True),
    )
    return together(moved, joined)


def _come_back(state: State, event: JoinRequested, session: Session) -> Decision:
    """The newest connection has the place or the turn; an older one is told that it moved."""
    attached = Attached(session=session.id, connection=event.connection)
    older = state.live.turns.connection_of(session.id)
    told: tuple[SessionCommand, ...] = ()
    if older is not None and older != event.connection:
        told = (
            TellEnd(
                connection=older,
                session=session.id,
                reason=EndReason.MOVED,
                message="you went on in another window",
            ),
        )
    back = Decision(session_commands=told, notes=(attached,), reply=Joined(session=session.id, is_new=False))
    # A worker that has not come back since the start is no place to go to: the ticket follows once it has.
    if isinstance(session.state, Waiting) or session.state.worker in state.live.turns.missing:
        return back
    again = Decision(session_commands=_told_again(state, session, event.connection))
    return together(_renew(event.at, session, event.connection), again, back)


def _told_again(state: State, session: Session, connection: Connection) -> tuple[SessionCommand, ...]:
    """Who comes back in the middle of a turn knows nothing of its end any more."""
    turn, limits = state.live.turns.turns.get(session.id), state.durable.models[session.model].limits
    if turn is None or turn.ends_at is None or turn.stage is Stage.NOTHING:
        return ()
    reason, message, ends_at = stage_news(turn, turn.stage, limits)
    return (TellPerson(connection=connection, session=session.id, reason=reason, message=message, ends_at=ends_at),)


def stage_news(turn: TurnLive, stage: Stage, limits: SessionLimits) -> tuple[str, str, Instant]:
    """What is told of a turn that has an end: the reason, the words, and when it is over."""
    assert turn.ends_at is not None
    ends_at = after(turn.ends_at, limits.grace)
    if stage is Stage.GRACE:
        return "TURN_GRACE", "the turn ends now", ends_at
    why = "others wait" if turn.cause is LimitCause.LINE else "the worker is being taken down"
    return "TURN_WARNING" if stage is Stage.WARNED else "TURN_LIMITED", f"{why}: the turn has an end", ends_at


def offer(session: Session, worker: WorkerId, epoch: int, connection: Connection) -> tuple[SessionCommand, ...]:
    """Tell a worker whom to expect, and the person where to go."""
    return (
        ExpectTurn(worker=worker, session=session.id, epoch=epoch, identity=session.identity),
        OfferSeat(connection=connection, session=session.id, worker=worker, epoch=epoch, identity=session.identity),
    )


def _session_at(state: State, connection: Connection) -> Session | None:
    session_id = state.live.turns.connections.get(connection)
    return None if session_id is None else state.durable.sessions.by_id.get(session_id)


def _on_leave(state: State, event: LeaveRequested) -> Decision:
    session = _session_at(state, event.connection) if event.is_final else None
    if session is None:
        return NOTHING
    return end_session(state, event.at, session, EndReason.LEFT, "you left")


def _on_close(state: State, event: CloseRequested) -> Decision:
    session = state.durable.sessions.by_id.get(event.session)
    if session is None:
        return refused("SESSION_NOT_FOUND", f"no session {event.session} waits or has a turn", field="id")
    message = f"{event.by} closed the session" + (f": {event.reason}" if event.reason else "")
    return end_session(state, event.at, session, EndReason.CLOSED, message)


def _on_turn_closed(state: State, event: TurnClosed) -> Decision:
    """A worker ended a turn by itself. An older epoch does nothing."""
    session = state.durable.sessions.by_id.get(event.session)
    worker = state.live.turns.workers.get(event.worker)
    if session is None or worker is None or worker.stream != event.stream:
        return NOTHING
    if session.epoch != event.epoch or session.state != Granted(worker=event.worker):
        return NOTHING
    if event.reason is EndReason.WORKER_LOST:
        return NOTHING  # the worker goes down: its report says so, and whom it blames
    if event.reason is EndReason.DRAINING and worker.job is not None:
        return _without_its_worker(state, event.at, session, is_suspect=False)  # its job was stopped: others go on
    message = event.message or END_MESSAGES[event.reason]
    ended = SessionEnded(at=event.at, session=session.id, model=session.model, reason=event.reason, message=message)
    return Decision(records=(ended,), session_commands=_told_end(state, session, event.reason, message))


END_MESSAGES = {
    EndReason.TURN_ENDED: "your turn is over: others wait",
    EndReason.IDLE: "nothing was done for a while",
    EndReason.LEFT: "you left",
    EndReason.MOVED: "you went on in another window",
    EndReason.CLAIM_TIMEOUT: "your seat was offered twice and not taken",
    EndReason.DISCONNECTED: "the connection was away for too long",
    EndReason.WORKER_LOST: "the worker could not be reached",
    EndReason.MODEL_FAILED: "the model failed",
    EndReason.DRAINING: "the worker is being taken down",
    EndReason.CLOSED: "the session was closed",
    EndReason.REFUSED: "the worker refused the session",
}


def end_session(state: State, at: Instant, session: Session, reason: EndReason, message: str = "") -> Decision:
    """End a session: its worker stops it, and the person is told why."""
    message = message or END_MESSAGES[reason]
    commands: list[SessionCommand] = []
    if isinstance(session.state, Granted):
        commands.append(EndTurn(worker=session.state.worker, session=session.id, epoch=session.epoch, reason=reason))
    commands.extend(_told_end(state, session, reason, message))
    ended = SessionEnded(at=at, session=session.id, model=session.model, reason=reason, message=message)
    return Decision(records=(ended,), session_commands=tuple(commands))


def _told_end(state: State, session: Session, reason: EndReason, message: str) -> tuple[SessionCommand, ...]:
    connection = state.live.turns.connection_of(session.id)
    if connection is None:
        return ()
    return (TellEnd(connection=connection, session=session.id, reason=reason, message=message),)


def _on_worker_joined(state: State, event: WorkerJoined) -> Decision:
    """A worker that was started by hand serves its model with that, if nobody else does."""
    if event.model in state.durable.models:
        return NOTHING
    model = Model(name=event.model, owner=event.by)
    served = replace(model, limits=numbers_of(state.limits, model))
    return Decision(records=(ModelServed(at=event.at, model=served),))


def _on_worker_reported(state: State, event: WorkerReported) -> Decision:
    """What a worker lists and nobody knows to be there ends. With the first report of a stream, who has a seat on the
    worker and is there gets a ticket.
    """
    worker = state.live.turns.workers.get(event.worker)
    if worker is None or worker.stream != event.stream:
        return NOTHING
    if event.state is WorkerState.FAILED:
        return without_worker(state, event.at, event.worker, frozenset(event.blamed))
    ready = _first_ready(state, event, worker)
    ends = tuple(
        EndTurn(worker=event.worker, session=seen.session, epoch=epoch, reason=EndReason.WORKER_LOST)
        for seen in event.turns
        if (epoch := _ended_epoch(state, event.worker, seen)) is not None
    )
    if worker.reports != 1:
        return together(Decision(session_commands=ends), ready) if ends else ready
    renewed = [_renewed(state, event.at, each) for each in state.durable.sessions.on_worker(event.worker)]
    return together(Decision(session_commands=ends), *renewed, _drained_again(state, worker), ready)


def _first_ready(state: State, event: WorkerReported, worker: WorkerLive) -> Decision:
    """The first worker of a model, as it is served now, is ready."""
    model = state.durable.models.get(worker.model)
    job = None if worker.job is None else state.durable.jobs.get(worker.job)
    if model is None or model.has_been_ready or job is None or job.spec != model.worker:
        return NOTHING
    if event.state is not WorkerState.READY:
        return NOTHING
    return Decision(records=(ModelReady(at=event.at, model=worker.model),))


def _drained_again(state: State, worker: WorkerLive) -> Decision:
    """A worker that is to go may not have heard so."""
    job = None if worker.job is None else state.durable.jobs.get(worker.job)
    if job is None or job.drained_at is None:
        return NOTHING
    return Decision(session_commands=(DrainWorker(worker=worker.id),))


def _renewed(state: State, at: Instant, session: Session) -> Decision:
    """Another ticket for somebody who has a seat and is there."""
    connection = state.live.turns.connection_of(session.id)
    return NOTHING if connection is None else _renew(at, session, connection)


def _renew(at: Instant, session: Session, connection: Connection) -> Decision:
    assert isinstance(session.state, Granted)
    epoch = session.epoch + 1
    renewed = TicketRenewed(at=at, session=session.id, model=session.model, epoch=epoch)
    return Decision(records=(renewed,), session_commands=offer(session, session.state.worker, epoch, connection))


def _ended_epoch(state: State, worker: WorkerId, seen: SeenTurn) -> int | None:
    """Up to which epoch a turn that a worker lists is to end there; None for one that goes on.

    One of an older epoch goes on, too, where the session has its seat: the next stream takes it over.
    """
    session = state.durable.sessions.by_id.get(seen.session)
    if session is None:
        return EVERY_EPOCH
    return None if session.state == Granted(worker=worker) else max(seen.epoch, session.epoch)


def _on_worker_lost(state: State, event: WorkerLost) -> Decision:
    if event.worker in state.live.turns.workers:
        return NOTHING  # an older stream of a worker that is back
    return without_worker(state, event.at, event.worker)


def without_missing_worker(state: State, at: Instant, worker: WorkerId, but: Container[SessionId]) -> Decision:
    """A worker that held turns before a start of the scheduler has not come back. `but` have ended at this moment."""
    given_up = Decision(notes=(WorkerGivenUp(worker=worker),))
    return together(given_up, without_worker(state, at, worker, frozenset(), but))


def without_worker(
    state: State,
    at: Instant,
    worker: WorkerId,
    blamed: frozenset[SessionId] = frozenset(),
    but: Container[SessionId] = (),
) -> Decision:
    """Its people go to the front and keep their time; who may have brought down two workers is not given a third."""
    sessions = [each for each in state.durable.sessions.on_worker(worker) if each.id not in but]
    opened = [each.id for each in sessions if _age(state, at, each) is not None]
    decisions = [
        _without_its_worker(state, at, each, is_suspect=each.id in blamed or opened == [each.id]) for each in sessions
    ]
    return together(*decisions) if decisions else NOTHING


def _without_its_worker(state: State, at: Instant, session: Session, *, is_suspect: bool) -> Decision:
    deaths = session.worker_deaths + is_suspect
    if deaths >= WORKER_DEATHS_MAX:
        message = f"{deaths} workers went down while they had this session"
        ended = SessionEnded(
            at=at, session=session.id, model=session.model, reason=EndReason.MODEL_FAILED, message=message
        )
        return Decision(records=(ended,), session_commands=_told_end(state, session, EndReason.MODEL_FAILED, message))
    message = "the worker went down: you are in front and keep your time"
    return together(
        _to_the_front(state, at, session, deaths),
        Decision(session_commands=told(state, session.id, "WORKER_LOST", message, None)),
    )


def _to_the_front(state: State, at: Instant, session: Session, deaths: int) -> Decision:
    age = _age(state, at, session)
    used = session.used if age is None else age
    record = SessionRequeued(at=at, session=session.id, model=session.model, used=used, worker_deaths=deaths)
    return Decision(records=(record,))


def told(
    state: State, session: SessionId, reason: str, message: str, ends_at: Instant | None
) -> tuple[SessionCommand, ...]:
    """News for a person; nothing for one who is away."""
    connection = state.live.turns.connection_of(session)
    if connection is None:
        return ()
    return (TellPerson(connection=connection, session=session, reason=reason, message=message, ends_at=ends_at),)


def _age(state: State, at: Instant, session: Session) -> Span | None:
    """How long a turn has lasted; None for a seat that was not claimed."""
    turn = state.live.turns.turns.get(session.id)
    return None if turn is None or turn.started_at is None else Span(max(0, at - turn.started_at))


def _on_unreachable(state: State, event: WorkerUnreachable) -> Decision:
    """Back to the front with another worker to come; where two could not be reached it ends."""
    session = _session_at(state, event.connection)
    if session is None or not isinstance(session.state, Granted):
        return NOTHING
    worker = session.state.worker
    if session.id in state.live.turns.unreachable:
        return end_session(state, event.at, session, EndReason.WORKER_LOST)
    end = EndTurn(worker=worker, session=session.id, epoch=session.epoch, reason=EndReason.WORKER_LOST)
    avoided = WorkerAvoided(session=session.id, worker=worker, until=after(event.at, AVOIDED_SPAN))
    return together(
        _to_the_front(state, event.at, session, session.worker_deaths),
        Decision(session_commands=(end,), notes=(avoided,)),
    )
