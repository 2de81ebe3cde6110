"""A launch, and what is wrong with it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpufleet.jobs.runs import FENCE_US_MIN, RLIMITS, SIGNAL_MAX, UNLIMITED, InputMode, RankKey

from .attempt import Limits, fence_deadline_of
from .offsets import SPOOL_BYTES, SPOOL_BYTES_MIN
from .outcome import AttemptView, LaunchFailure

NOTE_CHARS_MAX = 8192
"""The agent's own words about an attempt are kept with it, up to this length."""

TIME_US_MAX = 10 * 365 * 86_400 * 1_000_000
"""No limit is longer than ten years; what is longer is a mistake of units."""


class RefusalReason(StrEnum):
    """Why a keeper did not do what it was asked; nothing has changed, except that after INTERNAL nobody knows."""

    BAD_REQUEST = "BAD_REQUEST"
    CWD_MISSING = "CWD_MISSING"
    OUTPUT_FILE_UNUSABLE = "OUTPUT_FILE_UNUSABLE"
    FILES_UNAVAILABLE = "FILES_UNAVAILABLE"
    FILES_GONE = "FILES_GONE"
    FILES_CHANGED = "FILES_CHANGED"
    INPUT_UNUSABLE = "INPUT_UNUSABLE"
    SETUP_FAILED = "SETUP_FAILED"
    RLIMIT_TOO_HIGH = "RLIMIT_TOO_HIGH"
    ARGV_TOO_LONG = "ARGV_TOO_LONG"
    FENCED = "FENCED"
    ACCOUNT_UNUSABLE = "ACCOUNT_UNUSABLE"
    NODE_OF_ANOTHER = "NODE_OF_ANOTHER"
    ISOLATION_FAILED = "ISOLATION_FAILED"
    NO_ENGINE = "NO_ENGINE"
    IMAGE_NOT_FOUND = "IMAGE_NOT_FOUND"
    IMAGE_PULL_FAILED = "IMAGE_PULL_FAILED"
    IMAGE_NEEDS_DRIVER = "IMAGE_NEEDS_DRIVER"
    MOUNT_REFUSED = "MOUNT_REFUSED"
    NO_GPU_CONTAINERS = "NO_GPU_CONTAINERS"
    CONTAINER_FAILED = "CONTAINER_FAILED"
    CLAIMED_ELSEWHERE = "CLAIMED_ELSEWHERE"
    TOO_MANY_ATTEMPTS = "TOO_MANY_ATTEMPTS"
    SPOOL_UNAVAILABLE = "SPOOL_UNAVAILABLE"
    SPAWN_FAILED = "SPAWN_FAILED"
    RETIRED = "RETIRED"
    SHUTTING_DOWN = "SHUTTING_DOWN"
    UNKNOWN_ATTEMPT = "UNKNOWN_ATTEMPT"
    NOT_RUNNING = "NOT_RUNNING"
    NO_INPUT = "NO_INPUT"
    NOT_THE_WRITER = "NOT_THE_WRITER"
    TOO_MANY_COMMANDS = "TOO_MANY_COMMANDS"
    TOO_OLD = "TOO_OLD"
    STILL_RUNNING = "STILL_RUNNING"
    ATTEMPTS_RUNNING = "ATTEMPTS_RUNNING"
    INTERNAL = "INTERNAL"


REFUSES_LAUNCHES = frozenset(
    {
        RefusalReason.BAD_REQUEST,
        RefusalReason.CWD_MISSING,
        RefusalReason.OUTPUT_FILE_UNUSABLE,
        RefusalReason.FILES_UNAVAILABLE,
        RefusalReason.FILES_GONE,
        RefusalReason.FILES_CHANGED,
        RefusalReason.INPUT_UNUSABLE,
        RefusalReason.SETUP_FAILED,
        RefusalReason.RLIMIT_TOO_HIGH,
        RefusalReason.ARGV_TOO_LONG,
        RefusalReason.FENCED,
        RefusalReason.ACCOUNT_UNUSABLE,
        RefusalReason.NODE_OF_ANOTHER,
        RefusalReason.ISOLATION_FAILED,
        RefusalReason.NO_ENGINE,
        RefusalReason.IMAGE_NOT_FOUND,
        RefusalReason.IMAGE_PULL_FAILED,
        RefusalReason.IMAGE_NEEDS_DRIVER,
        RefusalReason.MOUNT_REFUSED,
        RefusalReason.NO_GPU_CONTAINERS,
        RefusalReason.CONTAINER_FAILED,
        RefusalReason.CLAIMED_ELSEWHERE,
        RefusalReason.TOO_MANY_ATTEMPTS,
        RefusalReason.SPOOL_UNAVAILABLE,
        RefusalReason.SPAWN_FAILED,
        RefusalReason.RETIRED,
        RefusalReason.SHUTTING_DOWN,
        RefusalReason.INTERNAL,
    }
)
"""What a launch may be refused with; each has its row in docs/troubleshooting.md, by the name of `reason_of`."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A keeper's no: a stable reason, and a sentence that names the field and the cause."""

    reason: RefusalReason
    detail: str


@dataclass(frozen=True, slots=True)
class NotRun:
    """The command itself is at fault: launched, its attempt ends as a shell would end it, with 127 or 126."""

    failure: LaunchFailure
    detail: str

    @property
    def code(self) -> int:
        """Answer the exit code a shell would give."""
        return 127 if self.failure is LaunchFailure.COMMAND_NOT_FOUND else 126


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """A file for a rank: where it is to lie in the folder of its files, and its SHA-256.

    The scheduler has it, unless it `is_only_shared`: it lies at `shared_path` in the shared folder of the id
    `shared_root`, where the two are not empty.
    """

    path: str
    digest: str
    size_bytes: int
    is_executable: bool = False
    shared_root: str = ""
    shared_path: str = ""
    is_only_shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFolder:
    """A folder that the scheduler has for a rank, by the SHA-256 and the size of its manifest, and what that says."""

    digest: str
    size_bytes: int
    entry_count: int
    content_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInput:
    """Files that another job left: `pattern` chooses them, and `name` is the folder for them, empty for none."""

    job: int
    pattern: str
    name: str = ""


class EnvironmentTool(StrEnum):
    """What makes the environment that a rank begins in."""

    SETUP = "setup"
    REQUIREMENTS = "requirements"
    UV = "uv"
    CONDA = "conda"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnvironment:
    """The environment that a rank begins in: its tool, and the line or the path among its files that says what is in
    it, empty for uv. None: a tool that this version does not know.
    """

    tool: EnvironmentTool | None
    what: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """Whose process it is, and what of its machine it has: all else is out of its reach.

    It has a process id namespace, a /tmp, a /dev and shared memory of its own, and of the nodes of devices those in
    `devices` beside the common ones. Its home is its own, too, unless it has one by `home`. `files` is the folder of
    its files, shown to it at FILES_PATH; empty for none. `environment` is that of the environment that it begins in,
    shown at ENVIRONMENT_PATH, for reading alone unless `makes_environment`. The folders `hidden` are empty to it.
    `account` names an uid that the machine has no name for; empty where it has one. With `user_namespaces` it may make
    those, and mount in them.
    """

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    home: str = ""
    files: str = ""
    devices: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    environment: str = ""
    makes_environment: bool = False
    account: str = ""
    user_namespaces: bool = False


SPACE_PATH = "/run/gpufleet"
"""Where an isolated process finds what is its own."""

HOME_PATH = f"{SPACE_PATH}/home"
FILES_PATH = f"{SPACE_PATH}/files"
ENVIRONMENT_PATH = f"{SPACE_PATH}/environment"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlGroup:
    """What a process may have with all below it: bytes of memory, CPUs, processes with their threads; 0 for no limit.

    `version` is that of Linux's control groups, and `folders` names for each controller ("memory", "cpu", "pids") that
    is to count it the group in which its keeper may make others.
    """

    version: int
    folders: Mapping[str, str]
    memory_bytes: int = 0
    cpus: int = 0
    processes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder or file of the node that a container shows at another path."""

    source: str
    target: str
    is_read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerAsked:
    """The container that a rank is to run in. `credentials` are for its registry alone, empty for none."""

    image: str
    mounts: tuple[Mount, ...] = ()
    credentials: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container that was made for an attempt, whose process only runs it: it ends with that.

    `engine` is the path of its engine's socket, `state` that of the file where the process writes down how it stands.
    `has_init`: its first process is an init, and its command the child of that. `memory_bytes` is its limit, 0 for
    none. `has_worker`: the process is the worker of a served program, which runs it as its own child; signals are for
    the worker then, and the exit status is its.
    """

    engine: str
    id: str
    state: str
    has_init: bool = True
    memory_bytes: int = 0
    has_worker: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A command and how it runs.

    In a scheduler's command `env` is the submitter's; in a keeper's launch argv and environment are complete. `limits`
    are those by which the keeper stops it. `output_file` is the absolute path of a copy of the output, empty for none.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    limits: Limits = field(default_factory=Limits)
    input: InputMode | None = None
    output_file: str = ""
    rlimits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """The soft and the hard limit by name (see RLIMITS), -1 for unlimited."""
    nice: int = 0
    """The niceness, where it is more than the keeper's own."""
    isolation: Isolation | None = None
    """None: it runs as the keeper does, and sees what that sees."""
    group: ControlGroup | None = None
    """None: nothing bounds it."""
    container: Container | None = None
    """The one that it runs; None: it is the job's process itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Run this process. Nothing is added to it but GPUFLEET_ATTEMPT_KEY.

    `heartbeat_sent_us`: CLOCK_BOOTTIME at which the newest acknowledged heartbeat was sent; the fence counts from it.
    """

    key: RankKey
    process: Process
    heartbeat_sent_us: int
    spool_bytes: int = SPOOL_BYTES
    note: str = ""


@dataclass(frozen=True, slots=True)
class Launched:
    """What became of a launch. `was_known`: it was launched before, and nothing was started now."""

    attempt: AttemptView
    was_known: bool


Objection = AttemptView | Refusal | NotRun
"""Why a launch would start nothing: it is known already, it is refused, or its command cannot be run."""


def refusal_of_launch(launch: Launch, now_us: int) -> Refusal | None:
    """Answer what is wrong with a launch as far as the launch alone tells; None: nothing."""
    for problem in (_problem_of_command(launch), _problem_of_limits(launch)):
        if problem is not None:
            return Refusal(RefusalReason.BAD_REQUEST, problem)
    if launch.heartbeat_sent_us > now_us:
        return Refusal(RefusalReason.BAD_REQUEST, "heartbeat_sent_us lies in the future")
    deadline_us = fence_deadline_of(launch.process.limits, launch.heartbeat_sent_us)
    if deadline_us is not None and now_us >= deadline_us:
        return Refusal(RefusalReason.FENCED, "the fence has passed: no heartbeat was acknowledged lately")
    return None


def _problem_of_command(launch: Launch) -> str | None:
    process = launch.process
    if not process.argv or not process.argv[0]:
        return "argv is empty: name a command"
    if any("\0" in word for word in process.argv):
        return "argv contains a NUL character"
    for name, value in process.env.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            return f"env {name[:80]!r}: a name must not be empty or contain '='; neither may contain NUL"
    if not process.cwd.startswith("/") or "\0" in process.cwd:
        return f"cwd {process.cwd[:200]!r} is not an absolute path"
    if process.output_file and (not process.output_file.startswith("/") or "\0" in process.output_file):
        return f"output_file {process.output_file[:200]!r} is not an absolute path"
    if len(launch.note) > NOTE_CHARS_MAX:
        return f"note has {len(launch.note)} characters, at most {NOTE_CHARS_MAX} are kept"
    return None


def _problem_of_limits(launch: Launch) -> str | None:
    limits = launch.process.limits
    if not 0 <= limits.grace_us <= TIME_US_MAX:
        return f"limits.grace_us {limits.grace_us} is not within 0 and {TIME_US_MAX}"
    if limits.time_limit_us is not None and not 1 <= limits.time_limit_us <= TIME_US_MAX:
        return f"limits.time_limit_us {limits.time_limit_us} is not within 1 and {TIME_US_MAX}"
    if limits.signal is not None and not 1 <= limits.signal <= SIGNAL_MAX:
        return f"limits.signal {limits.signal} is not within 1 and {SIGNAL_MAX}"
    if not 0 <= limits.signal_before_us <= TIME_US_MAX:
        return f"limits.signal_before_us {limits.signal_before_us} is not within 0 and {TIME_US_MAX}"
    if limits.fence_us is not None and not FENCE_US_MIN <= limits.fence_us <= TIME_US_MAX:
        return f"limits.fence_us {limits.fence_us} is not within {FENCE_US_MIN} and {TIME_US_MAX}"
    if launch.spool_bytes < SPOOL_BYTES_MIN:
        return f"spool_bytes {launch.spool_bytes} is less than {SPOOL_BYTES_MIN}"
    for name, both in launch.process.rlimits.items():
        if name not in RLIMITS or min(both) < UNLIMITED:
            return f"rlimits {name[:80]!r}={both}: known are {', '.join(RLIMITS)}, values from {UNLIMITED}"
    return None
