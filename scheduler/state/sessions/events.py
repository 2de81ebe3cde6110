"""What people, gateways and workers do: the inputs of the sessions' part of the core."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from ..ids import JobId, UserName
from ..units import Instant, Span
from .serving import Requests
from .session import Card, EndReason, Identity, Model, ModelName, SessionId, WorkerId


class Connection(NamedTuple):
    """One person's connection: the gateway's stream, and its own number on it."""

    gateway: int
    number: int


class WorkerState(Enum):
    """How far a worker is."""

    LOADING = "LOADING"
    READY = "READY"
    DRAINING = "DRAINING"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedTurn:
    """A turn as its worker lists it. `since_input` is None while that time does not count.

    `latency` is from sending a frame to the word that it was shown; None before the first one.
    """

    session: SessionId
    epoch: int
    age: Span
    since_input: Span | None
    frames_per_second: float = 0.0
    latency: Span | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRequested:
    """A person serves a model, or changes its numbers. `keeps_workers`: its workers stay as they are asked for.

    `rolls_back`: they are to be as they were before. `is_in_place`: one may go before its successor is ready, where no
    device is free for both.
    """

    at: Instant
    model: Model
    keeps_workers: bool = False
    rolls_back: bool = False
    is_in_place: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StopModelRequested:
    """A person ends a model."""

    at: Instant
    model: ModelName
    by: UserName


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequested:
    """A person wants a place, or comes back to theirs. `key_digest` is that of the key that a new place gets.

    `keeps_other`: rather none than one that ends what they have with another model. `address` is a hash of where they
    come from; empty where that does not count. `proved_hash` is that of the pass phrase that they were found to know,
    `said_phrase` whether they said any; `user` is who is logged in, empty for nobody.
    """

    at: Instant
    connection: Connection
    model: ModelName
    identity: Identity
    key_digest: str
    keeps_other: bool = False
    address: str = ""
    said_phrase: bool = False
    proved_hash: str = ""
    user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRequested:
    """A person leaves for good, or only closed the page: `is_final` False, and a reload comes back."""

    at: Instant
    connection: Connection
    is_final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLost:
    """A person's connection broke."""

    at: Instant
    connection: Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLost:
    """A gateway's stream broke, and with it the connections of all its people."""

    at: Instant
    gateway: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsReported:
    """The requests of every program that a gateway has any of, by its stream's number; nothing once that has ended."""

    at: Instant
    gateway: int
    requests: Mapping[ModelName, Requests]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerUnreachable:
    """A gateway can not reach the worker of a person, and its health check failed, too."""

    at: Instant
    connection: Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBroke:
    """A stream broke in the middle of a person's step. `input` is a digest of what they did, empty where it was
    nothing; `has_frame`: one had come on that stream.
    """

    at: Instant
    connection: Connection
    epoch: int
    input: str
    has_frame: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseRequested:
    """A person of the team ends somebody's session."""

    at: Instant
    session: SessionId
    by: UserName
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDrainRequested:
    """A person of the team lets a worker of a model end after its last turn: by its start, its job, or both."""

    at: Instant
    model: ModelName
    by: UserName
    worker: WorkerId | None = None
    job: JobId | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJoined:
    """A worker's stream begins; its first report follows. `job` is None for one that was started by hand.

    `certificate` is the one that it made for itself, if it did; `version` that of its gpufleet, empty if it says none.
    """

    at: Instant
    worker: WorkerId
    model: ModelName
    endpoint: str
    stream: int
    by: UserName
    job: JobId | None = None
    certificate: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReported:
    """A worker says how far it is and lists its turns: the first time on a stream everything that lives on it.

    `progress` and `load` are 0 to 1. `blamed`: of a worker that goes down, the sessions that may have caused it.
    """

    at: Instant
    worker: WorkerId
    stream: int
    state: WorkerState
    seats: int
    progress: float = 1.0
    turns: tuple[ReportedTurn, ...] = ()
    message: str = ""
    load: float = 0.0
    blamed: tuple[SessionId, ...] = ()
    card: Card | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnClosed:
    """A turn has ended on its worker."""

    at: Instant
    worker: WorkerId
    stream: int
    session: SessionId
    epoch: int
    reason: EndReason
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost:
    """A worker's stream broke."""

    at: Instant
    worker: WorkerId
    stream: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitDelayed:
    """The store took its time: what was decided at `decided_at` has left only now, and can be answered from now on."""

    at: Instant
    decided_at: Instant


SessionEvent = (
    ServeRequested
    | StopModelRequested
    | JoinRequested
    | LeaveRequested
    | ConnectionLost
    | GatewayLost
    | RequestsReported
    | WorkerUnreachable
    | StepBroke
    | CloseRequested
    | WorkerDrainRequested
    | WorkerJoined
    | WorkerReported
    | TurnClosed
    | WorkerLost
    | CommitDelayed
)
