"""How far running attempts are into their time limits, on this start's own clock. Never stored.

After a start the clock may be another one, set meanwhile: an attempt counts from what its node says, which is a span.
"""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from .ids import JobId
from .jobs import Job, Running
from .units import Instant
from .warnings import time_limit_marks

DUE_AT_ONCE = 1_000
"""Attempts that near their limit and are seen to at once; the rest follow at once, in a turn of their own."""

STALE_MAX = 1_000
"""Marks that count no more are taken out once there are more of them than this, and than of those that do."""


@dataclass(slots=True)
class TimeLimits:
    """When attempts began, and when each is to be warned next.

    `next_at` is that by job, and `marks` the same as a heap, with some that count no more. `due` are those
    that the present turn sees to.
    """

    began_at: dict[JobId, Instant] = field(default_factory=dict)
    next_at: dict[JobId, Instant] = field(default_factory=dict)
    marks: list[tuple[Instant, JobId]] = field(default_factory=list)
    due: list[JobId] = field(default_factory=list)

    def begin(self, job: Job | None, at: Instant) -> None:
        """A rank of a job's attempt runs since then; of several the last one counts. It may be given a limit later."""
        if job is not None and isinstance(job.state, Running):
            known = self.began_at.get(job.id)
            if known is None or at > known:
                self.began_at[job.id] = at
                self.go_on(job)

    def go_on(self, job: Job) -> None:
        """Look at an attempt again at its next mark, if there is one."""
        began_at, limit = self.began_at.get(job.id), job.spec.time_limit
        marks = () if began_at is None or limit is None else time_limit_marks(job.warnings, began_at, limit)
        self.next_at.pop(job.id, None)
        if marks:
            self.next_at[job.id] = marks[0][0]
            heappush(self.marks, (marks[0][0], job.id))
            self._drop_stale()

    def end(self, job: JobId) -> None:
        """Its attempt is over."""
        self.began_at.pop(job, None)
        self.next_at.pop(job, None)
        self._drop_stale()

    def _drop_stale(self) -> None:
        if len(self.marks) > 2 * len(self.next_at) + STALE_MAX:
            self.marks = [(at, job) for job, at in self.next_at.items()]
            heapify(self.marks)

    def advance(self, at: Instant) -> None:
        """Take out what is due."""
        self.due.clear()
        while self.marks and self.marks[0][0] <= at and len(self.due) < DUE_AT_ONCE:
            due_at, job = heappop(self.marks)
            if self.next_at.get(job) == due_at:
                del self.next_at[job]
                self.due.append(job)
