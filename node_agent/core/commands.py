"""What the scheduler can ask of a node, as values, and which of it is carried out.

A command rests on what the scheduler knew when it sent it. What starts something on old knowledge could
run a job twice, so it is refused; what ends something is right at any age, because nothing ended ever
comes back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from gpufleet.jobs.runs import InputMode, RankKey, StopCause

from .adoption import Verdict
from .attempt import Limits
from .expectations import Expectations
from .fence import CommandRefusal, refusal_of_command
from .launch import ContainerAsked, InputFile, InputFolder, JobEnvironment, JobInput, Process, Refusal, RefusalReason


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchAttempt:
    """Run one rank. `trace_context` and `notify` may be empty. `serves` is a worker's model, empty for a batch job.

    `cpus` and `memory_bytes` are what the scheduler holds for it on this node (0 bytes: none). They are no limits: a
    process is kept from using more only by who may make control groups, and an agent needs no such right. `files`, what
    is in `folder` and what other jobs left as `inputs` lie in a folder of its own before it starts; where its process
    has no `cwd`, that is its working directory. `results` of it are brought to the scheduler when it has ended, and so
    is what it is to `keep` for the next attempt, which finds it as `kept`, laid over the other files. What
    `secret_variables` hold is for the process alone. `origin` is the scheduler's word about the attempt, kept with it.
    It begins in its `environment`, which is made of its files.
    With a `container` it runs in one, and `cwd` is a path in that. With a `slot` it waits in the backlog until those of
    that slot that came before it have ended: the slot is named by the first attempt that was in it. `run_number` is
    which attempt of the job that ran it is; 0: its number says so.
    """

    key: RankKey
    process: Process
    expectations: Expectations
    cpus: int = 1
    memory_bytes: int = 0
    user: str = ""
    trace_context: str = ""
    node_count: int = 1
    is_gang: bool = False
    notify: str = ""
    share_milli: int = 0
    share_memory_bytes: int = 0
    serves: str = ""
    sampling_us: int | None = None
    files: tuple[InputFile, ...] = ()
    folder: InputFolder | None = None
    results: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    kept: InputFolder | None = None
    secret_variables: frozenset[str] = frozenset()
    origin: str = ""
    environment: JobEnvironment | None = None
    container: ContainerAsked | None = None
    slot: RankKey | None = None
    run_number: int = 0
    inputs: tuple[JobInput, ...] = ()

    @property
    def has_files(self) -> bool:
        """Whether it has a folder of files: something is fetched before it starts, or brought back behind its end."""
        has_some = self.files or self.results or self.keep or self.inputs
        return bool(has_some) or self.folder is not None

    @property
    def is_prepared_for(self) -> bool:
        """Whether something takes its time before it starts: files that are fetched, an image that is pulled."""
        return self.has_files or self.container is not None

    def within(self, limits: Limits) -> LaunchAttempt:
        """The same command with other limits of its process."""
        return replace(self, process=replace(self.process, limits=limits))


@dataclass(frozen=True, slots=True)
class PrepareAttempt:
    """Check everything for a rank of a gang and hold it ready."""

    launch: LaunchAttempt

    @property
    def key(self) -> RankKey:
        return self.launch.key


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Let a prepared rank run; rank 0 listens there for the others."""

    key: RankKey
    master_address: str
    master_port: int


@dataclass(frozen=True, slots=True)
class AbortAttempt:
    """Take back a PrepareAttempt."""

    key: RankKey


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Hand back a rank that waits in the backlog; one that was started goes on."""

    key: RankKey


@dataclass(frozen=True, slots=True)
class StopAttempt:
    """End a rank by the grace rule; None takes the launch's own grace."""

    key: RankKey
    cause: StopCause
    grace_us: int | None


@dataclass(frozen=True, slots=True)
class SignalAttempt:
    """Send a signal to every process of a rank."""

    key: RankKey
    signal: int


@dataclass(frozen=True, slots=True)
class SetTimeLimit:
    """Give a rank another time limit, which counts from its start; None for none."""

    key: RankKey
    time_limit_us: int | None


@dataclass(frozen=True, slots=True)
class JudgeAttempt:
    """Keep, kill or forget a rank."""

    key: RankKey
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class RefreshSamples:
    """Send a beat with fresh readings."""


@dataclass(frozen=True, slots=True)
class ClearTroubles:
    """Give these devices another chance, all of them when none is named."""

    device_uuids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadProgramLog:
    """Send lines of the agent's own log under the id `request`: the newest ones, of these what is at `since` or later.

    `since_us` is in microseconds since 1970 by this machine's wall clock; None for no time.
    """

    request: int
    tail_lines: int
    follow: bool
    cancel: bool
    since_us: int | None = None


@dataclass(frozen=True, slots=True)
class ReadSetupOutput:
    """Send under the id `request` what the making of a rank's environment wrote so far, from a byte on."""

    request: int
    key: RankKey
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFiles:
    """Say under the id `request` whether the probe can be read in the shared folder `root`, and, `by_wire`, fetched.

    `paths` are files there that the user's jobs are to read. An empty `root` leaves the folder out.
    """

    request: int
    root: str
    probe: str
    digest: str
    size_bytes: int
    user: str
    paths: tuple[str, ...]
    by_wire: bool


@dataclass(frozen=True, slots=True)
class SetLogLevel:
    """Log from this level on."""

    level: str


@dataclass(frozen=True, slots=True)
class OpenChannel:
    """Dial OpenChannel under this id, for what the session `writer` types to a rank."""

    channel_id: str
    key: RankKey
    writer: str


@dataclass(frozen=True, slots=True)
class OpenPort:
    """Connect to a port of a rank, and dial CarryPort under this id."""

    channel_id: str
    key: RankKey
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenExec:
    """Run a command in the world of a rank, and dial CarryExec under this id.

    Where it has no terminal, `columns` and `rows` say nothing.
    """

    channel_id: str
    key: RankKey
    argv: tuple[str, ...]
    input: InputMode | None
    columns: int
    rows: int
    terminal_type: str


@dataclass(frozen=True, slots=True)
class OpenFiles:
    """Answer questions about the folder of a rank of this user's, and dial CarryFiles under this id.

    With `only_results` they are somebody else's: nothing but files that these lines choose is reached.
    """

    channel_id: str
    key: RankKey
    user: str
    only_results: bool = False
    results: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CloseChannel:
    """End the channel of this id at once."""

    channel_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TellWarning:
    """Tell of a warning, the how-manieth of its attempt, whom the job's `--notify` names."""

    key: RankKey
    number: int
    kind: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """A command that this version does not know, or that is not built yet."""

    name: str


AttemptCommand = (
    LaunchAttempt
    | PrepareAttempt
    | StartAttempt
    | AbortAttempt
    | TakeBack
    | StopAttempt
    | SignalAttempt
    | SetTimeLimit
    | JudgeAttempt
)
Command = (
    AttemptCommand
    | RefreshSamples
    | ClearTroubles
    | ReadProgramLog
    | ReadSetupOutput
    | CheckFiles
    | SetLogLevel
    | OpenChannel
    | OpenPort
    | OpenExec
    | OpenFiles
    | CloseChannel
    | TellWarning
    | Unknown
)

_NEEDS_RECENT_KNOWLEDGE = (LaunchAttempt, PrepareAttempt, StartAttempt, SignalAttempt)


def refusal_of(
    command: Command, *, heartbeat_sent_us: int | None, now_us: int, valid_for_us: int
) -> CommandRefusal | None:
    """Why a command of the present term is not carried out, None when it is.

    `heartbeat_sent_us` is when this agent sent the message that the command names as the newest one
    known, None when the agent does not remember such a one.
    """
    if not isinstance(command, _NEEDS_RECENT_KNOWLEDGE):
        return None
    return refusal_of_command(
        term=0, highest_term=0, heartbeat_sent_us=heartbeat_sent_us, now_us=now_us, valid_for_us=valid_for_us
    )


class NotLaunched(StrEnum):
    """Why the agent itself did not start a rank, beside what its devices say; the names are stable."""

    COMMAND_TOO_OLD = "COMMAND_TOO_OLD"
    NOT_PREPARED = "NOT_PREPARED"
    ABORTED = "ABORTED"
    STOPPED_BEFORE_START = "STOPPED_BEFORE_START"
    TAKEN_BACK = "TAKEN_BACK"
    KEEPER_UNAVAILABLE = "KEEPER_UNAVAILABLE"
    INVALID_LAUNCH = "INVALID_LAUNCH"


_TOLD_AS = {
    RefusalReason.BAD_REQUEST: NotLaunched.INVALID_LAUNCH,
    RefusalReason.RETIRED: NotLaunched.KEEPER_UNAVAILABLE,
    RefusalReason.SHUTTING_DOWN: NotLaunched.KEEPER_UNAVAILABLE,
}


def reason_of(refusal: Refusal) -> str:
    """The stable name by which the scheduler hears why a launch was not begun."""
    return _TOLD_AS.get(refusal.reason, refusal.reason)
