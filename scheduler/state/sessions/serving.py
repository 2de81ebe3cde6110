"""How a model's workers are seen to, as far as it is known only while the scheduler runs. See core/workers.py."""

from dataclasses import dataclass

from ..ids import JobId, ModelName, NodeName
from ..units import Instant
from .session import WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """One model's workers, as they were seen to last.

    `seats` are those of a worker, 0 until one has said so. `fewer_since` is since when fewer would do, `shrunk_at` when
    one was taken down last, and `look_at` when time alone changes something. `quiet_since` is since when a program has
    no requests, `ready_since` since when all of its replicas are ready, each None while that is not so. `held_since` is
    since when it has replicas that hold something, and `awake_since` since when one of these has been ready.
    """

    seats: int = 0
    fewer_since: Instant | None = None
    shrunk_at: Instant | None = None
    look_at: Instant | None = None
    quiet_since: Instant | None = None
    ready_since: Instant | None = None
    held_since: Instant | None = None
    awake_since: Instant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slept:
    """A program of an exclusive group gave its last GPU to another one, for which so many requests waited."""

    at: Instant
    gave_to: ModelName
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """The requests of a program that a gateway has: under way, and waiting, the first of them since `waits_since`.

    `on_replicas` are those under way by replica, as far as the gateway says so.
    """

    under_way: int = 0
    waiting: int = 0
    waits_since: Instant | None = None
    on_replicas: tuple[tuple[WorkerId, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersChecked:
    """The workers of a model were seen to."""

    model: ModelName
    serving: Serving


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGone:
    """A worker's process is over, though its stream may not have broken yet; None: it has."""

    worker: WorkerId | None
    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceGiven:
    """What the replicas `by` have on these nodes is for the replica `to` of another program, until an instant."""

    to: JobId
    by: tuple[JobId, ...]
    nodes: frozenset[NodeName]
    until: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepNoted:
    """A program of an exclusive group went to sleep for another one, or with None is awake again."""

    model: ModelName
    slept: Slept | None


ServingNote = WorkersChecked | WorkerGone | SleepNoted | PlaceGiven
