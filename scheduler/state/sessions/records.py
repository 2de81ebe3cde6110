"""What was decided about models and sessions, and is stored."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..ids import JobId, UserName
from ..units import Instant, Span
from .session import (
    EndReason,
    Granted,
    Model,
    ModelFailure,
    ModelName,
    Session,
    SessionId,
    Sessions,
    Standing,
    Suspicion,
    Waiting,
    WorkerId,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfSession:
    """A fact of one session."""

    at: Instant
    session: SessionId
    model: ModelName


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelServed:
    """A model is served from now on, or with other numbers."""

    at: Instant
    model: Model


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStopped:
    """A model is not served any more; its sessions have ended."""

    at: Instant
    model: ModelName
    by: UserName


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReady:
    """A worker of a model is ready for the first time since it was served so: it can be loaded."""

    at: Instant
    model: ModelName


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDied:
    """A worker ended by itself, and another one follows. Ends from before `since` do not count any more.

    `is_former`: it was one of the former revision.
    """

    at: Instant
    model: ModelName
    job: JobId
    since: Instant
    message: str
    is_former: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFailed:
    """No other worker of a model is started, until it is served again."""

    at: Instant
    model: ModelName
    failure: ModelFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFailed:
    """No other worker of a model's newest revision is started, until it is served again: the former one stays."""

    at: Instant
    model: ModelName
    failure: ModelFailure


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUpdated:
    """The newest revision of a model has taken over."""

    at: Instant
    model: ModelName


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionJoined:
    """A person has a place in a line."""

    at: Instant
    session: Session


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnGranted(OfSession):
    """A session is offered a seat. Its turn begins when it is claimed."""

    worker: WorkerId
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketRenewed(OfSession):
    """A session that has a seat gets another ticket; tickets of older epochs open nothing any more."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimMissed(OfSession):
    """Nobody claimed an offered seat in time: the session keeps its place and lets one pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequeued(OfSession):
    """A session lost its worker and waits in front. `used`: how long it has had a turn in all."""

    used: Span
    worker_deaths: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSuspected(OfSession):
    """A session may have brought its worker down; `worker_deaths` is how many, so far."""

    worker_deaths: int
    suspicion: Suspicion


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnded(OfSession):
    """A session is over, and why."""

    reason: EndReason
    message: str


SessionRecord = (
    ModelServed
    | ModelStopped
    | ModelReady
    | WorkerDied
    | ModelFailed
    | UpdateFailed
    | ModelUpdated
    | SessionJoined
    | TurnGranted
    | TicketRenewed
    | ClaimMissed
    | SessionRequeued
    | SessionSuspected
    | SessionEnded
)


def changed_by(
    record: SessionRecord, models: Mapping[ModelName, Model], sessions: Sessions
) -> tuple[Model | Session, ...]:
    """The entities as a record makes them."""
    match record:
        case ModelServed(model=model):
            return (model,)
        case ModelReady(model=name):
            return (replace(models[name], has_been_ready=True),)
        case WorkerDied(model=name, at=at, since=since, is_former=is_former):
            model = models[name]
            of = model.former if is_former else model
            assert of is not None, f"model {name} has no former revision"
            deaths = (*(died for died in of.deaths if died >= since), at)
            if isinstance(of, Model):
                return (replace(of, deaths=deaths),)
            return (replace(model, former=replace(of, deaths=deaths)),)
        case ModelFailed(model=name, failure=failure):
            return (replace(models[name], failure=failure),)
        case UpdateFailed(model=name, failure=failure):
            update = models[name].update
            assert update is not None, f"model {name} is not updated"
            return (replace(models[name], update=replace(update, failure=failure)),)
        case ModelUpdated(model=name):
            return (replace(models[name], update=None),)
        case SessionJoined(session=session):
            return (session,)
        case TurnGranted(session=session_id, worker=worker, epoch=epoch):
            return (replace(sessions.by_id[session_id], state=Granted(worker=worker), epoch=epoch),)
        case TicketRenewed(session=session_id, epoch=epoch):
            return (replace(sessions.by_id[session_id], epoch=epoch),)
        case ClaimMissed(session=session_id):
            old = sessions.by_id[session_id]
            return (replace(old, state=Waiting(), claims_missed=old.claims_missed + 1),)
        case SessionRequeued(session=session_id, used=used, worker_deaths=deaths):
            old = sessions.by_id[session_id]
            return (replace(old, state=Waiting(), standing=Standing.FRONT, used=used, worker_deaths=deaths),)
        case SessionSuspected(session=session_id, worker_deaths=deaths, suspicion=suspicion):
            return (replace(sessions.by_id[session_id], worker_deaths=deaths, suspicion=suspicion),)
        case ModelStopped() | SessionEnded():
            return ()


def gone_by(record: SessionRecord) -> tuple[tuple[str, str], ...]:
    """The keys of the entities that are gone with a record."""
    match record:
        case ModelStopped(model=model):
            return (("model", model),)
        case SessionEnded(session=session_id):
            return (("session", str(session_id)),)
        case _:
            return ()
