"""What people, gateways and workers do: the inputs of the sessions' part of the core."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from .ids import JobId, UserName
from .sessions import EndReason, Identity, Model, ModelName, SessionId, WorkerId
from .units import Instant, Span


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
class SeenTurn:
    """A turn as its worker lists it. `since_input` is None while that time does not count."""

    session: SessionId
    epoch: int
    age: Span
    since_input: Span | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRequested:
    """A person serves a model, or changes its numbers. `keeps_workers`: its workers stay as they are asked for."""

    at: Instant
    model: Model
    keeps_workers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StopModelRequested:
    """A person ends a model."""

    at: Instant
    model: ModelName
    by: UserName


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequested:
    """A person wants a place, or comes back to theirs. `key_digest` is that of the key that a new place gets."""

    at: Instant
    connection: Connection
    model: ModelName
    identity: Identity
    key_digest: str


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
class WorkerUnreachable:
    """A gateway can not reach the worker of a person, and its health check failed, too."""

    at: Instant
    connection: Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseRequested:
    """A person of the team ends somebody's session."""

    at: Instant
    session: SessionId
    by: UserName
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJoined:
    """A worker's stream begins; its first report follows. `job` is None for one that was started by hand.

    `certificate` is the one that it made for itself, if it did.
    """

    at: Instant
    worker: WorkerId
    model: ModelName
    endpoint: str
    stream: int
    by: UserName
    job: JobId | None = None
    certificate: str = ""


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
    turns: tuple[SeenTurn, ...] = ()
    message: str = ""
    load: float = 0.0
    blamed: tuple[SessionId, ...] = ()


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
class ToldLate:
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
    | WorkerUnreachable
    | CloseRequested
    | WorkerJoined
    | WorkerReported
    | TurnClosed
    | WorkerLost
    | ToldLate
)
