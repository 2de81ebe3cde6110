"""People and workers of models: what a join, a leave, a lost connection or a lost worker means.

Who is called to a free seat, whose turn is limited and who is told what follows in turns.py, once for all that
happened in a turn of the loop.
"""

from collections.abc import Container
from dataclasses import replace
from typing import assert_never

from ...policy.sessions.serving import numbers_of
from ...policy.sessions.suspicion import WORKER_DEATHS_MAX, worker_deaths
from ...state.jobs import Stopping
from ...state.replies import Joined
from ...state.sessions import events
from ...state.sessions.commands import (
    EVERY_EPOCH,
    DrainWorker,
    EndTurn,
    ExpectTurn,
    OfferSeat,
    SessionCommand,
    TellEnd,
    TellPerson,
)
from ...state.sessions.events import SessionEvent
from ...state.sessions.records import (
    ModelReady,
    ModelServed,
    ModelStopped,
    SessionEnded,
    SessionJoined,
    SessionRequeued,
    SessionSuspected,
    TicketRenewed,
)
from ...state.sessions.session import (
    Access,
    EndReason,
    Granted,
    Model,
    Session,
    SessionId,
    SessionLimits,
    Suspicion,
    Waiting,
    WorkerId,
)
from ...state.sessions.turns import (
    Attached,
    BrokenStep,
    LimitCause,
    LostTurn,
    Stage,
    StepNoted,
    TurnLive,
    TurnLost,
    WorkerAvoided,
    WorkerGivenUp,
    WorkerLive,
)
from ...state.state import State
from ...state.units import SECOND, Instant, Span, after
from ..decision import NOTHING, Decision, refused, together
from .serving import end_of_workers, on_drain_worker, on_serve

AVOIDED_SPAN = Span(10 * SECOND)
"""A worker that a person could not reach is not offered to them for so long."""


def decide_session(state: State, event: SessionEvent) -> Decision:
    """What follows from an event of the sessions' part. Changes nothing."""
    match event:
        case events.ServeRequested():
            return on_serve(state, event)
        case events.StopModelRequested():
            return _on_stop_model(state, event)
        case events.JoinRequested():
            return _on_join(state, event)
        case events.LeaveRequested():
            return _on_leave(state, event)
        case events.WorkerUnreachable():
            return _on_unreachable(state, event)
        case events.StepBroke():
            return _on_step_broke(state, event)
        case events.CloseRequested():
            return _on_close(state, event)
        case events.WorkerDrainRequested():
            return on_drain_worker(state, event)
        case events.WorkerJoined():
            return _on_worker_joined(state, event)
        case events.WorkerLost():
            return _on_worker_lost(state, event)
        case events.TurnClosed():
            return _on_turn_closed(state, event)
        case events.WorkerReported():
            return _on_worker_reported(state, event)
        case events.ConnectionLost() | events.GatewayLost() | events.RequestsReported() | events.CommitDelayed():
            return NOTHING
        case _:
            assert_never(event)


def _on_stop_model(state: State, event: events.StopModelRequested) -> Decision:
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


def _on_join(state: State, event: events.JoinRequested) -> Decision:
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
    if model.http is not None:
        step = f"open it at the gateway: /m/{model.name}/"
        return refused("INVALID_ARGUMENT", f"{model.name} is a program, without turns", field="model", next_step=step)
    earlier = sessions.by_id.get(sessions.by_identity.get(event.identity, SessionId(0)))
    if earlier is not None and earlier.model == event.model:
        return _come_back(state, event, earlier)
    not_let_in = _not_let_in(model, event)
    if not_let_in is not None:
        return not_let_in
    moved = NOTHING
    if earlier is not None and event.keeps_other and not state.live.turns.presence[earlier.id].has_closed:
        has = "have a turn with" if isinstance(earlier.state, Granted) else "stand in the line of"
        return refused("OTHER_SESSION", f"you {has} {earlier.model}", field="model")
    if earlier is not None:
        moved = end_session(state, event.at, earlier, EndReason.MOVED, f"you joined the line of {event.model}")
    if sessions.line_length(event.model) >= model.limits.line_length:
        return refused(
            "LINE_FULL",
            f"the line of {event.model} has all of its {model.limits.line_length:,} places taken",
            field="model",
            next_step="try again in a minute",
        )
    limit, known = model.limits.places_per_address, state.live.turns.at_address.get(event.address, {})
    if limit and sum(1 for each in known if sessions.by_id[each].model == event.model) >= limit:
        return refused(
            "ADDRESS_FULL",
            f"{limit} people of your address have a place with {event.model}, and no more may",
            field="address",
            next_step="try again when one of them has left",
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
        notes=(Attached(session=session.id, connection=event.connection, address=event.address),),
        reply=Joined(session=session.id, is_new=True),
    )
    return together(moved, joined)


def _not_let_in(model: Model, event: events.JoinRequested) -> Decision | None:
    """Why a person may not join a model that is not open to everybody; None where they may."""
    wanted, name = model.limits.pass_phrase_hash, model.name

    def no(reason: str, why: str, next_step: str) -> Decision:
        return refused(reason, why, field="pass_phrase", next_step=next_step)

    match model.limits.access:
        case Access.OPEN:
            return None
        case Access.LOGIN if event.user:
            return None
        case Access.LOGIN:
            why = f"{name} is for people who are logged in to the dashboard"
            next_step = "log in to the dashboard in this browser, then join"
            return refused("LOGIN_NEEDED", why, field="login_token", next_step=next_step)
        case Access.PASS_PHRASE if not wanted:
            next_step = f"set one with: gpuctl serve {name} --update --pass-phrase-file FILE"
            return no("PASS_PHRASE_MISSING", f"{name} wants a pass phrase, and who serves it has set none", next_step)
        case Access.PASS_PHRASE if event.proved_hash == wanted:
            return None
        case Access.PASS_PHRASE if event.said_phrase:
            next_step = "ask who serves the model; capital letters count"
            return no("PASS_PHRASE_WRONG", f"this is not the pass phrase of {name}", next_step)
        case Access.PASS_PHRASE:
            return no("PASS_PHRASE_MISSING", f"{name} wants a pass phrase", "ask who serves the model for it")


def _come_back(state: State, event: events.JoinRequested, session: Session) -> Decision:
    """The newest connection has the place or the turn; an older one is told that it moved."""
    attached = Attached(session=session.id, connection=event.connection, address=event.address)
    older = state.live.turns.connection_of(session.id)
    told: tuple[SessionCommand, ...] = ()
    if older is not None and older != event.connection:
        reason = EndReason.MOVED
        told = (TellEnd(connection=older, session=session.id, reason=reason, message=END_MESSAGES[reason]),)
    back = Decision(session_commands=told, notes=(attached,), reply=Joined(session=session.id, is_new=False))
    # A worker that has not come back since the start is no place to go to: the ticket follows once it has.
    if isinstance(session.state, Waiting) or session.state.worker in state.live.turns.missing:
        return back
    again = Decision(session_commands=_told_again(state, session, event.connection))
    return together(_renew(event.at, session, event.connection), again, back)


def _told_again(state: State, session: Session, connection: events.Connection) -> tuple[SessionCommand, ...]:
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


def offer(session: Session, worker: WorkerId, epoch: int, connection: events.Connection) -> tuple[SessionCommand, ...]:
    """Tell a worker whom to expect, and the person where to go."""
    return (
        ExpectTurn(worker=worker, session=session.id, epoch=epoch, identity=session.identity),
        OfferSeat(connection=connection, session=session.id, worker=worker, epoch=epoch, identity=session.identity),
    )


def _session_at(state: State, connection: events.Connection) -> Session | None:
    session_id = state.live.turns.connections.get(connection)
    return None if session_id is None else state.durable.sessions.by_id.get(session_id)


def _on_leave(state: State, event: events.LeaveRequested) -> Decision:
    session = _session_at(state, event.connection) if event.is_final else None
    return NOTHING if session is None else end_session(state, event.at, session, EndReason.LEFT)


def _on_close(state: State, event: events.CloseRequested) -> Decision:
    session = state.durable.sessions.by_id.get(event.session)
    if session is None:
        return refused("SESSION_NOT_FOUND", f"no session {event.session} waits or has a turn", field="id")
    message = f"{event.by} closed the session" + (f": {event.reason}" if event.reason else "")
    return end_session(state, event.at, session, EndReason.CLOSED, message)


def _on_turn_closed(state: State, event: events.TurnClosed) -> Decision:
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
        return _to_another_worker(state, event.at, session)  # its job was stopped: others go on
    if event.reason is EndReason.DISCONNECTED and not worker.reports:
        # It waited for its person while nobody heard it, so that no other ticket could be given to them (rule 1.8).
        return _to_another_worker(state, event.at, session, "the worker could not be reached")
    message = event.message or END_MESSAGES[event.reason]
    return _ended(state, event.at, session, event.reason, message)


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
    ended = _ended(state, at, session, reason, message or END_MESSAGES[reason])
    if not isinstance(session.state, Granted):
        return ended
    end = EndTurn(worker=session.state.worker, session=session.id, epoch=session.epoch, reason=reason)
    return together(Decision(session_commands=(end,)), ended)


def _ended(state: State, at: Instant, session: Session, reason: EndReason, message: str) -> Decision:
    """A session is over on its worker already, or has none: the person is told why."""
    ended = SessionEnded(at=at, session=session.id, model=session.model, reason=reason, message=message)
    connection = state.live.turns.connection_of(session.id)
    if connection is None:
        return Decision(records=(ended,))
    told = TellEnd(connection=connection, session=session.id, reason=reason, message=message)
    return Decision(records=(ended,), session_commands=(told,))


def _on_worker_joined(state: State, event: events.WorkerJoined) -> Decision:
    """A worker that was started by hand serves its model with that, if nobody else does.

    One that the fleet started, and whose model is not there, comes just as that was stopped: its job is being ended.
    """
    if event.job is not None or event.model in state.durable.models:
        return NOTHING
    model = Model(name=event.model, owner=event.by)
    served = replace(model, limits=numbers_of(state.limits, model))
    return Decision(records=(ModelServed(at=event.at, model=served),))


def _on_worker_reported(state: State, event: events.WorkerReported) -> Decision:
    """What a worker lists and nobody knows to be there ends. With the first report of a stream, who has a seat on the
    worker and is there gets a ticket.
    """
    worker = state.live.turns.workers.get(event.worker)
    if worker is None or worker.stream != event.stream:
        return NOTHING
    if event.state is events.WorkerState.FAILED:
        return without_worker(state, event.at, event.worker, frozenset(event.blamed))
    ready = _first_ready(state, event, worker)
    ends = tuple(
        EndTurn(worker=event.worker, session=seen.session, epoch=epoch, reason=EndReason.WORKER_LOST)
        for seen in event.turns
        if (epoch := _ended_epoch(state, event.worker, seen)) is not None
    )
    if worker.reports != 1:
        return together(Decision(session_commands=ends), ready) if ends else ready
    renewed = [
        _renew(event.at, each, connection)
        for each in state.durable.sessions.on_worker(event.worker)
        if (connection := state.live.turns.connection_of(each.id)) is not None
    ]
    return together(Decision(session_commands=ends), *renewed, _drained_again(state, worker), ready)


def _first_ready(state: State, event: events.WorkerReported, worker: WorkerLive) -> Decision:
    """The first worker of a model, as it is served now, is ready."""
    model = state.durable.models.get(worker.model)
    job = None if worker.job is None else state.durable.jobs.get(worker.job)
    if model is None or model.has_been_ready or job is None or job.revision != model.revision:
        return NOTHING
    if job.drained_at is not None or isinstance(job.state, Stopping):
        return NOTHING  # it may be one of a model of this name that was stopped
    if event.state is not events.WorkerState.READY:
        return NOTHING
    return Decision(records=(ModelReady(at=event.at, model=worker.model),))


def _drained_again(state: State, worker: WorkerLive) -> Decision:
    """A worker that is to go may not have heard so."""
    job = None if worker.job is None else state.durable.jobs.get(worker.job)
    if job is None or job.drained_at is None:
        return NOTHING
    return Decision(session_commands=(DrainWorker(worker=worker.id),))


def _renew(at: Instant, session: Session, connection: events.Connection) -> Decision:
    """Another ticket for somebody who has a seat and is there."""
    assert isinstance(session.state, Granted)
    epoch = session.epoch + 1
    renewed = TicketRenewed(at=at, session=session.id, model=session.model, epoch=epoch)
    return Decision(records=(renewed,), session_commands=offer(session, session.state.worker, epoch, connection))


def _ended_epoch(state: State, worker: WorkerId, seen: events.ReportedTurn) -> int | None:
    """Up to which epoch a turn that a worker lists is to end there; None for one that goes on.

    One of an older epoch goes on, too, where the session has its seat: the next stream takes it over.
    """
    session = state.durable.sessions.by_id.get(seen.session)
    if session is None:
        return EVERY_EPOCH
    return None if session.state == Granted(worker=worker) else max(seen.epoch, session.epoch)


def _on_worker_lost(state: State, event: events.WorkerLost) -> Decision:
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
    """Its people go to the front and keep their time; who may have brought down two workers is not given a third.

    `blamed` were in the step that hung. Of the others, gateways say what was under way: some before this, some behind.
    """
    sessions = [each for each in state.durable.sessions.on_worker(worker) if each.id not in but]
    opened = [each.id for each in sessions if _age(state, at, each) is not None]
    decisions: list[Decision] = []
    for each in sessions:
        age = _age(state, at, each)
        if age is None:
            decisions.append(_to_another_worker(state, at, each))
            continue
        lost = LostTurn(epoch=each.epoch, lasted=Span(age - each.used), was_alone=opened == [each.id])
        broken = state.live.turns.turns[each.id].broken
        if each.id in blamed:
            broken, lost = BrokenStep(epoch=each.epoch, input="", has_frame=True), replace(lost, was_alone=True)
        if broken is not None:
            decisions.append(_suspected(state, at, each, lost, broken))
        elif blamed:
            decisions.append(_to_another_worker(state, at, each))  # it is known who was in the step
        else:
            noted = Decision(notes=(TurnLost(session=each.id, lost=lost),))
            decisions.append(together(_to_another_worker(state, at, each), noted))
    return together(*decisions)


def _on_step_broke(state: State, event: events.StepBroke) -> Decision:
    """A gateway says what was under way; that the worker went down may be known by now, or may follow."""
    session = _session_at(state, event.connection)
    if session is None:
        return NOTHING
    live = state.live.turns
    broken = BrokenStep(epoch=event.epoch, input=event.input, has_frame=event.has_frame)
    lost = live.lost.get(session.id)
    if lost is not None and lost.epoch == event.epoch:
        return _suspected(state, event.at, session, lost, broken)
    turn = live.turns.get(session.id)
    if turn is None or turn.started_at is None or session.epoch != event.epoch:
        return NOTHING
    return Decision(notes=(StepNoted(session=session.id, broken=broken),))


def _suspected(state: State, at: Instant, session: Session, lost: LostTurn, broken: BrokenStep) -> Decision:
    """A worker went down in the middle of a session's step. The session may still be there, or wait already."""
    suspicion = Suspicion(at=at, input=broken.input, was_alone=lost.was_alone)
    deaths = worker_deaths(session, suspicion, lost.lasted if broken.has_frame else Span(0))
    is_known = session.id in state.live.turns.lost
    if deaths >= WORKER_DEATHS_MAX:
        message = f"{deaths} workers went down in the middle of a step of this session"
        return (end_session if is_known else _ended)(state, at, session, EndReason.MODEL_FAILED, message)
    noted = SessionSuspected(at=at, session=session.id, model=session.model, worker_deaths=deaths, suspicion=suspicion)
    moved = NOTHING if is_known else _to_another_worker(state, at, session)
    return together(moved, Decision(records=(noted,)))


def _to_another_worker(state: State, at: Instant, session: Session, why: str = "the worker went down") -> Decision:
    message = f"{why}: you are in front and keep your time"
    told = news_for(state, session.id, "WORKER_LOST", message, None)
    return together(_to_the_front(state, at, session), Decision(session_commands=told))


def _to_the_front(state: State, at: Instant, session: Session) -> Decision:
    age = _age(state, at, session)
    used = session.used if age is None else age
    deaths = session.worker_deaths
    record = SessionRequeued(at=at, session=session.id, model=session.model, used=used, worker_deaths=deaths)
    return Decision(records=(record,))


def news_for(
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


def _on_unreachable(state: State, event: events.WorkerUnreachable) -> Decision:
    """Back to the front with another worker to come; where two could not be reached it ends."""
    session = _session_at(state, event.connection)
    if session is None or not isinstance(session.state, Granted):
        return NOTHING
    worker = session.state.worker
    if session.id in state.live.turns.unreachable:
        return end_session(state, event.at, session, EndReason.WORKER_LOST)
    end = EndTurn(worker=worker, session=session.id, epoch=session.epoch, reason=EndReason.WORKER_LOST)
    avoided = WorkerAvoided(session=session.id, worker=worker, until=after(event.at, AVOIDED_SPAN))
    return together(_to_the_front(state, event.at, session), Decision(session_commands=(end,), notes=(avoided,)))
