"""What a node is asked to do. Commands leave only after the records that they follow from are stored."""

from dataclasses import dataclass

from gpufleet.jobs.runs import StopCause

from .attempts import Placement
from .ids import JobId, NodeName, RankKey, UserName
from .specs import InputFolder, JobSpec
from .units import Instant, Span
from .warnings import JobWarning


@dataclass(frozen=True, slots=True, kw_only=True)
class ToRank:
    """Whom it goes to, and which rank it is about."""

    node: NodeName
    key: RankKey


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchAttempt(ToRank):
    """Start a rank. `fence` None means that the keeper never ends it for want of a scheduler.

    `node_count` is how many ranks the attempt has, and `nodes` where they are, in order. `array` and `index` are set
    for an item. `shared_root` is the shared folder that the node may read files in, empty for none. With a `slot` it
    waits in the node's backlog for those of the slot before it. `run_number` is which of the job's attempts that ran it
    is; 0: its number says so. `kept` is what an earlier attempt kept for this rank.
    When the job was submitted, and this attempt placed, is part of its origin.
    """

    spec: JobSpec
    user: UserName
    placement: Placement
    fence: Span | None
    min_memory_bytes: int = 0
    array: JobId | None = None
    index: int | None = None
    node_count: int = 1
    nodes: tuple[NodeName, ...] = ()
    shared_root: str = ""
    submitted_at: Instant = Instant(0)
    placed_at: Instant = Instant(0)
    slot: RankKey | None = None
    run_number: int = 0
    kept: InputFolder | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareAttempt:
    """Check everything for a rank of a gang, and hold it ready."""

    launch: LaunchAttempt

    @property
    def node(self) -> NodeName:
        """Whom it goes to."""
        return self.launch.node

    @property
    def key(self) -> RankKey:
        """Which rank."""
        return self.launch.key


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAttempt(ToRank):
    """Let a prepared rank run; the ranks meet there."""

    master_address: str
    master_port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortAttempt(ToRank):
    """Take back a Prepare: its gang does not come about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeBack(ToRank):
    """Ask for a rank of a node's backlog back; one that was started goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAttempt(ToRank):
    """End a rank by the grace rule."""

    cause: StopCause
    grace: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class KillAttempt(ToRank):
    """End a rank at once: nobody waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepAttempt(ToRank):
    """A known rank goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetAttempt(ToRank):
    """The end of a rank is stored: drop what is kept of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalAttempt(ToRank):
    """Send a signal to every process of a rank."""

    signal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimeLimit(ToRank):
    """Give a rank another time limit, which counts from its start; None for none."""

    time_limit: Span | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearTroubles:
    """Give all devices of a node another chance: past XID and ECC trouble is forgotten."""

    node: NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class TellWarning(ToRank):
    """Tell of a warning, the how-manieth of its attempt, whom the job's `notify` names. `key` is rank 0."""

    number: int
    warning: JobWarning


Command = (
    LaunchAttempt
    | PrepareAttempt
    | StartAttempt
    | AbortAttempt
    | StopAttempt
    | KillAttempt
    | KeepAttempt
    | TakeBack
    | ForgetAttempt
    | SignalAttempt
    | SetTimeLimit
    | ClearTroubles
    | TellWarning
)
