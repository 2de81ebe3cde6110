"""What a node is asked to do. Commands leave only after the records that they follow from are stored."""

from dataclasses import dataclass

from .attempts import Placement, StopCause
from .ids import JobId, NodeName, RankKey, UserName
from .specs import JobSpec
from .units import Span
from .warnings import JobWarning


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchAttempt:
    """Start a rank. `fence` None means that the keeper never ends it for want of a scheduler.

    `node_count` is how many ranks the attempt has. `array` and `index` are set for an item.
    """

    node: NodeName
    key: RankKey
    spec: JobSpec
    user: UserName
    placement: Placement
    fence: Span | None
    min_memory_bytes: int = 0
    array: JobId | None = None
    index: int | None = None
    node_count: int = 1


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
class StartAttempt:
    """Let a prepared rank run; the ranks meet there."""

    node: NodeName
    key: RankKey
    master_address: str
    master_port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortAttempt:
    """Take back a Prepare: its gang does not come about."""

    node: NodeName
    key: RankKey


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAttempt:
    """End a rank by the grace rule."""

    node: NodeName
    key: RankKey
    cause: StopCause
    grace: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class KillAttempt:
    """End a rank at once: nobody waits for it."""

    node: NodeName
    key: RankKey


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepAttempt:
    """A known rank goes on."""

    node: NodeName
    key: RankKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetAttempt:
    """The end of a rank is stored: drop what is kept of it."""

    node: NodeName
    key: RankKey


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalAttempt:
    """Send a signal to every process of a rank."""

    node: NodeName
    key: RankKey
    signal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearTroubles:
    """Give all devices of a node another chance: past XID and ECC trouble is forgotten."""

    node: NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class TellWarning:
    """Tell of a warning, the how-manieth of its attempt, whom the job's `notify` names. `key` is rank 0."""

    node: NodeName
    key: RankKey
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
    | ForgetAttempt
    | SignalAttempt
    | ClearTroubles
    | TellWarning
)
