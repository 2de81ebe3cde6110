"""What the store lacks: history that was cut off, since a person went on with a database that is older than it was.

Its jobs may have run, and may still run, on nodes that know of it and on nodes of which the store knows nothing.
"""

from dataclasses import dataclass
from hashlib import sha256

from .attempts import Placement
from .ids import JobId, NodeName, RankKey, UserName
from .units import Instant

RELEASED_SPANS_MAX = 10_000
"""Spans of jobs that people released one by one; who releases more waits for the nodes."""


EARLIER_GAPS_KEPT = 100
"""Gaps before the last whose lost jobs are still taken in, the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryGap:
    """The last time that history was cut off. `at` is the start that accepted it, `reason` what was found then.

    Jobs below `jobs_below` were there before. None of them is placed until the nodes in `awaited`, all that the store
    knew, have told what they run, and the fence of nodes that it does not know has passed (policy/gap.py); those in
    `released`, spans of ids, are placed all the same. Those from `jobs_below` on and below `jobs_from` the store lacks;
    of them `found` were told by nodes, and are kept as they ended. Of those in `given_up`, which the store has, a node
    told of an attempt that does not count. `is_closed`: nothing waits for it any more. `term` is that of the start:
    history of lower ones that the store lacks was given up; 0 where an older version accepted it. `earlier` are spans
    of ids that it lacks since gaps before: nodes that were away may tell of them yet, and `found` has theirs, too.
    """

    at: Instant
    reason: str
    jobs_below: JobId
    jobs_from: JobId = JobId(0)
    awaited: tuple[NodeName, ...] = ()
    released: tuple[tuple[JobId, JobId], ...] = ()
    found: tuple[JobId, ...] = ()
    is_closed: bool = False
    term: int = 0
    given_up: tuple[tuple[JobId, NodeName], ...] = ()
    earlier: tuple[tuple[JobId, JobId], ...] = ()

    @property
    def lacked(self) -> tuple[tuple[JobId, JobId], ...]:
        """Spans of ids of jobs that the store lacks, of this gap and of those before."""
        return (*self.earlier, (self.jobs_below, self.jobs_from))[-EARLIER_GAPS_KEPT:]

    @property
    def is_released(self) -> bool:
        """Whether a person let all jobs start that wait for it."""
        return (JobId(1), self.jobs_below) in self.released

    def may_give_up(self, job: JobId, node: NodeName) -> bool:
        """Whether it is not said yet that this node told of an attempt of this job which does not count."""
        return len(self.given_up) < FOUND_MAX and (job, node) not in self.given_up

    def has_released(self, job: JobId) -> bool:
        """Whether a person let this job start all the same."""
        return any(begin <= job < end for begin, end in self.released)

    def lacks(self, job: JobId) -> bool:
        """Whether this is the number of a job that the store lacks, and that no node has told of yet."""
        return any(begin <= job < end for begin, end in self.lacked) and job not in self.found


FOUND_MAX = 10_000
"""Jobs that the store lacks which are kept as nodes told of them; of more only their nodes' logs tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a launch says of its job, so that a store which lacks the attempt knows whose it is.

    Only a scheduler can have written it (origins.py). Two jobs with the same number, user, moment of submit and program
    are one. `argv` is cut; `argv_digest` is of all of it. `placement` is that of the rank, of `node_count` in all.
    With a `slot` it came out of its node's backlog, to be the next there.
    """

    user: UserName
    name: str
    submitted_at: Instant
    placed_at: Instant
    argv: tuple[str, ...]
    argv_digest: str
    placement: Placement
    node_count: int = 1
    serves: str = ""
    slot: RankKey | None = None

    def is_of(self, argv: tuple[str, ...]) -> bool:
        """Whether it is of this program with these arguments."""
        return self.argv_digest == digest_of_argv(argv)


def digest_of_argv(argv: tuple[str, ...]) -> str:
    """The SHA-256 of a program with its arguments, in hexadecimal."""
    return sha256(b"\0".join(each.encode(errors="surrogateescape") for each in argv)).hexdigest()
