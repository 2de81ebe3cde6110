"""Turns and workers as they are now: never stored, and rebuilt after a start from what workers and gateways say.

`apply_event` takes in events, `after_record` records, `apply_note` the notes of a decision; nothing else changes it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import assert_never

from ..ids import JobId
from ..units import SECOND, Instant, Span, after
from . import events, records
from .events import SessionEvent
from .records import SessionRecord
from .serving import PlaceGiven, Requests, Serving, ServingNote, SleepNoted, Slept, WorkerGone, WorkersChecked
from .session import Card, Granted, ModelName, Session, SessionId, Sessions, WorkerId

TURN_KEPT = Span(15 * SECOND)
"""How long a turn is kept for somebody whose connection broke."""
PLACE_KEPT = Span(60 * SECOND)
"""How long a place is, and everything after a start of the scheduler."""
RELOAD_KEPT = Span(2 * SECOND)
"""How long either is kept after a clean close, so that a page can be loaded anew."""


class Stage(IntEnum):
    """What a person was told of the end of the turn."""

    NOTHING = 0
    LIMITED = 1
    WARNED = 2
    GRACE = 3


class LimitCause(Enum):
    """Why a turn is limited: others wait, or its worker is to go."""

    LINE = "LINE"
    DRAIN = "DRAIN"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenStep:
    """A step that was under way as the stream of an epoch broke: the digest of its input, and if there were frames."""

    epoch: int
    input: str
    has_frame: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTurn:
    """A turn whose worker went down, of which nobody has said that a step was under way: that may come later.

    `lasted` is how long it had been on that worker, `was_alone`: nobody else had a turn there.
    """

    epoch: int
    lasted: Span
    was_alone: bool


@dataclass(slots=True)
class TurnLive:
    """One granted seat. `started_at` is set once it is claimed, and is earlier by what was used on lost workers.

    `input_at` is the newest real input as far as known; None while the idle time does not count. `idle_told` is the end
    for want of input that the person was told, None where that is over. `renewed_at` is since when another ticket for
    the turn waits to be used. `frames_per_second` and `latency` are as its worker told last.
    """

    worker: WorkerId
    called_at: Instant
    started_at: Instant | None = None
    ends_at: Instant | None = None
    cause: LimitCause = LimitCause.LINE
    broken: BrokenStep | None = None
    """What was under way as its stream broke; None again with the next stream."""

    stage: Stage = Stage.NOTHING
    input_at: Instant | None = None
    idle_told: Instant | None = None
    renewed_at: Instant | None = None
    frames_per_second: float = 0.0
    latency: Span | None = None


@dataclass(slots=True)
class Presence:
    """Whether a person is there: by which connection, or since when not and for how long it is waited.

    `has_closed`: the page was closed, and did not break off.
    """

    connection: events.Connection | None = None
    away_since: Instant = Instant(0)
    kept_for: Span = PLACE_KEPT
    has_closed: bool = False


@dataclass(slots=True)
class WorkerLive:
    """A worker whose stream is open. `reports` counts those of this stream: the first lists everything."""

    id: WorkerId
    model: ModelName
    endpoint: str
    stream: int
    job: JobId | None
    heard_at: Instant
    seats: int = 0
    state: events.WorkerState = events.WorkerState.LOADING
    progress: float = 0.0
    message: str = ""
    load: float = 0.0
    reports: int = 0
    certificate: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class PlaceNotice:
    """What a person who waits was told last; `cause` is why there is no bound, or what made it later.

    `is_due`: they have come back and are to be told again, and why, if their bound is later than the one they had.
    """

    place: int
    line_length: int
    bound: Instant | None
    cause: str = ""
    is_due: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """A person is there by this connection, from this address."""

    session: SessionId
    connection: events.Connection
    address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limited:
    """A turn ends at an instant."""

    session: SessionId
    ends_at: Instant
    cause: LimitCause


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitLifted:
    """A turn has no limit any more."""

    session: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReached:
    """A person was told so much of the end of the turn."""

    session: SessionId
    stage: Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleNoticed:
    """A person was asked whether anybody is there, before the turn ends at an instant; or told that this is over."""

    session: SessionId
    ends_at: Instant | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceNoticed:
    """A person was told where they stand."""

    session: SessionId
    told: PlaceNotice


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The lines of these models were seen to; `is_sweep`: of all, with news for everybody."""

    models: tuple[ModelName, ...]
    at: Instant
    is_sweep: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAvoided:
    """A person can not reach a worker and is not offered it for a while."""

    session: SessionId
    worker: WorkerId
    until: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class AvoidanceOver:
    """A person may be offered every worker again."""

    session: SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNoted:
    """A stream broke in the middle of a step; what became of the worker is not known yet."""

    session: SessionId
    broken: BrokenStep


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLost:
    """A worker went down, and whether a step was under way is not known yet."""

    session: SessionId
    lost: LostTurn


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGivenUp:
    """A worker that held turns before the start has not come back in time."""

    worker: WorkerId


Note = (
    Attached
    | Limited
    | LimitLifted
    | StageReached
    | IdleNoticed
    | PlaceNoticed
    | Settled
    | WorkerAvoided
    | AvoidanceOver
    | StepNoted
    | TurnLost
    | WorkerGivenUp
    | ServingNote
)
"""What a decision changes of this: it is not stored."""


@dataclass(slots=True)
class Turns:
    """Workers, turns and people as they are now. `dirty` are models whose line has to be seen to.

    `yields` are sessions that missed a claim and let the next person pass. `causes` say what last made a model's bounds
    later; `turn_spans` is how long turns lasted lately. `unreachable` are people who could not reach a worker,
    `avoided` says which one and until when it is not offered to them. `lost` are turns whose worker went down, until
    the next one has begun. `missing` are workers that hold turns and have not come back since the start. `serving` is
    how the workers of each model were seen to, `last_words` what workers said of why they fail, `ready_since` since
    when those of jobs have been ready, until their attempt has ended. `addresses` say where people come from, as far as
    that counts, `at_address` who comes from each. `cards` are what people are shown of models, as their workers said
    last. `requests` are those of programs, by model and the gateway that has them. `slept` says for whom programs of
    exclusive groups sleep, `given` what they leave to the jobs that wait for it.
    """

    workers: dict[WorkerId, WorkerLive] = field(default_factory=dict)
    turns: dict[SessionId, TurnLive] = field(default_factory=dict)
    presence: dict[SessionId, Presence] = field(default_factory=dict)
    connections: dict[events.Connection, SessionId] = field(default_factory=dict)
    away: dict[SessionId, None] = field(default_factory=dict)
    told: dict[SessionId, PlaceNotice] = field(default_factory=dict)
    yields: dict[SessionId, ModelName] = field(default_factory=dict)
    avoided: dict[SessionId, tuple[WorkerId, Instant]] = field(default_factory=dict)
    unreachable: dict[SessionId, None] = field(default_factory=dict)
    lost: dict[SessionId, LostTurn] = field(default_factory=dict)
    causes: dict[ModelName, str] = field(default_factory=dict)
    missing: dict[WorkerId, Instant] = field(default_factory=dict)
    dirty: dict[ModelName, None] = field(default_factory=dict)
    turn_spans: dict[ModelName, Span] = field(default_factory=dict)
    serving: dict[ModelName, Serving] = field(default_factory=dict)
    last_words: dict[JobId, str] = field(default_factory=dict)
    ready_since: dict[JobId, Instant] = field(default_factory=dict)
    cards: dict[ModelName, Card] = field(default_factory=dict)
    addresses: dict[SessionId, str] = field(default_factory=dict)
    at_address: dict[str, dict[SessionId, None]] = field(default_factory=dict)
    requests: dict[ModelName, dict[int, Requests]] = field(default_factory=dict)
    slept: dict[ModelName, Slept] = field(default_factory=dict)
    given: dict[JobId, PlaceGiven] = field(default_factory=dict)
    swept_at: Instant = Instant(0)

    def requests_on(self, model: ModelName) -> dict[WorkerId, int]:
        """The requests of a program under way by replica, at all gateways together."""
        found: dict[WorkerId, int] = {}
        for each in self.requests.get(model, {}).values():
            for worker, under_way in each.on_replicas:
                found[worker] = found.get(worker, 0) + under_way
        return found

    def requests_of(self, model: ModelName) -> Requests:
        """The requests of a program at all gateways together, but for which replica has which."""
        known = self.requests.get(model, {}).values()
        return Requests(
            under_way=sum(each.under_way for each in known),
            waiting=sum(each.waiting for each in known),
            waits_since=min((each.waits_since for each in known if each.waits_since is not None), default=None),
        )

    def leave_address(self, session: SessionId) -> None:
        """A person comes from nowhere any more."""
        address = self.addresses.pop(session, None)
        if address is not None:
            at_address = self.at_address[address]
            del at_address[session]
            if not at_address:
                del self.at_address[address]

    def connection_of(self, session: SessionId) -> events.Connection | None:
        """How a person is there; None for one who is away."""
        presence = self.presence.get(session)
        return None if presence is None else presence.connection

    def workers_of(self, model: ModelName) -> Iterator[WorkerLive]:
        """The workers of a model whose streams are open."""
        return (worker for worker in self.workers.values() if worker.model == model)

    def worker_of_job(self, job: JobId) -> WorkerLive | None:
        """The worker that a job runs; None while it is not connected."""
        return next((worker for worker in self.workers.values() if worker.job == job), None)

    def turn_of(self, session: Session, epoch: int) -> TurnLive | None:
        """The turn of a session, if it is still of this epoch."""
        return self.turns.get(session.id) if session.epoch == epoch else None


def restart(turns: Turns, models: Iterable[ModelName], sessions: Sessions, at: Instant) -> None:
    """After a start nobody is there: everybody and every worker has a minute to come back, claims count anew."""
    turns.dirty.update(dict.fromkeys(models))
    for session in sessions.by_id.values():
        _away(turns, session.id, at, PLACE_KEPT)
        turns.dirty[session.model] = None
        if isinstance(session.state, Granted):
            turns.turns[session.id] = TurnLive(worker=session.state.worker, called_at=at)
            turns.missing[session.state.worker] = at


def apply_event(turns: Turns, sessions: Sessions, event: SessionEvent) -> None:
    """Take note of what an event says about the world."""
    match event:
        case events.WorkerJoined(worker=worker, model=model, stream=stream):
            if event.job is not None and worker not in turns.workers:
                turns.last_words.pop(event.job, None)  # those of the start before
                turns.ready_since.pop(event.job, None)
            turns.workers[worker] = WorkerLive(
                id=worker,
                model=model,
                endpoint=event.endpoint,
                certificate=event.certificate,
                version=event.version,
                stream=stream,
                job=event.job,
                heard_at=event.at,
            )
            if turns.missing.pop(worker, None) is not None:
                for session in sessions.on_worker(worker):
                    turns.turns[session.id].called_at = event.at
            turns.dirty[model] = None
        case events.WorkerReported(worker=worker, stream=stream):
            known = turns.workers.get(worker)
            if known is not None and known.stream == stream:
                if (known.state, known.seats) != (event.state, event.seats):
                    turns.dirty[known.model] = None
                known.state, known.progress, known.message = event.state, event.progress, event.message
                known.seats, known.load, known.heard_at = event.seats, event.load, event.at
                known.reports += 1
                if known.job is not None:
                    _note_state(turns, known.job, event)
                if event.card is not None:
                    turns.cards[known.model] = event.card
                _see(turns, sessions, event.turns, event.at)
        case events.WorkerLost(worker=worker, stream=stream):
            known = turns.workers.get(worker)
            if known is not None and known.stream == stream:
                del turns.workers[worker]
                turns.dirty[known.model] = None
                turns.causes[known.model] = "a worker was lost"
        case events.ConnectionLost(connection=connection, at=at):
            _lose(turns, sessions, connection, at, is_clean=False)
        case events.LeaveRequested(connection=connection, at=at, is_final=False):
            _lose(turns, sessions, connection, at, is_clean=True)
        case events.GatewayLost(gateway=gateway, at=at):
            for connection in [each for each in turns.connections if each.gateway == gateway]:
                _lose(turns, sessions, connection, at, is_clean=False)
        case events.RequestsReported(gateway=gateway, requests=requests):
            _note_requests(turns, gateway, requests)
        case events.WorkerDrainRequested(model=model) if model in turns.serving:
            # When it is to be gone at the latest follows from what is decided now.
            turns.dirty[model] = None
        case events.CommitDelayed(at=at, decided_at=decided_at):
            for turn in turns.turns.values():
                if turn.started_at is None and turn.called_at >= decided_at:
                    turn.called_at = at
                if turn.renewed_at is not None and turn.renewed_at >= decided_at:
                    turn.renewed_at = at
        case _:
            pass


def _note_requests(turns: Turns, gateway: int, requests: Mapping[ModelName, Requests]) -> None:
    """What a gateway has now takes the place of what it had; a model of which that changes anything is seen to."""
    had = {model: at_gateways.pop(gateway, None) for model, at_gateways in turns.requests.items()}
    for model, now in requests.items():
        turns.requests.setdefault(model, {})[gateway] = now
    changed = (model for model in (*had, *requests) if had.get(model) != requests.get(model))
    turns.dirty.update(dict.fromkeys(changed))
    turns.requests = {model: at_gateways for model, at_gateways in turns.requests.items() if at_gateways}


def after_record(turns: Turns, record: SessionRecord) -> None:
    """Take note of what was decided about a session."""
    match record:
        case records.SessionJoined(session=joined):
            turns.dirty[joined.model] = None
        case records.TurnGranted(session=session_id, model=model, worker=worker, at=at):
            turns.turns[session_id] = TurnLive(worker=worker, called_at=at)
            turns.told.pop(session_id, None)
            # Somebody passed those who missed a claim: they are called like anybody again.
            turns.yields = {other: of for other, of in turns.yields.items() if of != model}
        case records.TicketRenewed(session=session_id, at=at):
            renewed = turns.turns[session_id]
            if renewed.started_at is not None and renewed.renewed_at is None:
                renewed.renewed_at, renewed.input_at = at, None
        case records.ClaimMissed(session=session_id, model=model):
            del turns.turns[session_id]
            turns.yields[session_id] = model
            turns.dirty[model] = None
            turns.causes[model] = "an offered seat was not claimed"
        case records.SessionRequeued(session=session_id, model=model):
            turns.turns.pop(session_id, None)
            turns.dirty[model] = None
            turns.causes.setdefault(model, "somebody who lost a worker stands in front")
        case records.SessionEnded(session=session_id, model=model, at=at):
            turn = turns.turns.pop(session_id, None)
            if turn is not None and turn.started_at is not None:
                _note_turn(turns, model, Span(at - turn.started_at))
            for of_session in (turns.told, turns.yields, turns.avoided, turns.unreachable, turns.lost, turns.away):
                of_session.pop(session_id, None)
            turns.leave_address(session_id)
            presence = turns.presence.pop(session_id, None)
            if presence is not None and presence.connection is not None:
                del turns.connections[presence.connection]
            turns.dirty[model] = None
        case records.SessionSuspected(session=session_id):
            turns.lost.pop(session_id, None)
        case records.ModelServed(model=served):
            turns.dirty[served.name] = None
        case records.ModelReady(model=model) | records.WorkerDied(model=model) | records.ModelFailed(model=model):
            turns.dirty[model] = None
        case records.UpdateFailed(model=model) | records.ModelUpdated(model=model):
            turns.dirty[model] = None
        case records.ModelStopped(model=model):
            for of_model in (
                turns.dirty,
                turns.causes,
                turns.turn_spans,
                turns.serving,
                turns.requests,
                turns.slept,
            ):
                of_model.pop(model, None)
        case _:
            assert_never(record)


def apply_note(turns: Turns, sessions: Sessions, note: Note) -> None:
    """Make a note of a decision true."""
    match note:
        case Attached(session=session_id, connection=connection):
            turns.leave_address(session_id)
            if note.address:
                turns.addresses[session_id] = note.address
                turns.at_address.setdefault(note.address, {})[session_id] = None
            presence = turns.presence.setdefault(session_id, Presence())
            if presence.connection is not None:
                turns.connections.pop(presence.connection, None)
            presence.connection = connection
            turns.connections[connection] = session_id
            turns.away.pop(session_id, None)
            if session_id in turns.told:
                turns.told[session_id] = replace(turns.told[session_id], is_due=True)
            session = sessions.by_id.get(session_id)
            if session is not None:
                turns.dirty[session.model] = None
        case Limited(session=session_id, ends_at=ends_at, cause=cause):
            turn = turns.turns[session_id]
            turn.ends_at, turn.cause, turn.stage = ends_at, cause, Stage.LIMITED
        case LimitLifted(session=session_id):
            turn = turns.turns[session_id]
            turn.ends_at, turn.stage = None, Stage.NOTHING
        case StageReached(session=session_id, stage=stage):
            turns.turns[session_id].stage = stage
        case IdleNoticed(session=session_id, ends_at=ends_at):
            turns.turns[session_id].idle_told = ends_at
        case PlaceNoticed(session=session_id, told=told):
            turns.told[session_id] = told
        case Settled(models=models, at=at, is_sweep=is_sweep):
            for model in models:
                turns.dirty.pop(model, None)
            if is_sweep:
                turns.causes.clear()
                turns.swept_at = at
        case WorkerAvoided(session=session_id, worker=worker, until=until):
            turns.avoided[session_id] = (worker, until)
            turns.unreachable[session_id] = None
        case AvoidanceOver(session=session_id):
            if turns.avoided.pop(session_id, None) is not None:
                turns.dirty[sessions.by_id[session_id].model] = None
        case StepNoted(session=session_id, broken=broken):
            turns.turns[session_id].broken = broken
        case TurnLost(session=session_id, lost=lost):
            turns.lost[session_id] = lost
        case WorkerGivenUp(worker=worker):
            del turns.missing[worker]
        case WorkersChecked(model=model, serving=serving):
            turns.serving[model] = serving
        case PlaceGiven(to=job):
            turns.given[job] = note
        case SleepNoted(model=model, slept=slept):
            if slept is None:
                turns.slept.pop(model, None)
            else:
                turns.slept[model] = slept
        case WorkerGone(worker=worker, job=job):
            turns.ready_since.pop(job, None)
            if worker is None:
                return
            gone = turns.workers.pop(worker, None)
            turns.last_words.pop(job, None)
            if gone is not None:
                turns.dirty[gone.model] = None
                turns.causes[gone.model] = "a worker was lost"
        case _:
            assert_never(note)


def _note_state(turns: Turns, job: JobId, said: events.WorkerReported) -> None:
    """Since when a job's worker has been ready, and what it says where it has failed.

    One that says of what it ends has not been less ready before: its model did work (worker_ends.py).
    """
    match said.state:
        case events.WorkerState.FAILED:
            turns.last_words[job] = said.message
        case events.WorkerState.READY:
            turns.ready_since.setdefault(job, said.at)
        case events.WorkerState.DRAINING:
            pass
        case _:
            turns.ready_since.pop(job, None)


def _see(turns: Turns, sessions: Sessions, seen: tuple[events.ReportedTurn, ...], at: Instant) -> None:
    for each in seen:
        session = sessions.by_id.get(each.session)
        turn = None if session is None else turns.turn_of(session, each.epoch)
        if session is None or turn is None:
            continue
        turn.renewed_at = None
        turn.frames_per_second, turn.latency = each.frames_per_second, each.latency
        if turn.broken is not None and turn.broken.epoch < each.epoch:
            turn.broken = None
        if turn.started_at is None:
            turns.lost.pop(each.session, None)
            turn.started_at = after(at, -each.age - session.used)
            turns.dirty[session.model] = None
        newest = None if each.since_input is None else after(at, -each.since_input)
        if newest is None or turn.input_at is None or newest > turn.input_at:
            turn.input_at = newest


def _lose(turns: Turns, sessions: Sessions, connection: events.Connection, at: Instant, *, is_clean: bool) -> None:
    session_id = turns.connections.pop(connection, None)
    if session_id is None:
        return
    kept = RELOAD_KEPT if is_clean else TURN_KEPT if session_id in turns.turns else PLACE_KEPT
    _away(turns, session_id, at, kept)
    turns.presence[session_id].has_closed = is_clean
    turns.dirty[sessions.by_id[session_id].model] = None
    turn = turns.turns.get(session_id)
    if turn is not None:
        turn.input_at = None


def _note_turn(turns: Turns, model: ModelName, span: Span) -> None:
    """The newest turn counts a quarter."""
    known = turns.turn_spans.get(model, span)
    turns.turn_spans[model] = Span(known + (span - known) // 4)


def _away(turns: Turns, session_id: SessionId, at: Instant, kept_for: Span) -> None:
    turns.presence[session_id] = Presence(connection=None, away_since=at, kept_for=kept_for)
    turns.away[session_id] = None
