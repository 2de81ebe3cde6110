"""Sessions: who waits for a model, who has a turn, and in which order. What of it survives a restart.

A session is one person's interactive use of a model. It waits in the model's line, is granted a seat on a worker, and
ends with a reason that the person sees. When a turn began, how long it is limited and who is connected is not stored:
see turns.py.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import NewType

from .ids import JobId, UserName
from .ids import ModelName as ModelName
from .specs import Band, JobSpec
from .units import SECOND, Instant, Span

SessionId = NewType("SessionId", int)
WorkerId = NewType("WorkerId", str)
"""One start of a worker: it makes a new one each time that it is started."""
Identity = NewType("Identity", str)
"""Hash of who a person is: of a token, else of a signed cookie."""


class EndReason(Enum):
    """Why a session ended; the person sees it (SESSIONS.md 1.9)."""

    TURN_ENDED = "TURN_ENDED"
    IDLE = "IDLE"
    LEFT = "LEFT"
    MOVED = "MOVED"
    CLAIM_TIMEOUT = "CLAIM_TIMEOUT"
    DISCONNECTED = "DISCONNECTED"
    WORKER_LOST = "WORKER_LOST"
    MODEL_FAILED = "MODEL_FAILED"
    DRAINING = "DRAINING"
    CLOSED = "CLOSED"
    REFUSED = "REFUSED"


class Standing(IntEnum):
    """In which part of the line a session waits: who lost a worker stands in front of who never had a turn."""

    FRONT = 0
    LINE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """The numbers of one model's line and turns, in microseconds; `line_length` in people."""

    idle: Span = Span(20 * SECOND)
    idle_warning: Span = Span(10 * SECOND)
    turn: Span = Span(60 * SECOND)
    turn_warning: Span = Span(15 * SECOND)
    grace: Span = Span(10 * SECOND)
    line_length: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFailure:
    """Why no worker of a model is started any more. The last lines of its output are those of the job's attempt."""

    at: Instant
    message: str
    job: JobId
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model that is served: its name, whose it is, and its numbers.

    `chosen` are the numbers that were named when it was served; the others follow the settings. `worker` is the job of
    each of its workers in band `band`, None where they are started by hand only; there are `min_workers` to
    `max_workers` of them. `has_been_ready`: a worker of it was ready since it was served so. `deaths` are when workers
    ended by themselves lately; `failure` is set where no other one is started.
    """

    name: ModelName
    owner: UserName
    limits: SessionLimits = SessionLimits()
    chosen: tuple[str, ...] = ()
    entry_point: str = ""
    arguments: tuple[tuple[str, str], ...] = ()
    worker: JobSpec | None = None
    band: Band = Band.HIGH
    min_workers: int = 0
    max_workers: int = 0
    has_been_ready: bool = False
    deaths: tuple[Instant, ...] = ()
    failure: ModelFailure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Stands in the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """Has a seat on a worker, claimed or not yet."""

    worker: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One person's use of a model.

    `key_digest` is the hash of the key that resumes it. `epoch` rises with every ticket; what comes from an older one
    does nothing. `used` is how long it had a turn on workers that were lost. `claims_missed` counts grants that nobody
    claimed, `worker_deaths` the workers that were lost while it may have been to blame.
    """

    id: SessionId
    model: ModelName
    identity: Identity
    key_digest: str
    joined_at: Instant
    state: Waiting | Granted = Waiting()
    standing: Standing = Standing.LINE
    epoch: int = 0
    used: Span = Span(0)
    claims_missed: int = 0
    worker_deaths: int = 0


Entry = tuple[Standing, Instant, SessionId]
"""A place in the line: sorts as people stand."""


def entry_of(session: Session) -> Entry | None:
    """Where a session stands; None for one that has a seat."""
    match session.state:
        case Waiting():
            return (session.standing, session.joined_at, session.id)
        case Granted():
            return None


@dataclass(slots=True)
class Sessions:
    """Every session that has not ended, with what follows from them. Only `put` and `drop` change it."""

    by_id: dict[SessionId, Session] = field(default_factory=dict)
    by_identity: dict[Identity, SessionId] = field(default_factory=dict)
    by_key: dict[str, SessionId] = field(default_factory=dict)
    lines: dict[ModelName, list[Entry]] = field(default_factory=dict)
    seated: dict[WorkerId, dict[SessionId, None]] = field(default_factory=dict)

    def put(self, session: Session) -> None:
        """Keep a session as it is now."""
        self.drop(session.id)
        self.by_id[session.id] = session
        self.by_identity[session.identity] = session.id
        self.by_key[session.key_digest] = session.id
        match session.state:
            case Waiting():
                entry = (session.standing, session.joined_at, session.id)
                insort(self.lines.setdefault(session.model, []), entry)
            case Granted(worker=worker):
                self.seated.setdefault(worker, {})[session.id] = None

    def drop(self, session_id: SessionId) -> Session | None:
        """Take a session out; None for one that is not there."""
        old = self.by_id.pop(session_id, None)
        if old is None:
            return None
        del self.by_identity[old.identity]
        del self.by_key[old.key_digest]
        entry = entry_of(old)
        if entry is not None:
            line = self.lines[old.model]
            del line[bisect_left(line, entry)]
            if not line:
                del self.lines[old.model]
        elif isinstance(old.state, Granted):
            seats = self.seated[old.state.worker]
            del seats[old.id]
            if not seats:
                del self.seated[old.state.worker]
        return old

    def line(self, model: ModelName) -> Iterator[Session]:
        """Who waits for a model, the first first."""
        return (self.by_id[session_id] for _, _, session_id in self.lines.get(model, ()))

    def line_length(self, model: ModelName) -> int:
        """How many wait for a model."""
        return len(self.lines.get(model, ()))

    def seated_count(self, model: ModelName) -> int:
        """How many have a seat of a model, claimed or not."""
        return sum(1 for seats in self.seated.values() for each in seats if self.by_id[each].model == model)

    def place(self, session: Session) -> int | None:
        """Place in the line, from 1; None for one that has a seat."""
        entry = entry_of(session)
        return None if entry is None else bisect_left(self.lines[session.model], entry) + 1

    def on_worker(self, worker: WorkerId) -> Iterator[Session]:
        """Who has a seat on a worker, in the order in which they joined first."""
        return (self.by_id[session_id] for session_id in sorted(self.seated.get(worker, ())))
