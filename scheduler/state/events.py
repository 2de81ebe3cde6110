"""What can happen: the inputs of the core. An event says what the world did; `core.decide` says what follows.

Every event carries `at`, the instant on the scheduler's clock when it was taken up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpufleet.jobs.runs import FileRun

from .access import Secret, Token
from .attempts import OutputEnd, OutputStream, RankExit, RefusalKind, kind_of_reason
from .gap import Origin
from .groups.changes import GroupEvent
from .ids import JobId, NodeName, RankKey, SecretName, TokenId, UserName
from .jobs import Items
from .kept import KeptCopy
from .nodes import DeviceSample, HostSample, NodeInfo
from .results import ResultsOutcome
from .sessions.events import SessionEvent
from .specs import Band, JobSpec, Outcome
from .units import Instant, Span
from .used import ReportedUse
from .warnings import MemoryPeak


@dataclass(frozen=True, slots=True, kw_only=True)
class OfJobs:
    """A person wants something of jobs."""

    at: Instant
    by: UserName
    jobs: tuple[JobId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """A node reports something of one rank of an attempt."""

    at: Instant
    node: NodeName
    key: RankKey


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedJob:
    """One job of a submit: what it asks for, its band, and whether it waits for its release.

    `group` is the name of the group that it is of; empty: the first of its user, if there is one. With `band_may_fall`
    nobody asked for the band: it is the highest one that the group may have, up to that.
    """

    spec: JobSpec
    band: Band
    is_held: bool = False
    group: str = ""
    band_may_fall: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsSubmitted:
    """A user submits `jobs`, `count` equal ones of a single one, or an array of it. All are taken or none.

    `items` is the array's. `ended` holds how jobs ended that the specs wait for and that are no longer live.
    """

    at: Instant
    user: UserName
    jobs: tuple[WantedJob, ...]
    count: int = 1
    request_id: str = ""
    request_digest: str = ""
    is_dry_run: bool = False
    ended: Mapping[JobId, Outcome | None] = field(default_factory=dict)
    items: Items | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested(OfJobs):
    """A person wants jobs stopped. `is_abandoned`: end the record even where the node cannot be reached."""

    reason: str = ""
    is_abandoned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldRequested(OfJobs):
    """A person holds jobs, or releases them."""

    is_held: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BandRequested(OfJobs):
    """A person moves jobs to another band."""

    band: Band


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRequested(OfJobs):
    """A person gives jobs another name, band or time limit: what is None stays as it is.

    `is_unlimited` takes the time limit away; `may_extend` says that a longer limit, or none any more, may be given.
    """

    name: str | None = None
    band: Band | None = None
    time_limit: Span | None = None
    is_unlimited: bool = False
    may_extend: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalRequested(OfJobs):
    """A person sends a signal to every process of jobs. `is_sent`: it left before its commit and is not sent."""

    signal: int
    request_id: str = ""
    request_digest: str = ""
    is_sent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRequested:
    """A person enters a job's running attempt: by a `port` that a process of it listens on, with a `command` of their
    own, or to its `files`.
    """

    at: Instant
    by: UserName
    job: JobId
    attempt: int
    port: int = 0
    command: str = ""
    files: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsReported:
    """A node has brought what a rank left, as far as it could, and it is stored. `message` says what is missing.

    `kept` is the copy for the next attempt, where all of it has come.
    """

    at: Instant
    key: RankKey
    outcome: ResultsOutcome
    file_count: int = 0
    size_bytes: int = 0
    message: str = ""
    kept: KeptCopy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStored:
    """A rank that runs has asked to store what it keeps, and all of it is stored."""

    at: Instant
    key: RankKey
    copy: KeptCopy


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueRequested(OfJobs):
    """A person wants jobs taken off their nodes and queued again."""

    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProof:
    """How an agent proves itself: by the `credential` of its node, by a token that lets nodes join, or, with neither,
    by one of role AGENT. `fresh` is the number of the credential that it may be given; 0 where it takes none.
    """

    credential: int = 0
    join_token: TokenId | None = None
    fresh: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnnounced:
    """An agent registers its node."""

    at: Instant
    name: NodeName
    agent_id: str
    incarnation: int
    boot_id: str
    info: NodeInfo
    address: str = ""
    proof: NodeProof = NodeProof()
    knows_lineages: bool = False
    keeps_backlog: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRefused:
    """An agent was refused as it registered its node, which has heard of more than the store has.

    `reason` is that of the error which it got, `message` what was said. The store may not know the node.
    """

    at: Instant
    node: NodeName
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedStarting:
    """The node was asked to start the rank and does not know yet whether it runs. `time_limit` as for SeenRunning."""

    time_limit: Span | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedRunning:
    """The rank's process runs, for `run_span` so far. `output_blocked` says why its output waits for room there.

    `time_limit` is its node's, 0 for none; None: it did not say. `file_runs` say how its files came.
    """

    run_span: Span
    output_blocked: str = ""
    time_limit: Span | None = None
    file_runs: tuple[FileRun, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedExited:
    """The rank has ended. `started_ago`: its command started so long ago; None: it never ran, or nobody knows."""

    exit: RankExit
    started_ago: Span | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedRefused:
    """The rank was refused and never started."""

    reason: str
    message: str = ""
    kind: RefusalKind | None = None


ReportedState = ReportedStarting | ReportedRunning | ReportedExited | ReportedRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryReported:
    """Everything that a node knows, sent first on each new stream. Streams of all nodes are numbered from 1.

    Once it is posted, no report of an older stream of the node is posted any more. `stream` counts streams as they
    arrive; `sequence` is the agent's number of the message and rises as the agent opens them, which may be in another
    order. Where a gap is open, `forgotten` are ends that it was told to forget, and `origins` say which job it is that
    a scheduler launched.
    """

    at: Instant
    node: NodeName
    agent_id: str
    incarnation: int
    sequence: int
    stream: int
    boot_id: str
    info: NodeInfo
    entries: tuple[tuple[RankKey, ReportedState], ...]
    forgotten: tuple[tuple[RankKey, ReportedExited], ...] = ()
    origins: tuple[tuple[RankKey, Origin], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """A node is at work on a rank that has not begun: what it does, and for how long nothing of it has moved."""

    key: RankKey
    still: Span
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBeat:
    """A sign of life with the newest samples. `usages` is what each rank that runs used, as its agent sent it.

    `peaks` is of that what is decided by: see `MEMORY_JUDGED_SPAN`. `preparations` are ranks that have not begun.
    """

    at: Instant
    node: NodeName
    stream: int
    samples: tuple[DeviceSample, ...] = ()
    host: HostSample = HostSample()
    usages: tuple[tuple[RankKey, ReportedUse], ...] = ()
    peaks: tuple[tuple[RankKey, MemoryPeak], ...] = ()
    preparations: tuple[Preparation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRootChecked:
    """A node has read what somebody had just written in a shared folder.

    That it could not is no event: who asked may have written nothing.
    """

    at: Instant
    node: NodeName
    root: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDisconnected:
    """A heartbeat stream of a node broke. Nothing follows at once: the lease decides."""

    at: Instant
    node: NodeName
    stream: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReady(RankReport):
    """A rank of a gang is prepared; rank 0 found a free port for the others to meet at."""

    master_port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStarted(RankReport):
    """A rank's command runs, for `run_span` so far. `file_runs` say how its files came, as far as its node tells."""

    run_span: Span = Span(0)
    file_runs: tuple[FileRun, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExited(RankReport):
    """A rank has ended: its leader exited, its group is gone, its output has ended.

    Its start may never have been heard: `started_ago` is how long ago that was; None: it never ran, or nobody knows.
    """

    exit: RankExit
    started_ago: Span | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRefused(RankReport):
    """A node refuses a rank: it was not started and never will be under this number. `kind` None: by the reason."""

    reason: str
    message: str = ""
    samples: tuple[DeviceSample, ...] = ()
    kind: RefusalKind | None = None

    @property
    def blames(self) -> RefusalKind:
        """Whom it blames."""
        return self.kind or kind_of_reason(self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSynced:
    """The store holds every byte of these streams of a rank below these ends, and none behind them."""

    at: Instant
    key: RankKey
    ends: tuple[OutputEnd, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeFailed(RankReport):
    """A node could not deliver a notice of an attempt: the how-manieth failure of it, which notice, and why."""

    number: int
    notice: str
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupReported(RankReport):
    """A node makes the environment of a rank, or has it. `message` is a sentence, with what was written last.

    With `image` it is that image which comes, or is there.
    """

    is_ready: bool
    message: str = ""
    image: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolFilled(RankReport):
    """A rank's output waits for room on its node, or goes on."""

    is_full: bool
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputDamaged(RankReport):
    """A node's disk has changed a rank's output from `start` up to but without `end`, before it was sent."""

    stream: OutputStream
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRequested:
    """A person drains a node, or resumes it (which also gives its unhealthy devices another chance)."""

    at: Instant
    by: UserName
    node: NodeName
    is_draining: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetRequested:
    """A person drops a node that will not come back."""

    at: Instant
    by: UserName
    node: NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeApprovalRequested:
    """A person lets a node take part."""

    at: Instant
    by: UserName
    node: NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRevokeRequested:
    """A person makes a node's credential useless."""

    at: Instant
    by: UserName
    node: NodeName
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequested:
    """A person, or the first start, makes a token."""

    at: Instant
    by: UserName
    token: Token


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeRequested:
    """A person makes a token useless."""

    at: Instant
    by: UserName
    token: TokenId


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginProven:
    """A person has proven who they are, and is given this token."""

    at: Instant
    token: Token


@dataclass(frozen=True, slots=True, kw_only=True)
class LogoutRequested:
    """A person ends the login that this token is of."""

    at: Instant
    by: UserName
    token: TokenId


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStarted:
    """The store was loaded. Every node's span begins anew.

    With a `gap`, why the store lacks jobs that there were, these may have had numbers up to `jobs_above`, and sessions
    up to `sessions_above`. `term` is that of the start.
    """

    at: Instant
    gap: str = ""
    jobs_above: JobId = JobId(0)
    sessions_above: int = 0
    term: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GapReleaseRequested:
    """An admin lets all jobs start that wait since the store was put back."""

    at: Instant
    by: UserName


@dataclass(frozen=True, slots=True, kw_only=True)
class NumbersReported:
    """A node knows of history that was given up, with numbers of jobs and sessions up to these: they go on above."""

    at: Instant
    jobs_above: JobId
    sessions_above: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingResumed:
    """The scheduler was not reading for `gap`: no node can be blamed for what was not heard meanwhile."""

    at: Instant
    gap: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockAdvanced:
    """A deadline that the core asked for has come."""

    at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramAnnounced:
    """A worker or gateway trades the token `by` for a credential with this id and digest, or renews its own."""

    at: Instant
    by: TokenId
    name: str
    digest: str
    fresh: TokenId
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSubmitted:
    """A person sets a secret, which is sealed."""

    at: Instant
    secret: Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRemovalRequested:
    """A person removes a secret of a user."""

    at: Instant
    by: UserName
    user: UserName
    name: SecretName


Event = (
    JobsSubmitted
    | CancelRequested
    | HoldRequested
    | BandRequested
    | UpdateRequested
    | SignalRequested
    | EntryRequested
    | ResultsReported
    | CheckpointStored
    | RequeueRequested
    | NodeAnnounced
    | NodeRefused
    | InventoryReported
    | NodeBeat
    | NodeDisconnected
    | SharedRootChecked
    | RankReady
    | RankStarted
    | RankExited
    | RankRefused
    | OutputSynced
    | NoticeFailed
    | SetupReported
    | SpoolFilled
    | OutputDamaged
    | DrainRequested
    | ForgetRequested
    | NodeApprovalRequested
    | NodeRevokeRequested
    | TokenRequested
    | RevokeRequested
    | LoginProven
    | LogoutRequested
    | ProgramAnnounced
    | SecretSubmitted
    | SecretRemovalRequested
    | SchedulerStarted
    | NumbersReported
    | GapReleaseRequested
    | ReadingResumed
    | ClockAdvanced
    | SessionEvent
    | GroupEvent
)
