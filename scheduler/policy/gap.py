"""Which jobs wait since history was cut off, and for what: the pass leaves them out by what explains them.

A database that was put back knows jobs as waiting that nodes may run, placed by the history that it lacks. So none of
its jobs is placed until all nodes that it knows have told what they run, or were silent for so long that their keepers
have ended it; and until as much time has passed since the start that accepted it, for nodes that joined meanwhile are
not known. A job that outlives the fence is waited for as long as one on a silent node is (docs/rules/jobs.md 4.34).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..state.durable import Durable
from ..state.gap import HistoryGap
from ..state.ids import JobId, NodeName
from ..state.indexes.equal_jobs import EqualJobs
from ..state.jobs import Job
from ..state.limits import Limits
from ..state.live import Live
from ..state.specs import JobSpec
from ..state.state import State
from ..state.units import NEVER, Instant, Span, after


def waits_for(limits: Limits, spec: JobSpec) -> Span:
    """How long a job that may run on a silent node is waited for."""
    if not spec.is_requeueable:
        return max(limits.unreachable_span, limits.requeue_fence)
    return max(spec.requeue_fence or Span(0), limits.requeue_fence)


@dataclass(slots=True)
class GapHold:
    """What jobs from before a gap wait for at an instant."""

    gap: HistoryGap
    at: Instant
    limits: Limits
    durable: Durable
    live: Live
    _lingering: dict[JobId, NodeName] = field(default_factory=dict)
    _until: dict[Span, Instant] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, node in self.live.nodes.items():
            if node.lingering and self._is_heard(name):
                for key in node.lingering:
                    self._lingering.setdefault(key.job, name)

    def holds(self, job: Job) -> bool:
        """Whether this job is not placed now."""
        if job.id >= self.gap.jobs_below or self.gap.has_released(job.id):
            return False
        return job.id in self._lingering or self.at < self.until(waits_for(self.limits, job.spec))

    @property
    def all_before(self) -> Instant:
        """Jobs whose age counts from before this instant are all held; 0 where that is not so."""
        is_whole = not self.gap.released and self.at < self.until(self.limits.requeue_fence)
        return self.gap.at if is_whole else Instant(0)

    def until(self, span: Span) -> Instant:
        """Until when those are held that are waited for so long; NEVER: until a node that is heard has told."""
        known = self._until.get(span)
        if known is None:
            ends = (self._silent_until(name, span) for name in self.gap.awaited)
            known = self._until[span] = max(after(self.gap.at, span), *ends, Instant(0))
        return known

    def _silent_until(self, name: NodeName, span: Span) -> Instant:
        node = self.live.nodes.get(name)
        if node is None:
            return Instant(0)
        return NEVER if self._is_heard(name) else after(node.heard_at, span)

    def _is_heard(self, name: NodeName) -> bool:
        node, known = self.live.nodes.get(name), self.durable.nodes.get(name)
        return node is not None and node.is_connected and known is not None and not known.is_lost

    def still_ends_on(self, job: Job) -> NodeName | None:
        """A node that was found to run this job, as an attempt that the store lacks, and still ends that."""
        return self._lingering.get(job.id)

    def untold(self, job: Job) -> list[NodeName]:
        """The nodes that have not told what they run, and may run this job."""
        span = waits_for(self.limits, job.spec)
        return [name for name in self.gap.awaited if self.at < self._silent_until(name, span)]


def gap_hold(state: State, at: Instant) -> GapHold | None:
    """What jobs from before the last gap wait for; None where nothing waits for one."""
    gap = state.durable.gap
    if gap is None or gap.is_closed:
        return None
    return GapHold(gap=gap, at=at, limits=state.limits, durable=state.durable, live=state.live)


def deadlines(state: State) -> Iterator[Instant]:
    """When jobs may be placed that wait since a gap, as far as that is known."""
    hold = gap_hold(state, state.live.clock_at)
    if hold is not None:
        untils = (hold.until(span) for span in (state.limits.requeue_fence, longest(state.limits)))
        yield from (until for until in untils if state.live.clock_at < until < NEVER)


def longest(limits: Limits) -> Span:
    """How long a gap is waited for by any job that has no longer fence of its own."""
    return max(limits.unreachable_span, limits.requeue_fence)


def is_over(state: State, at: Instant) -> bool:
    """Whether no job waits since the last gap any more, or may come to."""
    hold = gap_hold(state, at)
    if hold is None or at < hold.until(longest(state.limits)):
        return False
    alike = (each.first if isinstance(each, EqualJobs) else each for each in state.durable.jobs.entities())
    return not any(hold.holds(job) for job in alike)
