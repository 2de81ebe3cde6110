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

from ..ids import JobId, UserName
from ..ids import ModelName as ModelName
from ..specs import Band, GpuMode, JobSpec
from ..units import MINUTE, SECOND, Instant, Span

SessionId = NewType("SessionId", int)
WorkerId = NewType("WorkerId", str)
"""One start of a worker: it makes a new one each time that it is started."""
Identity = NewType("Identity", str)
"""Hash of who a person is: of a token, else of a signed cookie."""


class EndReason(Enum):
    """Why a session ended; the person sees it (docs/rules/sessions.md 1.9)."""

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


class Access(Enum):
    """Who may join a model's line: everybody, who says its pass phrase, or who is logged in to the dashboard."""

    OPEN = "OPEN"
    PASS_PHRASE = "PASS_PHRASE"
    LOGIN = "LOGIN"


class Standing(IntEnum):
    """In which part of the line a session waits: who lost a worker stands in front of who never had a turn."""

    FRONT = 0
    LINE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """The numbers of one model's line and turns, in microseconds and in people.

    Of one address `places_per_address` may wait or have a turn, 0: as many as come; of them `seats_per_address` may
    have a turn at a time, 0: all. `access` is who may join, `pass_phrase_hash` the salted hash of the pass phrase,
    empty for none.
    """

    idle: Span = Span(20 * SECOND)
    idle_warning: Span = Span(10 * SECOND)
    turn: Span = Span(60 * SECOND)
    turn_warning: Span = Span(15 * SECOND)
    grace: Span = Span(10 * SECOND)
    line_length: int = 10_000
    places_per_address: int = 3
    seats_per_address: int = 0
    access: Access = Access.OPEN
    pass_phrase_hash: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What people are shown of a model, as a worker of it said; `picture_tag` is the picture's hash."""

    title: str = ""
    about: str = ""
    controls: str = ""
    keys: tuple[str, ...] = ()
    picture: bytes = b""
    picture_tag: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpService:
    """A program with an HTTP port, served in place of a class: its replicas are the model's workers.

    `argv` may name the port as "$PORT", by the name in `port_env`. A replica is well while `ready_path` answers, or,
    where that is empty, while its port is open. It takes `concurrency` requests at a time; there is to be one for each
    `target_concurrency` of them, and one more where a request has waited for `target_wait`. `idle` is how long the last
    ones above the model's fewest stay without a request. `cpu_model` is the program that does the same on CPUs, empty:
    none; `gpu_mode` is how requests take GPUs that do not say so. `port` is that on which it listens in its container;
    0: the one that it is told.
    """

    argv: tuple[str, ...]
    port_env: str = "PORT"
    ready_path: str = ""
    concurrency: int = 64
    target_concurrency: int = 8
    target_wait: Span = Span(2 * SECOND)
    idle: Span = Span(10 * MINUTE)
    cpu_model: str = ""
    gpu_mode: GpuMode = GpuMode.REQUIRED
    port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFailure:
    """Why no worker of a model is started any more. The last lines of its output are those of the job's attempt."""

    at: Instant
    message: str
    job: JobId
    attempt: int
    lineage: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """What workers of a model are started with, as it was served before; the fields are those of `Model`.

    `has_failed`: no other worker of it was to be started any more.
    """

    number: int
    entry_point: str = ""
    arguments: tuple[tuple[str, str], ...] = ()
    worker: JobSpec | None = None
    band: Band = Band.HIGH
    http: HttpService | None = None
    has_been_ready: bool = False
    has_failed: bool = False
    deaths: tuple[Instant, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The newest revision of a model takes over from the former one, whose workers go when their successors are ready.

    `is_in_place`: one may go before, where no device is free for both. With a `failure` the former one stays.
    """

    began_at: Instant
    is_in_place: bool = False
    failure: ModelFailure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model that is served: its name, whose it is, and its numbers.

    `chosen` are the numbers that were named when it was served; the others follow the settings. `worker` is the job of
    each of its workers in band `band`, None where they are started by hand only; there are `min_workers` to
    `max_workers` of them. `has_been_ready`: a worker of it was ready since it was served so. `deaths` are when workers
    ended by themselves lately; `failure` is set where no other one is started. `http` is the program that is served in
    place of `entry_point`: such a model has no line.

    `revision` is the number of what new workers are started with, of `revisions` that there were; 0 for one that was
    served before these were counted. `former` is the revision that was served before, and `update` is set until the
    newest one has taken over. `exclusive_group` names the programs of its owner with which it shares GPUs by demand,
    empty: none.
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
    http: HttpService | None = None
    revision: int = 0
    revisions: int = 0
    former: Revision | None = None
    update: Update | None = None
    exclusive_group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Stands in the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """Has a seat on a worker, claimed or not yet."""

    worker: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """A worker went down in the middle of a session's step. `input`: digest of the input in it, empty where there was
    none; `was_alone`: nobody else had a turn on that worker.
    """

    at: Instant
    input: str
    was_alone: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One person's use of a model.

    `key_digest` is the hash of the key that resumes it. `epoch` rises with every ticket; what comes from an older one
    does nothing. `used` is how long it had a turn on workers that were lost. `claims_missed` counts grants that nobody
    claimed, `worker_deaths` the workers that were lost while it may have been to blame, `suspicion` the last of them.
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
    suspicion: Suspicion | None = None


Entry = tuple[Standing, Instant, SessionId]
"""A place in the line: sorts as people stand."""


def entry_of(session: Session) -> Entry | None:
    """Where a session stands; None for one that has a seat."""
    is_waiting = isinstance(session.state, Waiting)
    return (session.standing, session.joined_at, session.id) if is_waiting else None


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
        entry = entry_of(session)
        if entry is not None:
            insort(self.lines.setdefault(session.model, []), entry)
        elif isinstance(session.state, Granted):
            self.seated.setdefault(session.state.worker, {})[session.id] = None

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
