"""What the store lacks: history that was cut off, since a person went on with a database that is older than it was.

Its jobs may have run, and may still run, on nodes that know of it and on nodes of which the store knows nothing.
"""

from dataclasses import dataclass

from .ids import JobId, NodeName
from .units import Instant

RELEASED_SPANS_MAX = 10_000
"""Spans of jobs that people released one by one; who releases more waits for the nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """The last time that history was cut off. `at` is the start that accepted it, `reason` what was found then.

    Jobs below `jobs_below` were there before. None of them is placed until the nodes in `awaited`, all that the store
    knew, have told what they run, and the fence of nodes that it does not know has passed (policy/gap.py); those in
    `released`, spans of ids, are placed all the same. `is_closed`: nothing waits for it any more.
    """

    at: Instant
    reason: str
    jobs_below: JobId
    awaited: tuple[NodeName, ...] = ()
    released: tuple[tuple[JobId, JobId], ...] = ()
    is_closed: bool = False

    def has_released(self, job: JobId) -> bool:
        """Whether a person let this job start all the same."""
        return any(begin <= job < end for begin, end in self.released)
