"""Jobs: what was asked for, where a job is on its way, and its attempts.

A state is a class that carries exactly the data that is valid in it, so that no field is ever half filled.
"""

from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum

from .ids import AttemptId, DeviceUuid, JobId, ModelName, NodeName, RankKey, UserName
from .indices import Indices
from .shares import WHOLE_MILLI, DeviceShare
from .units import MB, SECOND, Instant, Span, after
from .used import RankUse
from .warnings import JobWarning

ATTEMPTS_KEPT = 10
"""Ended attempts that stay in the job's own record; older ones are in its story."""

DEFAULT_GRACE = Span(30 * SECOND)
DEFAULT_MIN_MEMORY_BYTES = 8_000 * MB


class Band(IntEnum):
    """Priority class: a higher band is always ordered before a lower one."""

    LOW = 1
    NORMAL = 2
    HIGH = 3
    URGENT = 4


class StopCause(Enum):
    """Why an attempt was told to stop."""

    CANCELLED = "CANCELLED"
    TIME_LIMIT = "TIME_LIMIT"
    FENCED = "FENCED"
    PREEMPTED = "PREEMPTED"
    GANG = "GANG"
    STALE = "STALE"
    REQUEUED = "REQUEUED"


class Outcome(Enum):
    """How a job ended."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"


class InputMode(Enum):
    """What a job can be typed to through: a pipe, or a terminal that is its output, too."""

    PIPE = "pipe"
    TERMINAL = "terminal"


class OutputStream(IntEnum):
    """One of the two outputs of a process."""

    STDOUT = 1
    STDERR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePins:
    """Devices of one node that a job must have, by index."""

    node: NodeName
    indices: tuple[int, ...]


class EndWanted(Enum):
    """Which end of another job a dependency waits for: its success, any end, or its failure."""

    OK = "ok"
    ANY = "any"
    FAIL = "fail"

    def is_met_by(self, outcome: Outcome) -> bool:
        """Whether that end is the one waited for; if not, it never will be. A cancelled job neither did nor failed."""
        match self:
            case EndWanted.OK:
                return outcome is Outcome.SUCCEEDED
            case EndWanted.ANY:
                return True
            case EndWanted.FAIL:
                return outcome in (Outcome.FAILED, Outcome.TIMED_OUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """A job waits for the end of another."""

    job: JobId
    wanted: EndWanted = EndWanted.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a job needs; equal resources are one class of request.

    `gpus` are those of all nodes together, `cpus` and `memory_bytes` those of each. `node_count` 0 means one node, or,
    for what no single node could ever hold, as few as hold it, unless `no_span` is set. `min_memory_bytes` None means
    the default of the placement rules: 8,000 MB unless set otherwise, or 90 % of the largest device, whichever is less.
    With `share_milli` it is a share of each of the `gpus` devices, not whole ones; then `min_memory_bytes` is the
    memory of each share, None: as much of the device's as the share is of it.
    """

    gpus: int = 0
    min_memory_bytes: int | None = None
    models: tuple[str, ...] = ()
    allow_busy: bool = False
    pins: tuple[NodePins, ...] = ()
    cpus: int = 1
    memory_bytes: int = 0
    nodelist: tuple[NodeName, ...] = ()
    exclude: tuple[NodeName, ...] = ()
    node_labels: tuple[tuple[str, str], ...] = ()
    ignores_telemetry: bool = False
    share_milli: int = 0
    node_count: int = 0
    no_span: bool = False

    @property
    def gpu_milli(self) -> int:
        """What it takes of GPUs in all, in thousandths of one."""
        return self.gpus * (self.share_milli or WHOLE_MILLI)


@dataclass(frozen=True, slots=True)
class Asked:
    """A class of request: jobs that ask for the same, for equally long, can all be placed now or none of them.

    A pass looks each up many times, so that its hash is computed once.
    """

    resources: Resources
    run_span: Span | None
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.resources, self.run_span)))

    def __hash__(self) -> int:
        return self._hash


class _OfClass:
    """Room for what a spec's class of request is, once somebody has asked: passes and indexes ask again and again."""

    __slots__ = ("_asked",)
    _asked: Asked


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec(_OfClass):
    """All that a user asked for, with defaults filled in. `serves` is the model that a service is a worker of."""

    argv: tuple[str, ...]
    name: str
    cwd: str
    resources: Resources = Resources()
    env: tuple[tuple[str, str], ...] = ()
    time_limit: Span | None = None
    grace: Span = DEFAULT_GRACE
    is_requeueable: bool = True
    requeue_fence: Span | None = None
    labels: tuple[tuple[str, str], ...] = ()
    trace_context: str = ""
    input: InputMode | None = None
    begin_at: Instant | None = None
    after: tuple[Dependency, ...] = ()
    queue_timeout: Span | None = None
    retries: int = 0
    blame_limit: int | None = None
    is_preemptible: bool = False
    notify: str = ""
    serves: ModelName = ModelName("")
    sampling: Span | None = None
    no_warnings: bool = False

    @property
    def run_span(self) -> Span | None:
        """How long an attempt holds its devices at most, by its enforced limit and grace; None: for ever."""
        return None if self.time_limit is None else Span(self.time_limit + self.grace)

    @property
    def asked(self) -> Asked:
        """Its class of request."""
        try:
            return self._asked
        except AttributeError:
            object.__setattr__(self, "_asked", Asked(self.resources, self.run_span))
            return self._asked

    def share_class_of(self, other: "JobSpec") -> None:
        """Know that another spec asks for the same: what is one object is found without comparing it."""
        object.__setattr__(self, "_asked", other.asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitCode:
    """The process ended by itself with a code, 0 to 255."""

    code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitSignal:
    """A signal ended the process."""

    signal: int


ExitStatus = ExitCode | ExitSignal


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputEnd:
    """Where one stream of one rank ended: `end_offset` bytes were written in all."""

    rank: int
    stream: OutputStream
    end_offset: int
    was_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExit:
    """How one rank ended. `exit` is None when nobody knows, or when it never ran. `use` is what was read of it.

    `is_presumed`: nobody saw the end; its node's fence says that it must be over.
    """

    exit: ExitStatus | None
    reason: str
    message: str = ""
    stop_cause: StopCause | None = None
    output_ends: tuple[OutputEnd, ...] = ()
    output_is_complete: bool = True
    cpu_seconds: float = 0.0
    memory_bytes_max: int = 0
    is_presumed: bool = False
    use: RankUse | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedDevice:
    """One device as it was when the scheduler decided; None where there was no telemetry.

    With `share_milli` a share of it was given, with `share_memory_bytes` of its memory; else the whole device.
    """

    index: int
    uuid: DeviceUuid
    name: str
    memory_free_bytes: int | None = None
    utilization_percent: int | None = None
    score: float | None = None
    share_milli: int = 0
    share_memory_bytes: int = 0

    @property
    def share(self) -> DeviceShare | None:
        """The share of it; None for the whole device."""
        return DeviceShare(self.share_milli, self.share_memory_bytes) if self.share_milli else None


class AllocationMethod(Enum):
    """How the devices of a placement were chosen.

    SCORE: the best of those that fit. PINNED: those that were named. SHARE: the fullest that had room, so that whole
    ones stay whole. FALLBACK: in plain order, as was asked or because what one of them does was not known.
    """

    NONE = "none"
    SCORE = "score"
    PINNED = "pinned"
    FALLBACK = "fallback"
    SHARE = "fragmentation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One rank's hold on a node. `agent_id` and `boot_id` are those of the node when it was decided."""

    node: NodeName
    agent_id: str
    boot_id: str
    devices: tuple[PlacedDevice, ...] = ()
    cpus: int = 1
    memory_bytes: int = 0
    method: AllocationMethod = AllocationMethod.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One node's part of an attempt and how far it is."""

    placement: Placement
    started_at: Instant | None = None
    exit: RankExit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Where the ranks of a gang meet: rank 0 listens there. From `at` on, when all were prepared, they may run."""

    address: str
    port: int
    at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A run of a job that holds its devices. A gang has a `rendezvous` once all its ranks were prepared."""

    number: int
    placed_at: Instant
    ranks: tuple[Rank, ...]
    is_unreachable: bool = False
    rendezvous: Rendezvous | None = None

    @property
    def is_gang(self) -> bool:
        """Whether it has a rank on more than one node."""
        return len(self.ranks) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempt:
    """A run that is over; its devices are free. How `deciding_rank` ended is how the run did."""

    number: int
    placed_at: Instant
    ended_at: Instant
    ranks: tuple[Rank, ...]
    reason: str
    message: str = ""
    output_is_complete: bool = True
    deciding_rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """Waits for its turn in the order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferred:
    """Is not eligible yet: it waits for its begin time or for the ends of other jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Waits until a person releases it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Starting:
    """Devices are held; the launch is on its way."""

    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The command runs on every rank."""

    attempt: Attempt
    started_at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """It was told to stop and has not ended. `cause` says what follows: REQUEUED and PREEMPTED queue it again.

    `claimant` is the job that it makes room for. `failed_rank` is the one that brings down its gang.
    """

    attempt: Attempt
    cause: StopCause
    since: Instant
    reason: str = ""
    started_at: Instant | None = None
    claimant: JobId | None = None
    failed_rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The end, which never changes. `exit` is None for a job with no code of its own."""

    outcome: Outcome
    at: Instant
    reason: str
    message: str = ""
    exit: ExitStatus | None = None

    @property
    def exit_code(self) -> int:
        """The code that a program gives who waits for the job: its own, 128 + its signal, 124 or 125."""
        match self.outcome, self.exit:
            case Outcome.SUCCEEDED, _:
                return 0
            case Outcome.TIMED_OUT, _:
                return 124
            case Outcome.CANCELLED, _:
                return 125
            case _, ExitCode(code=code):
                return code
            case _, ExitSignal(signal=number):
                return 128 + number
            case _:
                return 125


@dataclass(frozen=True, slots=True, kw_only=True)
class Divided:
    """An array: where it is on its way are its items. `rest` is the state of those that never differed from another."""

    rest: Queued | Deferred | Held | None


JobState = Queued | Deferred | Held | Starting | Running | Stopping | Divided | Finished
ActiveState = Starting | Running | Stopping


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTogether:
    """Items of an array that ended at once and had never differed: spans (begin, end) of ids, `end` not among them."""

    spans: tuple[tuple[JobId, JobId], ...]
    finished: Finished


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How the items of an array that have ended did. `highest_exit` is the highest exit code that one gives to wait."""

    array: JobId
    succeeded: int = 0
    failed: int = 0
    timed_out: int = 0
    cancelled: int = 0
    highest_exit: int = 0
    together: tuple[EndedTogether, ...] = ()
    version: int = 1

    @property
    def ended(self) -> int:
        """Items that have ended."""
        return self.succeeded + self.failed + self.timed_out + self.cancelled

    @property
    def failures(self) -> int:
        """Items that failed; a time limit that was reached is a failure."""
        return self.failed + self.timed_out

    def adding(self, finished: Finished, count: int = 1) -> "Tally":
        """The same with `count` more that ended so."""
        counted = TALLIED[finished.outcome]
        return replace(
            self,
            highest_exit=max(self.highest_exit, finished.exit_code),
            version=self.version + 1,
            **{counted: getattr(self, counted) + count},
        )

    def adding_together(self, ended: EndedTogether) -> "Tally":
        """The same with more that ended at once."""
        count = sum(end - begin for begin, end in ended.spans)
        return replace(self.adding(ended.finished, count), together=(*self.together, ended))


TALLIED = {
    Outcome.SUCCEEDED: "succeeded",
    Outcome.FAILED: "failed",
    Outcome.TIMED_OUT: "timed_out",
    Outcome.CANCELLED: "cancelled",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """What makes a job an array: its items are the jobs with the ids right behind its own, in the order of `indices`.

    `active_max` is how many may be active at once, and `failures_max` after how many failures the waiting rest is
    cancelled; 0 is no bound. `ended` is how they did, once all have ended.
    """

    indices: Indices
    active_max: int = 0
    failures_max: int = 0
    ended: Tally | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A submitted job. `version` rises with every change.

    `told_with` is set for equal jobs of one submit: the last of them, in whose story stands that all were queued.
    `eligible_at` is when it came to be eligible where that was not at its submit; its age counts from there. `unmet`
    are the dependencies that are still waited for, `begins_at` the begin time that has not come. `waits_since` is when
    it was queued again, from where its queue time-out counts. `array` is the array that it is an item of, and in whose
    story stands what befell all of them (`told_with`). `items` makes it an array itself. `drained_at` is
    when a worker was told to end once it has no turn any more. `warnings` are those of its newest attempt.
    """

    id: JobId
    user: UserName
    spec: JobSpec
    band: Band
    submitted_at: Instant
    state: JobState
    version: int = 1
    attempt_count: int = 0
    past: tuple[EndedAttempt, ...] = ()
    requeue_count: int = 0
    node_loss_count: int = 0
    told_with: JobId | None = None
    eligible_at: Instant | None = None
    unmet: tuple[Dependency, ...] = ()
    begins_at: Instant | None = None
    retries_used: int = 0
    waits_since: Instant | None = None
    array: JobId | None = None
    items: Items | None = None
    drained_at: Instant | None = None
    warnings: tuple[JobWarning, ...] = ()

    @property
    def age_since(self) -> Instant:
        """From when its age counts: its place in the order within a band. A requeue does not change it."""
        return self.submitted_at if self.eligible_at is None else self.eligible_at

    @property
    def wakes_at(self) -> Instant | None:
        """When time alone changes something for it: it begins to be eligible, or has waited too long."""
        match self.state:
            case Deferred() | Divided(rest=Deferred()):
                return self.begins_at
            case Queued() | Divided(rest=Queued()) if self.spec.queue_timeout is not None:
                return after(self.waits_since or self.age_since, self.spec.queue_timeout)
            case _:
                return None

    @property
    def attempt(self) -> Attempt | None:
        """The attempt that holds devices now, if any."""
        match self.state:
            case Starting() | Running() | Stopping():
                return self.state.attempt
            case _:
                return None

    @property
    def is_finished(self) -> bool:
        """Whether the job has ended for good."""
        return isinstance(self.state, Finished)


def rank_keys(job: Job, attempt: Attempt) -> tuple[RankKey, ...]:
    """The keys of all ranks of an attempt of this job."""
    return tuple(RankKey(job.id, attempt.number, rank) for rank in range(len(attempt.ranks)))


def attempt_id(job: Job, attempt: Attempt) -> AttemptId:
    """The id of an attempt of this job."""
    return AttemptId(job.id, attempt.number)


def items_alike(array: Job) -> Job:
    """The first item of an array as it is queued, and all others but for their ids."""
    assert isinstance(array.state, Divided) and array.state.rest is not None, f"job {array.id} has no items that wait"
    first = JobId(array.id + 1)
    return replace(array, id=first, state=array.state.rest, version=1, array=array.id, items=None, told_with=array.id)


def index_of(array: Job, item: Job) -> int:
    """The index of an item of this array."""
    assert array.items is not None and item.array == array.id, f"job {item.id} is no item of job {array.id}"
    return array.items.indices.at(item.id - array.id - 1)


def item_ended_together(array: Job, tally: Tally, job_id: JobId) -> Job | None:
    """An item that ended without ever having differed, of which nothing else is kept; None for any other."""
    for ended in tally.together:
        if any(begin <= job_id < end for begin, end in ended.spans):
            return replace(
                array,
                id=job_id,
                state=ended.finished,
                version=2,
                array=array.id,
                items=None,
                told_with=array.id,
                unmet=(),
                begins_at=None,
            )
    return None
