"""What ranks that have ended are to leave and have not brought yet (`--download`)."""

from dataclasses import dataclass
from enum import Enum

from .attempts import EndedAttempt
from .ids import JobId, NodeName, RankKey
from .units import Instant


class ResultsOutcome(Enum):
    """What became of what a rank was to leave.

    STORED: all that was chosen. INCOMPLETE: not all of it; what is missing is named. LOST: nothing came, and its node
    has nothing of it any more, or is lost itself; one that comes back brings what it still has.
    """

    STORED = "STORED"
    INCOMPLETE = "INCOMPLETE"
    LOST = "LOST"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsDue:
    """An attempt that has ended, and of which ranks are still to bring what they left. `nodes` are those of its ranks,
    `ranks` the numbers of those that are awaited.
    """

    job: JobId
    attempt: int
    lineage: str = ""
    nodes: tuple[NodeName, ...]
    ranks: tuple[int, ...]
    since: Instant

    def awaits(self, key: RankKey) -> bool:
        """Whether this rank is one of them."""
        return (key.job, key.attempt, key.lineage) == (self.job, self.attempt, self.lineage) and key.rank in self.ranks

    def on(self, node: NodeName) -> tuple[RankKey, ...]:
        """The ranks that this node is to bring."""
        ranks = (rank for rank in self.ranks if self.nodes[rank] == node)
        return tuple(RankKey(self.job, self.attempt, rank, self.lineage) for rank in ranks)


def due_of(job: JobId, ended: EndedAttempt) -> ResultsDue | None:
    """What an attempt that has just ended is to bring; None where no rank of it ever ran."""
    ranks = tuple(number for number, rank in enumerate(ended.ranks) if rank.started_at is not None)
    if not ranks:
        return None
    return ResultsDue(
        job=job,
        attempt=ended.number,
        lineage=ended.lineage,
        nodes=tuple(rank.placement.node for rank in ended.ranks),
        ranks=ranks,
        since=ended.ended_at,
    )
