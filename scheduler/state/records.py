"""What was decided: the only thing that is stored, and the only thing that changes `Durable`.

A record is a fact that holds from now on. Its fields say everything that `apply` needs; nothing is looked up elsewhere.
"""

from dataclasses import dataclass

from .access import RememberedRequest, Token
from .attempts import Attempt, EndedAttempt, RankExit, Rendezvous, StopCause
from .ids import JobId, NodeName, RankKey, TokenId, UserName
from .jobs import Finished, Job
from .nodes import Node, UnhealthyDevice
from .session_records import SessionRecord
from .specs import Band
from .units import Instant
from .warnings import JobWarning


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQueued:
    """A job was accepted, or `count` equal ones with the ids from `job.id` on; `job.state` says if it is eligible.

    An array is accepted with all of its items, whose ids follow its own.
    """

    at: Instant
    job: Job
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRemembered:
    """A request was carried out and must not be carried out again."""

    at: Instant
    request: RememberedRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestForgotten:
    """A remembered request is old enough to be dropped."""

    at: Instant
    user: UserName
    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHeld:
    """A person holds a job."""

    at: Instant
    job: JobId
    by: UserName


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReleased:
    """A person released a job."""

    at: Instant
    job: JobId
    by: UserName


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginReached:
    """The begin time of a job has come; it is eligible unless it waits for other jobs, too."""

    at: Instant
    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class DependencyMet:
    """A job that this one waited for has ended as it must; without another to wait for it is eligible."""

    at: Instant
    job: JobId
    on: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBandChanged:
    """A person moved a job to another band."""

    at: Instant
    job: JobId
    by: UserName
    band: Band


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsHeld:
    """A person holds an array: all of its items that wait and never differed, at once."""

    at: Instant
    array: JobId
    by: UserName


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsReleased:
    """A person released an array: all of its items that are held and never differed, at once."""

    at: Instant
    array: JobId
    by: UserName


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsMoved:
    """A person moved an array to another band: it, and all of its items that wait and never differed, at once."""

    at: Instant
    array: JobId
    by: UserName
    band: Band


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsFinished:
    """All items of an array that never differed have ended at once, without an attempt. `spans` are their ids."""

    at: Instant
    array: JobId
    spans: tuple[tuple[JobId, JobId], ...]
    finished: Finished
    by: UserName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPlaced:
    """An attempt holds its devices from now on."""

    at: Instant
    job: JobId
    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReady:
    """Every rank of a gang is prepared; from now on they are started, and its number is used up."""

    at: Instant
    job: JobId
    rendezvous: Rendezvous


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted:
    """A rank's command runs; with the last rank the job does."""

    at: Instant
    key: RankKey
    started_at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStopping:
    """An attempt was told to stop, and why."""

    at: Instant
    job: JobId
    cause: StopCause
    reason: str = ""
    by: UserName | None = None
    claimant: JobId | None = None
    failed_rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptUnreachable:
    """The node of an attempt is lost, or heard again; the attempt goes on as far as anybody knows."""

    at: Instant
    job: JobId
    is_unreachable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnded:
    """One rank of a gang has ended while others go on."""

    at: Instant
    key: RankKey
    exit: RankExit


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded:
    """An attempt is over, its devices are free, and the job waits again; not eligible before `begins_at`."""

    at: Instant
    job: JobId
    ended: EndedAttempt
    is_held: bool = False
    is_retry: bool = False
    begins_at: Instant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptVoided:
    """A placement was handed back before anything started: its number counts for nothing.

    `node` is where it failed; `left_out` are nodes that are given nothing for a moment because they did not answer.
    """

    at: Instant
    job: JobId
    number: int
    node: NodeName
    reason: str
    message: str = ""
    left_out: tuple[NodeName, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDrained:
    """A worker takes no new turns and ends after its last one, because of this."""

    at: Instant
    job: JobId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFinished:
    """A job has ended for good. `ended` is its last attempt, where it had one."""

    at: Instant
    job: JobId
    finished: Finished
    ended: EndedAttempt | None = None
    by: UserName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolStateChanged:
    """A rank's output waits for room on its node, or goes on; kept for the story only."""

    at: Instant
    key: RankKey
    is_full: bool
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalSent:
    """A signal was sent to a job; kept for the story."""

    at: Instant
    job: JobId
    by: UserName
    signal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRegistered:
    """A node joined, or joined again with other facts."""

    at: Instant
    node: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost:
    """A node was not heard for its whole lease."""

    at: Instant
    node: NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReturned:
    """A lost node is heard again."""

    at: Instant
    node: NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDrained:
    """A person drains a node."""

    at: Instant
    node: NodeName
    by: UserName
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResumed:
    """A person resumed a node; its unhealthy devices get another chance."""

    at: Instant
    node: NodeName
    by: UserName


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeForgotten:
    """A person dropped a node."""

    at: Instant
    node: NodeName
    by: UserName


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMarked:
    """A device is in trouble and is not placed on until its node is resumed."""

    at: Instant
    node: NodeName
    device: UnhealthyDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWarned:
    """Something goes on with a job's attempt that its person would want to know. The job goes on as well as it can."""

    at: Instant
    job: JobId
    warning: JobWarning


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCreated:
    """A token was made."""

    at: Instant
    token: Token
    by: UserName


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRevoked:
    """A token is useless from now on."""

    at: Instant
    token: TokenId
    by: UserName


Record = (
    JobQueued
    | RequestRemembered
    | RequestForgotten
    | JobHeld
    | JobReleased
    | BeginReached
    | DependencyMet
    | JobBandChanged
    | ItemsHeld
    | ItemsReleased
    | ItemsMoved
    | ItemsFinished
    | AttemptPlaced
    | AttemptReady
    | AttemptStarted
    | AttemptStopping
    | AttemptUnreachable
    | RankEnded
    | AttemptEnded
    | AttemptVoided
    | WorkerDrained
    | JobFinished
    | SpoolStateChanged
    | SignalSent
    | NodeRegistered
    | NodeLost
    | NodeReturned
    | NodeDrained
    | NodeResumed
    | NodeForgotten
    | DeviceMarked
    | JobWarned
    | TokenCreated
    | TokenRevoked
    | SessionRecord
)


def job_of(record: Record) -> JobId | None:
    """The job whose story a record belongs to, if any."""
    match record:
        case JobQueued(job=job):
            return job.told_with or job.id
        case AttemptStarted(key=key) | RankEnded(key=key) | SpoolStateChanged(key=key):
            return key.job
        case (
            JobHeld(job=job_id)
            | JobReleased(job=job_id)
            | BeginReached(job=job_id)
            | DependencyMet(job=job_id)
            | JobBandChanged(job=job_id)
            | AttemptPlaced(job=job_id)
            | AttemptReady(job=job_id)
            | AttemptStopping(job=job_id)
            | AttemptUnreachable(job=job_id)
            | AttemptEnded(job=job_id)
            | AttemptVoided(job=job_id)
            | WorkerDrained(job=job_id)
            | JobFinished(job=job_id)
            | SignalSent(job=job_id)
            | JobWarned(job=job_id)
        ):
            return job_id
        case ItemsHeld(array=array) | ItemsReleased(array=array) | ItemsMoved(array=array) | ItemsFinished(array=array):
            return array
        case _:
            return None


SHARED_KINDS = (JobQueued, ItemsHeld, ItemsReleased, ItemsMoved, ItemsFinished, BeginReached, DependencyMet)
"""What befalls all items of an array at once, and stands in its story."""


def is_shared(record: Record, job: Job) -> bool:
    """Whether a record in the story that a job is told with (`told_with`) is of that job, too."""
    match record:
        case JobQueued():
            return True
        case ItemsFinished(spans=spans):
            return any(begin <= job.id < end for begin, end in spans)
        case _:
            return job.array is not None and isinstance(record, SHARED_KINDS)
