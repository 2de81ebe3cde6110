"""What was decided: the only thing that is stored, and the only thing that changes `Durable`.

A record is a fact that holds from now on. Its fields say everything that `apply` needs; nothing is looked up elsewhere.
"""

from dataclasses import dataclass, replace

from gpufleet.jobs.runs import FileRun, StopCause

from .access import RememberedRequest, Secret, Token
from .attempts import Attempt, EndedAttempt, RankExit, Rendezvous
from .gap import HistoryGap
from .groups.changes import GroupRecord
from .ids import JobId, NodeName, RankKey, SecretName, TokenId, UserName
from .jobs import Finished, Job
from .kept import KeptCopy
from .nodes import Node, UnhealthyDevice
from .results import ResultsOutcome
from .sessions.records import SessionRecord
from .specs import Band, KeptAway
from .units import Instant, Span
from .warnings import JobWarning


@dataclass(frozen=True, slots=True, kw_only=True)
class OfJob:
    """A fact of one job."""

    at: Instant
    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class OfItems:
    """A person changes an array: it, and all of its items that wait and never differed, at once."""

    at: Instant
    array: JobId
    by: UserName


@dataclass(frozen=True, slots=True, kw_only=True)
class OfRank:
    """A fact of one rank of an attempt."""

    at: Instant
    key: RankKey


@dataclass(frozen=True, slots=True, kw_only=True)
class OfNode:
    """A fact of one node."""

    at: Instant
    node: NodeName


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
class JobHeld(OfJob):
    """A person holds a job."""

    by: UserName


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReleased(OfJob):
    """A person released a job."""

    by: UserName


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginReached(OfJob):
    """The begin time of a job has come; it is eligible unless it waits for other jobs, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DependencyMet(OfJob):
    """A job that this one waited for has ended as it must; without another to wait for it is eligible."""

    on: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBandChanged(OfJob):
    """A person moved a job to another band."""

    by: UserName
    band: Band


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUpdated(OfJob):
    """A person gave a job another name or time limit: what is None stays. `is_unlimited`: it has no limit any more."""

    by: UserName
    name: str | None = None
    time_limit: Span | None = None
    is_unlimited: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsUpdated(OfItems):
    """The same of an array: of it, and of all of its items that wait and never differed, at once."""

    name: str | None = None
    time_limit: Span | None = None
    is_unlimited: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsHeld(OfItems):
    """A person holds an array: all of its items that wait and never differed, at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsReleased(OfItems):
    """A person released an array: all of its items that are held and never differed, at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsMoved(OfItems):
    """A person moved an array to another band: it, and all of its items that wait and never differed, at once."""

    band: Band


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFellBack(OfJob):
    """A job does without the GPUs that it prefers, from now on until it is queued again. `reason` is a stable name."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsFellBack:
    """The same of an array: of it, and of all of its items that wait and never differed, at once."""

    at: Instant
    array: JobId
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FallBackPostponed(OfJob):
    """A job that prefers GPUs would gain nothing without them: it waits on, and is looked at again at `until`."""

    until: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsFallBackPostponed:
    """The same of an array, and of all of its items that wait and never differed."""

    at: Instant
    array: JobId
    until: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsFinished:
    """All items of an array that never differed have ended at once, without an attempt. `spans` are their ids."""

    at: Instant
    array: JobId
    spans: tuple[tuple[JobId, JobId], ...]
    finished: Finished
    by: UserName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPlaced(OfJob):
    """An attempt holds its devices from now on."""

    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReady(OfJob):
    """Every rank of a gang is prepared; from now on they are started, and its number is used up."""

    rendezvous: Rendezvous


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted(OfRank):
    """A rank's command runs; with the last rank the job does."""

    started_at: Instant
    file_runs: tuple[FileRun, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStopping(OfJob):
    """An attempt was told to stop, and why."""

    cause: StopCause
    reason: str = ""
    by: UserName | None = None
    claimant: JobId | None = None
    failed_rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptUnreachable(OfJob):
    """The node of an attempt is lost, or heard again; the attempt goes on as far as anybody knows."""

    is_unreachable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptAskedBack(OfJob):
    """An attempt is asked back out of its node's backlog; one that has started meanwhile goes on."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnded(OfRank):
    """One rank of a gang has ended while others go on."""

    exit: RankExit


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded(OfJob):
    """An attempt is over, its devices are free, and the job waits again; not eligible before `begins_at`.

    `needs_gpus`: it fell back and said that it needs its GPUs, which it waits for from now on. `awaits_kept`: until
    `begins_at` it waits for what the attempt keeps.
    """

    ended: EndedAttempt
    is_held: bool = False
    is_retry: bool = False
    needs_gpus: bool = False
    begins_at: Instant | None = None
    awaits_kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptVoided(OfJob):
    """A placement was handed back before anything started: its number counts for nothing.

    `node` is where it failed; `kept_away` are nodes on which this job is not placed for a while, or ever. Schedulers of
    before gave nothing to those `left_out` for a moment, and with `is_excluded` did not place the job on `node` again.
    """

    number: int
    node: NodeName
    reason: str
    message: str = ""
    left_out: tuple[NodeName, ...] = ()
    is_excluded: bool = False
    kept_away: tuple[KeptAway, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesOpened(OfJob):
    """A job may be tried again on the nodes from which it was kept away until now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDrained(OfJob):
    """A worker takes no new turns and ends after its last one, because of this."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFinished(OfJob):
    """A job has ended for good. `ended` is its last attempt, where it had one."""

    finished: Finished
    ended: EndedAttempt | None = None
    by: UserName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupStateChanged(OfRank):
    """A node makes the environment of a rank, or has it, or an image for it; kept for the story only."""

    is_ready: bool
    message: str = ""
    image: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolStateChanged(OfRank):
    """A rank's output waits for room on its node, or goes on; kept for the story only."""

    is_full: bool
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalSent(OfJob):
    """A signal was sent to a job; kept for the story."""

    by: UserName
    signal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEntered(OfJob):
    """A person connected to a `port` of a running job, ran a `command` in it, or reached its `files`; for the story."""

    by: UserName
    attempt: int
    port: int = 0
    command: str = ""
    files: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeNotDelivered(OfRank):
    """A notice of `--notify` was not delivered; for the story, and for the job's owner and admins alone.

    `number` is the how-manieth failure of its attempt this is.
    """

    number: int
    notice: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsSettled(OfRank):
    """What a rank left is stored, as far as it came, or lost. `message` says what is missing and why."""

    outcome: ResultsOutcome
    file_count: int = 0
    size_bytes: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesKept(OfRank):
    """A whole copy of what a rank keeps is stored: the next attempt finds it, unless a newer one follows."""

    copy: KeptCopy
    is_checkpoint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptWaitEnded(OfJob):
    """A job waits no longer for what its last attempt keeps: it has come, or `reason` says why it is not waited for."""

    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRegistered:
    """A node joined, or joined again with other facts."""

    at: Instant
    node: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost(OfNode):
    """A node was not heard for its whole lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReturned(OfNode):
    """A lost node is heard again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDrained(OfNode):
    """A person drains a node."""

    by: UserName
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResumed(OfNode):
    """A person resumed a node; its unhealthy devices get another chance."""

    by: UserName


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeApproved(OfNode):
    """A person lets a node take part that waited for it, or whose credential was revoked."""

    by: UserName


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRevoked(OfNode):
    """A person made a node's credential useless."""

    by: UserName
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRootChecked(OfNode):
    """A node was found to see this shared folder by a probe."""

    root: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeForgotten(OfNode):
    """A person dropped a node."""

    by: UserName


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMarked(OfNode):
    """A device is in trouble and is not placed on until its node is resumed."""

    device: UnhealthyDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWarned(OfJob):
    """Something goes on with a job's attempt that its person would want to know. The job goes on as well as it can."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginEnded:
    """Somebody logged out: their token has expired."""

    at: Instant
    token: TokenId
    by: UserName


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginForgotten:
    """The token of a login that has ended is kept no longer."""

    at: Instant
    token: TokenId


@dataclass(frozen=True, slots=True, kw_only=True)
class NumbersRaised:
    """The store lacks jobs that there were, for this reason: numbers go on from `next_job`."""

    at: Instant
    next_job: JobId
    reason: str
    next_session: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GapAccepted:
    """A person went on with a store that lacks history. Its jobs wait for what nodes tell."""

    at: Instant
    gap: HistoryGap


@dataclass(frozen=True, slots=True, kw_only=True)
class GapNodeReported(OfNode):
    """A node that is waited for since the last gap has told what it runs, and runs nothing that the store lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GapReleased(OfJob):
    """A person lets jobs start that wait since the last gap: a job, or those items of an array, in spans of ids."""

    by: UserName
    spans: tuple[tuple[JobId, JobId], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GapReleasedWhole:
    """A person lets all jobs start that wait since the last gap."""

    at: Instant
    by: UserName


@dataclass(frozen=True, slots=True, kw_only=True)
class GapOutlived(OfJob):
    """A job from before the last gap is placed for the first time since, as no node has told of an attempt of it."""

    cut_at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFound(OfJob):
    """A node has told of an attempt that the store lacks, of a job that it has: that is the job's from now on.

    `exit` is how it ended, whose output is looked for then; None where it runs. `cause`: it was told to stop.
    """

    attempt: Attempt
    cause: StopCause | None = None
    exit: RankExit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptGivenUp(OfRank):
    """A node has told of an attempt that the store lacks, of a job that it has, and it does not count, for this reason.

    `is_running`: it was ended. The job may have done its work already, and runs again.
    """

    node: NodeName
    is_running: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFound:
    """A node has told of a job that the store lacks. It is kept as it ended; one that ran was ended.

    One whose output its node still has is live until that is taken in: its end follows.
    """

    at: Instant
    job: Job


@dataclass(frozen=True, slots=True, kw_only=True)
class GapClosed:
    """No job waits since the last gap any more."""

    at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsed:
    """A token let a node join."""

    at: Instant
    token: TokenId
    node: NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramJoined:
    """A worker or gateway traded a token for this credential, which counts as a use of it."""

    at: Instant
    token: Token


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialRenewed:
    """A worker or gateway has another credential in the place of the one before."""

    at: Instant
    token: TokenId
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSet:
    """A secret has this value from now on. The story keeps that it was set, and not what was sealed
    (`without_sealed_value`)."""

    at: Instant
    secret: Secret
    by: UserName


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRemoved:
    """A secret is gone."""

    at: Instant
    user: UserName
    name: SecretName
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
    | JobUpdated
    | ItemsHeld
    | ItemsReleased
    | ItemsMoved
    | ItemsUpdated
    | JobFellBack
    | ItemsFellBack
    | FallBackPostponed
    | ItemsFallBackPostponed
    | ItemsFinished
    | AttemptPlaced
    | AttemptReady
    | AttemptStarted
    | AttemptStopping
    | AttemptUnreachable
    | AttemptAskedBack
    | RankEnded
    | AttemptEnded
    | AttemptVoided
    | NodesOpened
    | WorkerDrained
    | JobFinished
    | SetupStateChanged
    | SpoolStateChanged
    | SignalSent
    | JobEntered
    | NoticeNotDelivered
    | ResultsSettled
    | FilesKept
    | KeptWaitEnded
    | NodeRegistered
    | NodeLost
    | NodeReturned
    | NodeDrained
    | NodeResumed
    | NodeApproved
    | NodeRevoked
    | NodeRootChecked
    | NodeForgotten
    | DeviceMarked
    | JobWarned
    | TokenCreated
    | TokenRevoked
    | LoginEnded
    | LoginForgotten
    | TokenUsed
    | ProgramJoined
    | CredentialRenewed
    | NumbersRaised
    | GapAccepted
    | GapNodeReported
    | GapReleased
    | GapReleasedWhole
    | GapOutlived
    | GapClosed
    | AttemptFound
    | AttemptGivenUp
    | JobFound
    | SecretSet
    | SecretRemoved
    | SessionRecord
    | GroupRecord
)


def job_of(record: Record) -> JobId | None:
    """The job whose story a record belongs to, if any."""
    match record:
        case JobQueued(job=job):
            return job.told_with or job.id
        case JobFound(job=job):
            return job.id
        case OfJob():
            return record.job
        case OfRank():
            return record.key.job
        case OfItems() | ItemsFellBack() | ItemsFallBackPostponed() | ItemsFinished():
            return record.array
        case _:
            return None


SHARED_KINDS = (
    JobQueued,
    ItemsHeld,
    ItemsReleased,
    ItemsMoved,
    ItemsUpdated,
    ItemsFellBack,
    ItemsFallBackPostponed,
    ItemsFinished,
    BeginReached,
    DependencyMet,
)
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


def without_sealed_value(record: Record) -> Record:
    """A record as its story keeps it: of a secret nothing of its value, sealed as it is, outlives the secret there."""
    if isinstance(record, SecretSet):
        return replace(record, secret=replace(record.secret, sealed=b""))
    return record
