"""What a user asked for: the command, the resources, what it waits for, with every default filled in."""

from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum

from gpufleet.jobs.runs import DEFAULT_GRACE_US, InputMode

from .ids import JobId, ModelName, NodeName, SecretName
from .shares import WHOLE_MILLI
from .units import Instant, Span

DEFAULT_GRACE = Span(DEFAULT_GRACE_US)


class Band(IntEnum):
    """Priority class: a higher band is always ordered before a lower one."""

    LOW = 1
    NORMAL = 2
    HIGH = 3
    URGENT = 4


class Outcome(Enum):
    """How a job ended."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"


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
class LimitSignal:
    """A signal that each attempt gets so long before its time limit, all of its processes or its leader alone."""

    signal: int
    before: Span
    is_for_leader: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceLimit:
    """A limit of the kernel's for each process of a job, by its name as in setrlimit(2); -1 is unlimited."""

    name: str
    soft: int
    hard: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """How the processes of a job run, on each of its nodes; what says nothing is as their agent has it."""

    rlimits: tuple[ResourceLimit, ...] = ()
    nice: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """A file that goes with a job: where it lies in the folder of its files, and the SHA-256 of its bytes.

    `shared_root` and `shared_path` say where it lies in a folder that nodes share, too, empty for none; with
    `is_only_shared` nowhere else.
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
    """A folder that goes with a job, by the SHA-256 of its manifest: how many entries and bytes of contents it has."""

    digest: str
    size_bytes: int
    entry_count: int
    content_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInput:
    """Files that another job left: of an array with its `item_count` those of all items.

    `pattern` chooses them, `name` is the folder that they lie in, empty for none. `is_of_admin`: an admin submitted it,
    who may read what every job writes.
    """

    job: JobId
    pattern: str
    name: str = ""
    item_count: int = 0
    is_of_admin: bool = False

    def names(self, job: JobId) -> bool:
        """Whether files of this job, or of this item, are meant."""
        return self.job <= job <= self.job + self.item_count


class EnvironmentTool(Enum):
    """What makes the environment of a job: a line for the shell, pip, uv or conda."""

    SETUP = "setup"
    REQUIREMENTS = "requirements"
    UV = "uv"
    CONDA = "conda"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnvironment:
    """The Python environment that a job begins in. `what` is the line, or the path of the file that says what is in it.

    It is empty for uv, which has names of its own for its files.
    """

    tool: EnvironmentTool
    what: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerMount:
    """A folder or file of a node that a container shows at another path."""

    source: str
    target: str
    is_read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSettings:
    """The container that a job runs in. `image_secret` names the secret that its registry takes; empty for none."""

    image: str
    mounts: tuple[ContainerMount, ...] = ()
    image_secret: SecretName = SecretName("")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAway:
    """A node that could not start a job for want of what this job alone needs, so many times, and why.

    The job is not tried there before `until`; None: never again. `is_open`: that time is over.
    """

    node: NodeName
    tries: int
    reason: str
    message: str = ""
    until: Instant | None = None
    is_open: bool = False

    @property
    def is_for_good(self) -> bool:
        """Whether the job is never tried there again."""
        return self.until is None

    @property
    def why(self) -> str:
        """Why, for people."""
        return f"{self.reason}: {self.message}" if self.message else self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a job needs; equal resources are one class of request.

    `gpus` are those of all nodes together, `cpus` and `memory_bytes` those of each. `node_count` 0 means one node, or,
    for what no single node could ever hold, as few as hold it, unless `no_span` is set. `min_memory_bytes` None means
    the default of the placement rules: 8,000 MB unless set otherwise, or 90 % of the largest device, whichever is less.
    With `share_milli` it is a share of each of the `gpus` devices, not whole ones; then `min_memory_bytes` is the
    memory of each share, None: as much of the device's as the share is of it. `shared_root` is the shared folder that
    each node must see, empty for none. With `in_container` each node must have an engine for containers.
    `disk_bytes` is what its files take on the disk of each node, and `kept_away` are nodes that could not start it.
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
    shared_root: str = ""
    in_container: bool = False
    disk_bytes: int = 0
    kept_away: tuple[KeptAway, ...] = ()

    @property
    def gpu_milli(self) -> int:
        """What it takes of GPUs in all, in thousandths of one."""
        return self.gpus * (self.share_milli or WHOLE_MILLI)


class GpuMode(Enum):
    """Whether a job needs the GPUs that it asks for; AUTO is decided by what it works on, when it is submitted."""

    REQUIRED = "required"
    PREFERRED = "preferred"
    NEVER = "never"
    AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuChoice:
    """How a job takes GPUs, where it does not simply require those that it asks for.

    `asked` is the mode that it was given, `mode` what that came to: never AUTO once the job is submitted. `why` says
    by what it was decided, where it was. `wanted` is what it asks for with its GPUs, which are in `JobSpec.resources`
    as long as it may have them. `wait` is how long it waits for those that it prefers. `cpu_argv` is what runs where it
    has none; empty: the same as on them.
    """

    asked: GpuMode
    mode: GpuMode
    content_type: str = ""
    why: str = ""
    wanted: Resources | None = None
    wait: Span | None = None
    cpu_argv: tuple[str, ...] = ()


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


class _ClassCache:
    """Room for what a spec's class of request is, once somebody has asked: passes and indexes ask again and again."""

    __slots__ = ("_asked",)
    _asked: Asked


def is_longer(time_limit: Span | None, *, than: Span | None) -> bool:
    """Whether a time limit lets a job run for longer than another; None is no limit."""
    return than is not None and (time_limit is None or time_limit > than)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec(_ClassCache):
    """All that a user asked for, with defaults filled in. `serves` is the model that a service is a worker of.

    `submit_cwd` is the folder that it was submitted from, empty where nobody said so. `output_file` is a pattern, empty
    for none. With `is_requeued_on_timeout` it waits again where its time limit would end it. An empty `cwd` is the
    folder of its `files`, in which the contents of `folder` lie, too. `secrets` are names of its owner's secrets by the
    variables that are given them. `results` say what of that folder is stored when an attempt has ended, `keep` what of
    it the next attempt finds again, and `inputs` what other jobs left that lies there, too. Without a `container` it
    runs on its nodes as they are.
    """

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
    submit_cwd: str = ""
    limit_signal: LimitSignal | None = None
    is_requeued_on_timeout: bool = False
    output_file: str = ""
    process: ProcessSettings | None = None
    gpu_choice: GpuChoice | None = None
    files: tuple[InputFile, ...] = ()
    secrets: tuple[tuple[str, SecretName], ...] = ()
    folder: InputFolder | None = None
    results: tuple[str, ...] = ()
    environment: JobEnvironment | None = None
    container: ContainerSettings | None = None
    inputs: tuple[JobInput, ...] = ()
    keep: tuple[str, ...] = ()

    @property
    def leaves(self) -> bool:
        """Whether anything of the folder of an attempt is stored behind its end."""
        return bool(self.results or self.keep)

    @property
    def resources_asked(self) -> Resources:
        """What was asked for, with the GPUs that the job does without."""
        choice = self.gpu_choice
        return self.resources if choice is None or choice.wanted is None else choice.wanted

    @property
    def prefers_gpus(self) -> bool:
        """Whether it asks for GPUs, and would rather run without than wait for long."""
        return self.gpu_choice is not None and self.gpu_choice.mode is GpuMode.PREFERRED and self.resources.gpus > 0

    @property
    def argv_now(self) -> tuple[str, ...]:
        """What runs, with the GPUs that it has, or without any."""
        choice = self.gpu_choice
        return self.argv if choice is None or self.resources.gpus else choice.cpu_argv or self.argv

    @property
    def run_span(self) -> Span | None:
        """How long an attempt holds its devices at most, by its enforced limit and grace; None: for ever."""
        return None if self.time_limit is None else Span(self.time_limit + self.grace)

    def keeping_away(self, *nodes: KeptAway) -> "JobSpec":
        """The same, kept away from these nodes, with its GPUs and without."""
        names = {each.node for each in nodes}
        others = tuple(each for each in self.resources.kept_away if each.node not in names)
        return self._with_kept_away(tuple(sorted((*others, *nodes), key=lambda each: each.node)))

    def _with_kept_away(self, kept_away: tuple[KeptAway, ...]) -> "JobSpec":
        resources, choice = replace(self.resources, kept_away=kept_away), self.gpu_choice
        if choice is not None and choice.wanted is not None:
            choice = replace(choice, wanted=replace(choice.wanted, kept_away=kept_away))
        return replace(self, resources=resources, gpu_choice=choice)

    def trying_all(self) -> "JobSpec":
        """The same once an attempt has run: it is kept only from nodes that will never start it."""
        if all(each.is_for_good for each in self.resources.kept_away):
            return self
        others = (each for each in self.resources.kept_away if each.is_for_good)
        return self._with_kept_away(tuple(others))

    def tried_again(self, at: Instant) -> "JobSpec":
        """The same, with the nodes open again from which it was kept away until now."""
        kept_away = self.resources.kept_away
        over = (each for each in kept_away if each.until is not None and each.until <= at)
        return self.keeping_away(*(replace(each, is_open=True) for each in over))

    @property
    def asked(self) -> Asked:
        """Its class of request."""
        try:
            return self._asked
        except AttributeError:
            object.__setattr__(self, "_asked", Asked(self.resources, self.run_span))
            return self._asked

    def share_class(self, asked: Asked) -> None:
        """Know that another spec asks for the same: what is one object is found without comparing it."""
        object.__setattr__(self, "_asked", asked)
