"""Why jobs wait, for answers that only say it in a clause, and when they start.

A walk down the order costs what the queue holds, so that jobs which ask for the same share its answer as long as the
committed state stays as it is, and for ANSWER_SPAN at most, since what nodes report needs no commit. With MANY_NODES
they share it for ANSWER_SPAN_OF_MANY, whatever is committed: such an answer may be as old as that.
"""

from collections.abc import Sequence
from itertools import islice

from ..engine import Engine
from ..policy.explain import NEXT_PASS, bounds_of, wait_reasons, why_deferred
from ..policy.forecast import FITS_TRIED, Bound, estimates
from ..policy.known_nodes import KnownNodes
from ..policy.order import queue_order
from ..policy.promises import Promises
from ..state.ids import JobId, UserName
from ..state.jobs import Asked, Deferred, Held, Job, Queued
from ..state.units import MILLISECOND, SECOND, Instant, Span

BOUNDED_JOBS = 20
"""How far down the order those who watch are told bounds."""

ANSWER_SPAN = Span(100 * MILLISECOND)
MANY_NODES, ANSWER_SPAN_OF_MANY = 200, Span(1 * SECOND)
"""With more nodes than that something is committed at every moment, and a walk is dear: answers stand meanwhile."""

Reason = tuple[str, str]
HELD: Reason = ("HELD", "held until it is released")


class WaitReasons:
    """Answers (reason, clause) for waiting jobs from the committed view."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._commits = -1
        self._at = Instant(0)
        self._of_class: dict[tuple[UserName, Asked, JobId | None], Reason] = {}
        self._starts: dict[JobId, Instant] | None = None
        self._known_nodes = KnownNodes()
        self.promises = Promises()
        self._bounds: dict[JobId, Bound] = {}
        self._bounds_commits = -1

    def bounds(self) -> dict[JobId, Bound]:
        """When the first BOUNDED_JOBS of the order start at the latest; of fewer where there are many nodes."""
        view, now = self._engine.view, self._engine.now()
        count = max(1, min(BOUNDED_JOBS, FITS_TRIED // max(1, len(view.durable.nodes))))
        first = list(islice(queue_order(view.durable, now), count))
        self._bounds = bounds_of(view, first, now, self.promises)
        self._bounds_commits = self._engine.commits
        return self._bounds

    def known_bounds(self) -> dict[JobId, Bound]:
        """The bounds that somebody has asked for, where nothing was committed since; they cost nothing."""
        return self._bounds if self._bounds_commits == self._engine.commits else {}

    def bound(self, job: Job) -> Bound | None:
        """When one job that waits in line starts at the latest."""
        return bounds_of(self._engine.view, [job], self._engine.now(), self.promises).get(job.id)

    def starts(self) -> dict[JobId, Instant]:
        """When the first jobs of the order start, as expected; without those of which nobody knows."""
        self._forget_what_is_old()
        if self._starts is None:
            view = self._engine.view
            self._starts = estimates(view, self._at)
        return self._starts

    def of(self, jobs: Sequence[Job]) -> dict[JobId, Reason]:
        """The reasons of those that wait."""
        self._forget_what_is_old()
        found: dict[JobId, Reason] = {job.id: HELD for job in jobs if isinstance(job.state, Held)}
        found |= {job.id: why_deferred(job) for job in jobs if isinstance(job.state, Deferred)}
        unknown: list[Job] = []
        for job in jobs:
            if isinstance(job.state, Queued):
                known = self._of_class.get((job.user, job.spec.asked, job.array))
                if known is None:
                    unknown.append(job)
                else:
                    found[job.id] = known
        if unknown:
            fresh = wait_reasons(self._engine.view, unknown, self._at, self._known_nodes)
            found |= fresh
            for job in unknown:
                reason = fresh.get(job.id)
                if reason is not None and reason[0] != NEXT_PASS:
                    self._of_class[job.user, job.spec.asked, job.array] = reason
        return found

    def _forget_what_is_old(self) -> None:
        now = self._engine.now()
        are_many = len(self._engine.view.durable.nodes) > MANY_NODES
        is_changed = self._commits != self._engine.commits and not are_many
        if is_changed or now - self._at > (ANSWER_SPAN_OF_MANY if are_many else ANSWER_SPAN):
            self._commits = self._engine.commits
            self._at = now
            self._of_class.clear()
            self._starts = None
