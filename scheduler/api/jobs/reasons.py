"""Why jobs wait, for answers that only say it in a clause, and when they start.

The reasons are those of the last pass, whatever the fleet's size: each class of request of a page is looked at once
behind each pass. Where no pass came for PASS_AGE, as nothing happened, or where the store takes no commits, a pass
without consequences on the committed state tells them, and stands for ANSWER_SPAN: what only time does needs no commit.
"""

from collections.abc import Sequence
from itertools import islice

from ...engine import Engine
from ...policy.caps import Caps
from ...policy.explain import WaitReason, bounds_of, why_deferred
from ...policy.forecast import FITS_TRIED, Bound, Estimates, estimates
from ...policy.node_cache import NodeCache
from ...policy.order.queue import queue_order
from ...policy.page_reasons import PassReasons, passed_without_consequences
from ...policy.promises import Promises
from ...state.ids import JobId
from ...state.jobs import Deferred, Held, Job, Queued
from ...state.units import MILLISECOND, SECOND, Instant, Span

BOUNDED_JOBS = 20
"""How far down the order those who watch are told bounds."""

ANSWER_SPAN = Span(100 * MILLISECOND)
PASS_AGE = Span(1 * SECOND)
"""How old the last pass may be for its reasons to stand."""

HELD = WaitReason("HELD", "held until it is released")


class WaitReasons:
    """Answers the reasons of waiting jobs from the committed view."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._commits = -1
        self._at = Instant(0)
        self._of_pass: PassReasons | None = None
        self._of_view: PassReasons | None = None
        self._starts: Estimates | None = None
        self._known_nodes = NodeCache()
        self.promises = Promises()
        self._bounds: dict[JobId, Bound] = {}
        self._bounds_commits = -1

    def bounds(self) -> dict[JobId, Bound]:
        """When the first BOUNDED_JOBS of the order start at the latest; of fewer where there are many nodes."""
        view, now = self._engine.view, self._engine.now()
        count = max(1, min(BOUNDED_JOBS, FITS_TRIED // max(1, len(view.durable.nodes))))
        first = list(islice(queue_order(view, now), count))
        self._bounds = bounds_of(view, first, now, self.promises)
        self._bounds_commits = self._engine.commits
        return self._bounds

    def known_bounds(self) -> dict[JobId, Bound]:
        """The bounds that somebody has asked for, where nothing was committed since; they cost nothing."""
        return self._bounds if self._bounds_commits == self._engine.commits else {}

    def bound(self, job: Job) -> Bound | None:
        """When one job that waits in line starts at the latest."""
        return bounds_of(self._engine.view, [job], self._engine.now(), self.promises).get(job.id)

    def starts(self) -> Estimates:
        """When the first jobs of the order start, as expected, or why nobody knows."""
        self._forget_what_is_old()
        if self._starts is None:
            view = self._engine.view
            self._starts = estimates(view, self._at)
        return self._starts

    def of(self, jobs: Sequence[Job]) -> dict[JobId, WaitReason]:
        """The reasons of those that wait."""
        found: dict[JobId, WaitReason] = {job.id: HELD for job in jobs if isinstance(job.state, Held)}
        found |= {job.id: why_deferred(job) for job in jobs if isinstance(job.state, Deferred)}
        waiting = [job for job in jobs if isinstance(job.state, Queued)]
        if waiting:
            reasons, caps = self._by_the_last_pass()
            found |= {job.id: reasons.of(job, caps) for job in waiting}
        return found

    def _by_the_last_pass(self) -> tuple[PassReasons, Caps]:
        """The reasons by the pass that stands, and what users hold beside it."""
        view, now, last = self._engine.view, self._engine.now(), self._engine.last_pass
        if last is not None and now - last.at <= PASS_AGE:
            if self._of_pass is None or self._of_pass.trial is not last:
                self._of_pass = PassReasons(last)
            return self._of_pass, Caps(view, now)
        self._forget_what_is_old()
        if self._of_view is None:
            self._of_view = PassReasons(passed_without_consequences(view, self._at, self._known_nodes))
        return self._of_view, self._of_view.trial.caps

    def _forget_what_is_old(self) -> None:
        now = self._engine.now()
        if self._commits != self._engine.commits or now - self._at > ANSWER_SPAN:
            self._commits = self._engine.commits
            self._at = now
            self._of_view = None
            self._starts = None
