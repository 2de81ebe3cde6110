"""How much of the fleet each user has used: the ground of fair share.

Usage is counted in CPU-seconds; a GPU counts as much as GPU_WEIGHT CPUs, and a share of one as much of that. It decays:
after HALF_LIFE half of it counts (the rule of Slurm's PriorityDecayHalfLife, whose default is 7 days as well).
"""

import math
from dataclasses import dataclass

from .ids import UserName
from .shares import WHOLE_MILLI
from .specs import Resources
from .units import DAY, Instant, Span

HALF_LIFE = Span(7 * DAY)
GPU_WEIGHT = 16


def decayed(cpu_seconds: float, span: int) -> float:
    """What usage counts for after a span in microseconds."""
    return cpu_seconds * math.exp2(-max(0, span) / HALF_LIFE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a user's ended attempts count for at an instant, in CPU-seconds."""

    user: UserName
    cpu_seconds: float
    at: Instant

    def by(self, at: Instant) -> float:
        """What it still counts for at a later instant."""
        return decayed(self.cpu_seconds, at - self.at)

    def charged(self, cpu_seconds: float, at: Instant) -> "Usage":
        """The same with more, at a later instant."""
        return Usage(user=self.user, cpu_seconds=self.by(at) + cpu_seconds, at=max(at, self.at))


@dataclass(slots=True)
class UserHold:
    """What a user's active jobs hold, and since when: `weighted_start` is the sum of weight × placed_at.

    GPUs and weights are in thousandths, so that shares of GPUs are summed up exactly.
    """

    jobs: int = 0
    gpu_milli: int = 0
    weight: int = 0
    weighted_start: int = 0

    def add(self, resources: Resources, nodes: int, placed_at: Instant, sign: int = 1) -> None:
        """Count an active job on so many nodes in, or out with the sign −1."""
        weight = weight_of(resources, nodes)
        self.jobs += sign
        self.gpu_milli += sign * resources.gpu_milli
        self.weight += sign * weight
        self.weighted_start += sign * weight * placed_at

    def used_by(self, at: Instant) -> int:
        """What they have used so far, in CPU-microseconds."""
        return max(0, self.weight * at - self.weighted_start) // WHOLE_MILLI


def weight_of(resources: Resources, nodes: int) -> int:
    """How many thousandths of a CPU a request counts as that is placed on so many nodes."""
    return GPU_WEIGHT * resources.gpu_milli + WHOLE_MILLI * resources.cpus * nodes
