"""What ranks that have ended left (`--download`, `--keep`): awaited, until a record says what became of it.

    a rank ends -> awaited -> STORED | INCOMPLETE | NOT_WANTED | LOST

Only such a record permits its node to delete what the rank left. A rank whose results are LOST is awaited no more, and
is stored all the same if its node brings them later. Rules: docs/rules/jobs.md 4.58 and 4.77.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from .attempts import Attempt, EndedAttempt, Rank
from .ids import JobId, NodeName, RankKey
from .jobs import ATTEMPTS_KEPT, Job
from .units import Instant


class ResultsOutcome(Enum):
    """What became of what a rank left.

    STORED: all that was chosen. INCOMPLETE: not all of it; what is missing is named. LOST: nothing came, and its node
    has nothing of it any more, gave it up, or is lost itself; one that comes back brings what it still has. NOT_WANTED:
    nobody can ask for it any more.
    """

    STORED = "STORED"
    INCOMPLETE = "INCOMPLETE"
    LOST = "LOST"
    NOT_WANTED = "NOT_WANTED"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsDue:
    """The ranks of an attempt that have ended and whose results are awaited. `since`: when the last of them ended.

    `nodes` are those of all its ranks, `ranks` the numbers of those that are awaited.
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


class Claim(Enum):
    """What is known of a rank whose node brings what it left.

    ENDED: it has ended on that node; what it left is to be stored. RUNS: its end is not stored yet. PASSED: so many
    newer attempts have ended that nobody can ask for it. FOREIGN: it ran on another node. UNKNOWN: it is not known.
    """

    ENDED = "ENDED"
    RUNS = "RUNS"
    PASSED = "PASSED"
    FOREIGN = "FOREIGN"
    UNKNOWN = "UNKNOWN"


def claim_of(job: Job | None, due: ResultsDue | None, node: NodeName, key: RankKey) -> Claim:
    """What is known of a rank on this node; `due` is what is awaited of its attempt."""
    if job is None or not job.spec.leaves:
        return Claim.UNKNOWN
    if due is not None and due.awaits(key):
        return Claim.ENDED if due.nodes[key.rank] == node else Claim.FOREIGN
    live = () if job.attempt is None else (job.attempt,)
    attempts: tuple[Attempt | EndedAttempt, ...] = (*job.past, *live)
    for attempt in attempts:
        if key in attempt.keys(job.id):
            rank = attempt.ranks[key.rank]
            if rank.placement.node != node:
                return Claim.FOREIGN
            return Claim.RUNS if isinstance(attempt, Attempt) and rank.exit is None else Claim.ENDED
    is_passed = len(job.past) >= ATTEMPTS_KEPT and key.attempt < job.past[0].number
    return Claim.PASSED if is_passed else Claim.UNKNOWN


def due_with(
    known: ResultsDue | None, job: JobId, attempt: Attempt | EndedAttempt, ended: Iterable[int], at: Instant
) -> ResultsDue | None:
    """What is awaited of an attempt once these ranks of it have ended, too.

    A rank that never ran left nothing, and of one that was forgotten before it was settled.
    """
    ran = tuple(number for number in ended if _left_something(attempt.ranks[number]))
    if not ran:
        return known
    if known is not None:
        return replace(known, ranks=tuple(sorted({*known.ranks, *ran})), since=at)
    return ResultsDue(
        job=job,
        attempt=attempt.number,
        lineage=attempt.lineage,
        nodes=tuple(rank.placement.node for rank in attempt.ranks),
        ranks=ran,
        since=at,
    )


def _left_something(rank: Rank) -> bool:
    return rank.started_at is not None and not (rank.exit is not None and rank.exit.is_forgotten)
