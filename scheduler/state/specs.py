"""What a user asked for: the command, the resources, what it waits for, with every default filled in."""

from dataclasses import dataclass, field
from enum import Enum, IntEnum

from .ids import JobId, ModelName, NodeName
from .shares import WHOLE_MILLI
from .units import MB, SECOND, Instant, Span

DEFAULT_GRACE = Span(30 * SECOND)
DEFAULT_MIN_MEMORY_BYTES = 8_000 * MB


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


class InputMode(Enum):
    """What a job can be typed to through: a pipe, or a terminal that is its output, too."""

    PIPE = "pipe"
    TERMINAL = "terminal"


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

    def share_class(self, asked: Asked) -> None:
        """Know that another spec asks for the same: what is one object is found without comparing it."""
        object.__setattr__(self, "_asked", asked)
