"""Bounds that were told, and why one has grown: "35m later than it was: job 15 went ahead".

A bound holds for the jobs and nodes of its moment. As long as none of them changes, what was told stands, though the
same bound of a later moment would be later by itself. What changes is named: a node that takes no work any more, a job
that came, something that lasts longer than it may.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ..state.durable import Durable
from ..state.ids import JobId, NodeName
from ..state.jobs import Divided, Job, Queued
from ..state.limits import Limits
from ..state.live import Arrival, Live
from ..state.specs import Band, Outcome
from ..state.state import State
from ..state.units import DAY, HOUR, MINUTE, SECOND, Instant
from .admission import minimum_memory
from .fit import NodeView, could_ever_hold
from .forecast import Bound
from .reservation import ends_by

PROMISES_KEPT = 10_000
"""Jobs whose bound is remembered; of the one told longest ago it is forgotten first."""

CAUSES_TOLD = 3
"""Causes that are told of one bound; the newest first."""

Views = Mapping[NodeName, NodeView]


Cause = str | Arrival
"""Words, or a job that came: what it does is told as it is when it is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Promise:
    """What a job was told. `least` is the least that it was told since its bound grew first, for the `causes`."""

    at: Instant
    least: Instant
    causes: tuple[Cause, ...]
    arrivals: int
    takers: frozenset[NodeName]
    limits: Limits
    attempts: int
    band: Band


class Promises:
    """The bounds that jobs were told, for as long as this process lives."""

    def __init__(self) -> None:
        self._of: dict[JobId, _Promise] = {}

    def keep(self, state: State, job: Job, bound: Bound, views: Views, at: Instant) -> Bound:
        """What to tell of a bound of this moment: what was told, where that still holds, or why it has grown."""
        before = self._of.pop(job.id, None)
        if bound.at is None:
            return bound
        now = _Promise(
            at=bound.at,
            least=bound.at,
            causes=(),
            arrivals=state.live.arrival_count,
            takers=_takers(state, job, views),
            limits=state.limits,
            attempts=job.attempt_count,
            band=job.band,
        )
        if before is not None and (before.attempts, before.band) == (now.attempts, now.band):
            now = _later(state, job, before, now, views, at)
        self._of[job.id] = now
        if len(self._of) > PROMISES_KEPT:
            del self._of[next(iter(self._of))]
        return replace(bound, at=now.at, sentence=_sentence(state, now) or bound.sentence)


def _later(state: State, job: Job, before: _Promise, now: _Promise, views: Views, at: Instant) -> _Promise:
    if now.at <= before.least:
        return now
    if now.at <= before.at:
        return replace(now, least=before.least, causes=before.causes)
    causes = tuple(_causes(state, job, before, views, at))
    if not causes and before.at >= at:
        # Nothing new: the earlier one holds. What came since it was told came behind it.
        return replace(before, arrivals=now.arrivals, takers=now.takers)
    causes = causes or ("what runs has not ended when it had to",)
    return replace(now, least=before.least, causes=tuple(dict.fromkeys((*causes, *before.causes)))[:CAUSES_TOLD])


def _sentence(state: State, promise: _Promise) -> str:
    if not promise.causes:
        return ""
    causes = "; ".join(each if isinstance(each, str) else _arrival(state, each) for each in promise.causes)
    return f"{about_span(promise.at - promise.least)} later than it was: {causes}"


def _arrival(state: State, came: Arrival) -> str:
    other = state.durable.jobs.get(came.job)
    if other is None and state.live.ended.get(came.job) is Outcome.CANCELLED:
        return f"job {came.job} was ahead until it was cancelled"
    if came.is_back and other is not None:
        return f"job {came.job} was queued again"
    return f"job {came.job} {'went' if other is None or other.attempt is not None else 'may go'} ahead"


def about_span(span: int) -> str:
    """A span for people, rounded up: 3d, 5h, 35m, 20s."""
    for unit, size in (("d", DAY), ("h", HOUR), ("m", MINUTE)):
        if span >= 2 * size:
            return f"{-(-span // size)}{unit}"
    return f"{-(-span // SECOND)}s"


def _takers(state: State, job: Job, views: Views) -> frozenset[NodeName]:
    """The nodes that take work now and could hold the job when empty, on devices that are well."""
    minimum = minimum_memory(state, job.spec.resources)
    return frozenset(
        name
        for name, view in views.items()
        if view.miss is None and could_ever_hold(view.node, job.spec.resources, minimum) is None
    )


def _causes(state: State, job: Job, before: _Promise, views: Views, at: Instant) -> Iterator[Cause]:
    """What is otherwise than when the bound was told, and may make it later."""
    for name in sorted(before.takers - _takers(state, job, views)):
        view = views.get(name)
        yield f"node {name} is gone" if view is None else f"node {name} {view.miss.clause if view.miss else 'changed'}"
    yield from _arrivals(state.durable, state.live, job, before.arrivals)
    for job_id in state.durable.active:
        running = state.durable.jobs[job_id]
        ends_at = None if running.attempt is None else ends_by(running, running.attempt)
        if ends_at is not None and ends_at < at:
            yield f"job {job_id} has not ended when it had to"
    if before.limits != state.limits:
        yield "the settings were changed"


def _arrivals(durable: Durable, live: Live, job: Job, since: int) -> Iterator[Cause]:
    """Jobs that came to wait since, newest first, but for those that can make no difference."""
    if live.arrivals and live.arrivals[0].number > since + 1:
        yield f"more than {len(live.arrivals):,} jobs came"
        return
    for came in reversed(live.arrivals):
        if came.number <= since:
            return
        if came.job == job.id or came.job >= durable.counters.next_job:
            continue
        other = durable.jobs.get(came.job)
        if other is None or other.attempt is not None or _may_go_ahead(other, job):
            yield came
        elif isinstance(other.state, Queued | Divided):
            yield f"job {came.job} came, which may run for longer"


def _may_go_ahead(other: Job, job: Job) -> bool:
    """Whether a job may be tried before another that waits, whatever users come to have used meanwhile."""
    if not isinstance(other.state, Queued | Divided):
        return False
    if other.band != job.band:
        return other.band > job.band
    return other.user != job.user or (other.age_since, other.id) < (job.age_since, job.id)
