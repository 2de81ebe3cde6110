"""Attempts: a run of a job on the devices that it was given, rank by rank, and how each rank ended."""

from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import Any

from gpufleet.jobs.runs import ExitStatus, FileRun, StopCause

from .ids import DeviceUuid, JobId, NodeName, RankKey
from .kept import KeptCopy
from .shares import DeviceShare
from .units import Instant
from .used import RankUse
from .waits import Forecast


class OutputStream(IntEnum):
    """One of the two outputs of a process."""

    STDOUT = 1
    STDERR = 2


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

    `is_presumed`: nobody saw the end; its node's fence says that it must be over. `is_blameless`: it was lost with its
    keeper, and nothing says that the job ended that. `is_forgotten`: its node was told to forget it
    before, by history that the store lacks; what it left was settled then.
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
    is_blameless: bool = False
    use: RankUse | None = None
    is_forgotten: bool = False


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
    """One node's part of an attempt and how far it is. `file_runs` say how its files came, in their order."""

    placement: Placement
    started_at: Instant | None = None
    exit: RankExit | None = None
    file_runs: tuple[FileRun, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Where the ranks of a gang meet: rank 0 listens there. From `at` on, when all were prepared, they may run."""

    address: str
    port: int
    at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A run of a job that holds its devices. A gang has a `rendezvous` once all its ranks were prepared.

    `forecast` is what was expected of the job while it waited for this run, if anything was. `lineage` is that of the
    scheduler's start that placed it, empty where one of its nodes does not know lineages (RankKey says what it is for).
    `slot` is set for one that was placed in its node's backlog: the first attempt of the slot in which it is the next;
    all attempts of a slot have the same placement, and hold it once. `is_asked_back`: it was asked back since. `kept`
    is what its ranks find of earlier attempts.
    """

    number: int
    placed_at: Instant
    ranks: tuple[Rank, ...]
    is_unreachable: bool = False
    rendezvous: Rendezvous | None = None
    forecast: Forecast | None = None
    lineage: str = ""
    slot: RankKey | None = None
    is_asked_back: bool = False
    kept: tuple[KeptCopy, ...] = ()

    def keys(self, job: JobId) -> tuple[RankKey, ...]:
        """The keys of all its ranks, as an attempt of this job."""
        return tuple(RankKey(job, self.number, rank, self.lineage) for rank in range(len(self.ranks)))

    def has(self, key: RankKey) -> bool:
        """Whether a key, which may come from anybody, names a rank of it; the job is known to be the same."""
        return (key.attempt, key.lineage) == (self.number, self.lineage) and key.rank < len(self.ranks)

    @property
    def held_since(self) -> Instant | None:
        """From when its devices are its own; None as long as it waits in a backlog for its slot."""
        return self.placed_at if self.slot is None else self.ranks[0].started_at

    @property
    def is_gang(self) -> bool:
        """Whether it has a rank on more than one node."""
        return len(self.ranks) > 1

    def with_rank(self, number: int, **changes: Any) -> "Attempt":
        """The same with these fields of one rank changed."""
        changed = replace(self.ranks[number], **changes)
        return replace(self, ranks=(*self.ranks[:number], changed, *self.ranks[number + 1 :]))


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
    forecast: Forecast | None = None
    lineage: str = ""
    slot: RankKey | None = None

    def keys(self, job: JobId) -> tuple[RankKey, ...]:
        """The keys of all its ranks, as an attempt of this job."""
        return tuple(RankKey(job, self.number, rank, self.lineage) for rank in range(len(self.ranks)))

    @property
    def held_since(self) -> Instant:
        """From when its devices were its own: in a slot from its start, where it had one, else from its placement."""
        if self.slot is None:
            return self.placed_at
        started_at = self.ranks[0].started_at
        return self.ended_at if started_at is None else started_at

    @property
    def is_node_loss(self) -> bool:
        """Whether it ended with its node, or what holds it there."""
        return self.reason in NODE_LOSS_REASONS

    @property
    def is_blameless(self) -> bool:
        """Whether it was such a loss, and nothing says that it was the job's doing."""
        if not self.is_node_loss:
            return False
        exit_ = self.ranks[self.deciding_rank].exit
        return exit_ is not None and exit_.is_blameless


NODE_LOSS_REASONS = frozenset({"NODE_LOST", "EXIT_UNKNOWN", "NOT_STARTED"})
"""Ends of an attempt for which its node is to blame, not the job."""


class RefusalKind(Enum):
    """Whom a node's refusal of a rank blames.

    REQUEST: every node would refuse it. JOB_HERE and JOB_NOW: the node lacks what this job needs, for good or now.
    DEVICES and NODE close these for everybody for a moment. NOBODY: it was told to stop, or taken back.
    """

    REQUEST = "request"
    JOB_HERE = "job here"
    JOB_NOW = "job now"
    DEVICES = "devices"
    NODE = "node"
    NOBODY = "nobody"


OF_THE_JOB = frozenset({RefusalKind.JOB_HERE, RefusalKind.JOB_NOW})
"""Such a refusal keeps one job from the node, and nobody else."""

# Of agents that do not say the kind it follows from the reason. What is not listed blames the node, which is left out
# for a while: a job must not fail, nor be kept away, for a reason that says nothing about it.

BLAMES_THE_JOB = frozenset(
    {
        "ARGV_TOO_LONG",
        "BAD_REQUEST",
        "COMMAND_NOT_FOUND",
        "CWD_MISSING",
        "FILES_CHANGED",
        "FILES_GONE",
        "IMAGE_NOT_FOUND",
        "IMAGE_PULL_FAILED",
        "INPUT_UNUSABLE",
        "MOUNT_REFUSED",
        "INVALID_LAUNCH",
        "NOT_EXECUTABLE",
        "OUTPUT_FILE_UNUSABLE",
        "RLIMIT_TOO_HIGH",
        "SECRETS_UNAVAILABLE",
        "SECRET_NOT_FOUND",
        "SETUP_FAILED",
    }
)
"""Every node would refuse it: the job ends. That a command cannot be run is refused only while a gang is prepared; a
single rank runs, and ends by it."""

BLAMES_ACCOUNT = "ACCOUNT_UNUSABLE"
"""The node cannot run jobs of this user, and may run those of all others: the job goes to another node."""

BLAMES_DEVICES = frozenset({"DEVICE_BUSY", "DEVICE_UNHEALTHY"})
"""These devices are left out: those of the samples that come with the refusal, or all that were placed."""

TAKEN_BACK = "TAKEN_BACK"
"""It waited in the backlog, and was handed back before it began."""

BLAMES_NOBODY = frozenset({"STOPPED_BEFORE_START", "ABORTED", TAKEN_BACK})
"""It was told to stop, or taken back out of the backlog, before it began."""


def kind_of_reason(reason: str) -> RefusalKind:
    """Whom a refusal blames of which only the reason is known."""
    if reason in BLAMES_THE_JOB:
        return RefusalKind.REQUEST
    if reason == BLAMES_ACCOUNT:
        return RefusalKind.JOB_HERE
    if reason in BLAMES_DEVICES:
        return RefusalKind.DEVICES
    return RefusalKind.NOBODY if reason in BLAMES_NOBODY else RefusalKind.NODE
