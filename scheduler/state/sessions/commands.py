"""What gateways and workers are told about sessions. It leaves once what it follows from is stored."""

from dataclasses import dataclass

from ..units import Instant
from .events import Connection
from .session import EndReason, Identity, SessionId, WorkerId

EVERY_EPOCH = 2**62
"""Ends a turn of whatever epoch: the session is over, and its id is never used again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TellPlace:
    """Where a person stands. `bound_cause` says what made the bound later, or why there is none."""

    connection: Connection
    session: SessionId
    place: int
    line_length: int
    estimate: Instant | None
    bound: Instant | None
    bound_cause: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferSeat:
    """A person may open a turn."""

    connection: Connection
    session: SessionId
    worker: WorkerId
    epoch: int
    identity: Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class TellPerson:
    """News of a turn: a warning, a countdown, or that a limit is lifted."""

    connection: Connection
    session: SessionId
    reason: str
    message: str
    ends_at: Instant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TellEnd:
    """A session is over for this connection; with MOVED it goes on elsewhere."""

    connection: Connection
    session: SessionId
    reason: EndReason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectTurn:
    """A worker is to let a session in."""

    worker: WorkerId
    session: SessionId
    epoch: int
    identity: Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTurn:
    """A worker is to end a turn, if it is still of this epoch or an older one."""

    worker: WorkerId
    session: SessionId
    epoch: int
    reason: EndReason


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainWorker:
    """A worker is to take no new turns, and to end after its last one."""

    worker: WorkerId


SessionCommand = TellPlace | OfferSeat | TellPerson | TellEnd | ExpectTurn | EndTurn | DrainWorker
