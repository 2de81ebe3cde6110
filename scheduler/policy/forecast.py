"""When a waiting job starts: an estimate, which may be wrong, and an upper bound, which is not.

The bound rests on enforced limits only, and holds for the jobs and nodes of this moment. The job that holds the
reservation starts when its reservation begins, at the latest. Every other job ahead needs at most one longest run more:
once all that were ahead are placed, the next one has the reservation, and whatever runs then, placed before it or
passing it, has ended one longest run later.

The estimate replays the order with expected runs: what the user's last success of that name and program took, else the
time limit. A job that has run for longer than expected is expected to run as long again, up to its limit.
"""

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, islice

from ..state.gpu_choice import fallen_back
from ..state.ids import JobId, NodeName
from ..state.indexes.lines import Line
from ..state.jobs import FellBack, Job, Running, Stopping
from ..state.live import run_key
from ..state.specs import Asked
from ..state.state import State
from ..state.units import Instant, Span, after
from ..state.waits import Forecast
from .admission import minimum_memory
from .caps import Caps
from .fit import NodeView, RankHold, node_views
from .gangs import could_ever, ranks_of
from .order.queue import queue_order
from .placement_pass import PlacementPass
from .ranges import Range, Ranges
from .reservation import START_SPAN, holds_on, let_go, reserve

ESTIMATED_JOBS = 200
"""How far down the order an estimate looks; behind it there is none."""

FITS_TRIED = 2_000
"""How often a replay asks a node if a job fits there: some 30 ms. Who was not placed by then has no estimate."""

Views = dict[NodeName, NodeView]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """When a job starts at the latest, or why nobody can say, in words."""

    at: Instant | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """When a job is expected to start, as of `made_at`, or why nobody can say, in words.

    `likely` is the range in which nine of ten such jobs start.
    """

    at: Instant | None
    sentence: str = ""
    likely: Range | None = None
    made_at: Instant = Instant(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Expected starts of the first jobs of the order. `why_not` is why those that were looked at have none."""

    starts: Mapping[JobId, Instant] = field(default_factory=dict)
    ranges: Mapping[JobId, Range] = field(default_factory=dict)
    made_at: Instant = Instant(0)
    without: frozenset[JobId] = frozenset()
    why_not: str = ""

    def of(self, job: JobId) -> Estimate:
        """The estimate for a job that waits in line."""
        start = self.starts.get(job)
        if start is not None:
            return Estimate(at=start, likely=self.ranges.get(job), made_at=self.made_at)
        behind = f"no estimate: at least {ESTIMATED_JOBS} jobs are ahead"
        return Estimate(at=None, sentence=self.why_not if not self.starts or job in self.without else behind)


def bound(state: State, job: Job, views: Views, ahead: int, at: Instant) -> Bound:
    """The upper bound for a job that `ahead` jobs are still ahead of, with the nodes as it finds them at its turn."""
    if job.spec.prefers_gpus:
        return Bound(at=None, sentence="no bound: where it waits for long it does without GPUs")
    minimum = minimum_memory(state, job.spec.resources)
    ranks = ranks_of([view.node for view in views.values()], job.spec.resources, minimum)
    those, take = ("no node that", "takes") if len(ranks) == 1 else ("too few nodes that", "take")
    if not could_ever([view.node for view in views.values()], ranks, minimum):
        known = "no node that is known" if len(ranks) == 1 else "the nodes that are known"
        return Bound(at=None, sentence=f"no bound: {known} could {'ever' if len(ranks) == 1 else 'never'} hold it")
    if not could_ever([view.node for view in views.values() if view.miss is None], ranks, minimum):
        return Bound(at=None, sentence=f"no bound: {those} could hold it {take} work now")
    # What is kept for others now is free when the turn of this one has come.
    by_then = {name: replace(view, kept_for=None) for name, view in views.items()}
    reservation = reserve(by_then, job, ranks, minimum, at, partial(holds_on, state.durable))
    if reservation is None:
        return Bound(at=None, sentence=f"no bound: {those} could hold it {take} work now")
    if reservation.trouble:
        return Bound(at=None, sentence=f"no bound: {reservation.trouble}")
    if not ahead and reservation.begins_at is not None:
        return Bound(at=reservation.begins_at, sentence="")
    endless = reservation.endless[0] if reservation.endless else _endless(state, job)
    if endless is not None:
        return Bound(at=None, sentence=f"no bound: job {endless} has no time limit")
    longest = max((span for span in _run_spans(state) if span is not None), default=Span(0))
    return Bound(at=after(at, Span((ahead + 1) * (longest + START_SPAN))), sentence="")


def _run_spans(state: State) -> Iterator[Span | None]:
    """The longest runs of all that runs or waits in line, class by class."""
    yield from (state.durable.jobs[job_id].spec.run_span for job_id in state.durable.active)
    yield from (asked.run_span for asked, _ in _lines(state))


def _endless(state: State, job: Job) -> JobId | None:
    """A job without a time limit that runs, or that waits and may go ahead of this one."""
    for job_id in state.durable.active:
        if state.durable.jobs[job_id].spec.run_span is None:
            return job_id
    waiting = (line for asked, line in _lines(state) if asked.run_span is None)
    return next((job_id for line in waiting for _, job_id in line[:2] if job_id != job.id), None)


def _lines(state: State) -> Iterator[tuple[Asked, Line]]:
    for users in state.durable.lines.of_band.values():
        for of_user in users.values():
            yield from ((key.asked, line) for key, line in of_user.items())


def estimates(state: State, at: Instant) -> Estimates:
    """When the first ESTIMATED_JOBS of the order start if everything runs as long as expected.

    Who has none starts later, or nobody knows when; so do all where one moment is more than FITS_TRIED.
    """
    if not state.durable.nodes:
        return Estimates(why_not="no estimate: no node is known")
    order = list(islice(queue_order(state, at), ESTIMATED_JOBS))
    classes, nodes = len({job.spec.asked for job in order}), len(state.durable.nodes)
    if classes * nodes > FITS_TRIED:
        why_not = f"no estimate: the first jobs ask {nodes:,} nodes for {classes} different things, too many to replay"
        return Estimates(without=frozenset(job.id for job in order), why_not=why_not)
    views = node_views(state, at)
    for view in views.values():
        view.taken = holds_on(state.durable, view)
    starts: dict[JobId, Instant] = {}
    ticket = count()
    ends: list[tuple[Instant, int, NodeName, RankHold]] = []
    for name, view in views.items():
        for hold in view.taken:
            run = _rest(state, hold.job, at)
            if run is not None:
                heapq.heappush(ends, (after(at, run), next(ticket), name, hold))
    now, caps, left = at, Caps(state, at), FITS_TRIED
    while left > 0:
        left -= len({job.spec.asked for job in order}) * len(views)
        for job, taken in _placed_now(state, views, caps, order, now):
            starts[job.id] = now
            run = expected_run(state, job)
            if run is not None:
                for name, hold in taken:
                    heapq.heappush(ends, (after(now, run), next(ticket), name, hold))
        order = [job for job in order if job.id not in starts]
        falls_at = min((job.falls_back_at for job in order if job.falls_back_at is not None), default=None)
        moments = [*([ends[0][0]] if ends else []), *([falls_at] if falls_at is not None else [])]
        if not moments or not order:
            break
        now = max(now, min(moments))
        order = [_as_it_is_then(job, now) for job in order]
        ended: dict[JobId, None] = {}  # all ranks of a gang end at once, and count as one job
        while ends and ends[0][0] == now:
            _, _, name, hold = heapq.heappop(ends)
            _give_back(views[name], hold)
            ended[hold.job] = None
        for job_id in ended:
            caps.take(state.durable.jobs[job_id], -1)
    why_not = TOO_FAR if ends else NO_END_KNOWN
    likely = Ranges(state.live.waits, at)
    ranges = {job_id: likely.of(state.durable.jobs[job_id], Span(start - at)) for job_id, start in starts.items()}
    return Estimates(
        starts=starts,
        ranges={job_id: each for job_id, each in ranges.items() if each is not None},
        made_at=at,
        without=frozenset(job.id for job in order),
        why_not=why_not,
    )


def forecasts(state: State, at: Instant) -> dict[JobId, Forecast]:
    """What is expected now of the first jobs of the order: what their true waits will be compared with."""
    known = estimates(state, at)
    return {job: forecast_of(known.of(job)) for job in known.starts}


def forecast_of(estimate: Estimate) -> Forecast:
    """What to remember of an estimate that says when."""
    assert estimate.at is not None
    latest = None if estimate.likely is None else estimate.likely.latest
    return Forecast(at=estimate.made_at, wait=Span(estimate.at - estimate.made_at), latest=latest)


def _as_it_is_then(job: Job, now: Instant) -> Job:
    """A job that still waits at a later moment: without the GPUs that it prefers, once it has waited long enough."""
    if job.falls_back_at is None or job.falls_back_at > now:
        return job
    fell_back = FellBack(at=now, reason="", message="")
    return replace(job, spec=fallen_back(job.spec), fell_back=fell_back)


TOO_FAR = "no estimate: it starts later than is looked ahead"
NO_END_KNOWN = "no estimate: nobody knows when what it waits for ends"


def _placed_now(
    state: State, views: Views, caps: Caps, order: list[Job], now: Instant
) -> Iterator[tuple[Job, list[tuple[NodeName, RankHold]]]]:
    """What a pass at this moment places, each with what it holds."""
    let_go(views)
    trial = PlacementPass(state, views, now, caps, holds=lambda view: view.taken)
    for job in order:
        if job.spec.asked in trial.given_up:
            continue
        placements = trial.place(job)
        if placements is None:
            trial.keep_for(job)
        else:
            yield job, [(each.node, views[each.node].taken[-1]) for each in placements]


def expected_run(state: State, job: Job) -> Span | None:
    """How long an attempt is expected to run: as its like did lately, at most its limit; None when nobody knows."""
    lately = state.live.runs.get(run_key(job))
    limit = job.spec.time_limit
    if lately is None:
        return limit
    return lately if limit is None else min(lately, limit)


def _rest(state: State, job_id: JobId, at: Instant) -> Span | None:
    """How much longer a job that runs is expected to."""
    job = state.durable.jobs[job_id]
    if isinstance(job.state, Stopping):
        return Span(max(0, after(job.state.since, job.spec.grace) - at))
    run = expected_run(state, job)
    if run is None:
        return None
    ran = max(0, at - job.state.started_at) if isinstance(job.state, Running) else 0
    left = run - ran if ran < run else ran
    limit = job.spec.time_limit
    return Span(left if limit is None else max(0, min(left, limit - ran)))


def _give_back(view: NodeView, hold: RankHold) -> None:
    view.cpus += hold.cpus
    view.memory_bytes += hold.memory_bytes
    view.take(hold, -1)
    view.taken.remove(hold)
    view.devices = [replace(each, held_by=None) if each.device.uuid in hold.devices else each for each in view.devices]
    view.note_change()
