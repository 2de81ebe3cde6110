"""The numbers of the rules."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from .ids import ModelName, UserName
from .sessions.session import SessionLimits
from .specs import Band, GpuMode
from .units import DAY, MB, MINUTE, SECOND, Span


class NodeOrder(StrEnum):
    """Which of the nodes that fit is taken: the one that is filled most, or the one that is idle most."""

    FRAGMENTATION = "fragmentation"
    IDLE = "idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreWeights:
    """What a device's free memory and its idleness, each 0 to 1, count for in its score; each weight is 0 to 1."""

    free_memory: float = 0.6
    idleness: float = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class WarningLimits:
    """When an attempt is warned; a span of 0 means never.

    A device that is idle for `idle_span`, memory of which at most `memory_percent` of what was reserved was used in
    `memory_span`, and a device that was slowed down for `throttled_span` more than it was not.
    """

    idle_span: Span = Span(15 * MINUTE)
    memory_span: Span = Span(15 * MINUTE)
    memory_percent: int = 30
    throttled_span: Span = Span(30 * SECOND)


@dataclass(frozen=True, slots=True, kw_only=True)
class BandRights:
    """Which bands a person may ask for: those of their role, or of role user those of their own entry."""

    user: frozenset[Band] = frozenset({Band.LOW, Band.NORMAL})
    admin: frozenset[Band] = frozenset(Band)
    users: Mapping[UserName, frozenset[Band]] = field(default_factory=dict)

    def of(self, user: UserName, *, is_admin: bool) -> frozenset[Band]:
        """The bands of a person."""
        return self.admin if is_admin else self.users.get(user, self.user)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRouting:
    """What AUTO is decided by, and when a job that prefers GPUs does without.

    `modes` has a mode for each pattern of content types, a type such as `audio/mpeg` or what it begins with and a star;
    of those that match the longest decides. A job waits for the GPUs that it prefers for `gpu_wait` at most, and not at
    all behind more than `gpu_queue_limit` jobs that wait for GPUs.
    """

    modes: Mapping[str, GpuMode] = field(
        default_factory=lambda: {
            "audio/*": GpuMode.PREFERRED,
            "image/*": GpuMode.PREFERRED,
            "video/*": GpuMode.PREFERRED,
            "*": GpuMode.NEVER,
        }
    )
    gpu_wait: Span = Span(MINUTE)
    gpu_queue_limit: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The numbers of the rules that a configuration may change. A cap of 0 is none.

    A waiting job that is older than `age_limit` goes in front of its band; 0: never. `time_outs` is after how many
    attempts at its time limit a job that is queued again each time ends all the same, and `blameless_losses` after how
    many that were lost with a keeper and are nobody's doing. `sessions` are the numbers of
    models for which they are set; those that a person named go before them. `least_awake` is how long a program of an
    exclusive group that has become ready has its GPU before it may be put to sleep for another one of its group.
    With `nodes_await_approval` a node that joins is given no work until a person approves it. `backlog_depth` is how
    many short jobs may wait in each slot of a node, to begin as soon as the one before has ended; 0: none.
    A gang that is prepared is given up when a node says nothing of its rank for `prepare_span`, or that nothing of it
    moves for `prepare_still_span`. `kept_wait` is how long a job that is queued again waits for what its last attempt
    keeps.
    """

    heartbeat_interval: Span = Span(2 * SECOND)
    missed_heartbeats: int = 3
    node_lease: Span = Span(60 * SECOND)
    nodes_await_approval: bool = False
    requeue_fence: Span = Span(10 * MINUTE)
    unreachable_span: Span = Span(24 * 60 * MINUTE)
    request_retention: Span = Span(24 * 60 * MINUTE)
    sample_age: Span = Span(5 * SECOND)
    node_losses: int = 3
    time_outs: int = 1_000
    blameless_losses: int = 1_000
    left_out_span: Span = Span(30 * SECOND)
    prepare_span: Span = Span(15 * SECOND)
    prepare_still_span: Span = Span(10 * MINUTE)
    gang_start_span: Span = Span(30 * SECOND)
    queued_jobs: int = 1_000_000
    node_order: NodeOrder = NodeOrder.FRAGMENTATION
    backlog_depth: int = 3
    kept_wait: Span = Span(60 * MINUTE)
    user_gpus_max: int = 0
    user_jobs_max: int = 0
    preemptible_after: Span = Span(5 * MINUTE)
    least_awake: Span = Span(30 * SECOND)
    bands: BandRights = BandRights()
    age_limit: Span = Span(4 * DAY)
    score_weights: ScoreWeights = ScoreWeights()
    default_min_memory_bytes: int = 8_000 * MB
    warnings: WarningLimits = WarningLimits()
    sessions: Mapping[ModelName, SessionLimits] = field(default_factory=dict)
    routing: GpuRouting = field(default_factory=GpuRouting)
