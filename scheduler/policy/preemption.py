"""Whom a job of a higher band may take off its node: preemptible attempts of lower bands that ran for a while.

Only for the job that holds the reservation, only if it then fits, and only if it would not fit as soon by itself. The
victims are of the lowest band, then the youngest: they lose least. They queue again in their old place.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter

from ..state.ids import NodeName
from ..state.jobs import Job, Running
from ..state.state import State
from ..state.units import Instant, after
from .fit import Miss, NodeView, devices_that_fit
from .gangs import Ranks, fit_together
from .shares import shares_in


def victims_for(
    state: State, views: dict[NodeName, NodeView], job: Job, ranks: Ranks, min_memory_bytes: int, at: Instant
) -> list[Job]:
    """The attempts that make room for a job, all of it: as few as will do; empty when there are none such.

    `ranks` is what each of its ranks asks for. Where it needs one node they are all on one.
    """
    if len(ranks) > 1:
        return _for_gang(state, views, job, ranks, min_memory_bytes, at)
    found = [
        victims for view in views.values() if (victims := _on_node(state, view, job, min_memory_bytes, at)) is not None
    ]
    return min(found, key=lambda each: (max(victim.band for victim in each), len(each)), default=[])


def may_be_taken_at(state: State, victim: Job) -> Instant | None:
    """From when a preemptible attempt may be taken off its node; None while it does not run.

    What ran for less is left to run: it would lose its start, and its devices would change hands again and again.
    """
    if not isinstance(victim.state, Running) or _may_have_turns(state, victim):
        return None
    return after(victim.state.started_at, state.limits.preemptible_after)


def _may_have_turns(state: State, victim: Job) -> bool:
    """Whether people have turns on it, or are offered them: such a worker is nobody's victim.

    One that has not come back since the scheduler started may have them as long as turns of its model are missing.
    """
    if not victim.spec.serves:
        return False
    seated, worker = state.durable.sessions.seated, state.live.turns.worker_of_job(victim.id)
    if worker is not None:
        return worker.id in seated
    by_id = state.durable.sessions.by_id
    missing = (session for each in state.live.turns.missing for session in seated.get(each, ()))
    return any(by_id[session].model == victim.spec.serves for session in missing)


def _for_gang(
    state: State, views: dict[NodeName, NodeView], job: Job, ranks: Ranks, min_memory_bytes: int, at: Instant
) -> list[Job]:
    open_views = [view for view in views.values() if view.miss is None and view.kept_for in (None, job.id)]
    candidates = _candidates(state, None, job, at)

    def fits_without(victims: list[Job]) -> bool:
        emptied = [_emptied(view, victims) for view in open_views]
        return fit_together(emptied, ranks, min_memory_bytes, job.id, None)

    # The more let go the more fits, so that the least number of the first ones is found by halving.
    count = bisect_left(range(len(candidates)), True, key=lambda number: fits_without(candidates[:number]))
    chosen = candidates[:count]
    if not chosen or not fits_without(chosen):
        return []
    return _spared(chosen, chosen[:VICTIMS_SPARED_MAX], fits_without)


def _spared(chosen: list[Job], tried: list[Job], fits_without: Callable[[list[Job]], bool]) -> list[Job]:
    """The chosen without those of the tried that can stay after all."""
    for victim in tried:
        others = [each for each in chosen if each is not victim]
        if fits_without(others):
            chosen = others
    return chosen


VICTIMS_SPARED_MAX = 64
"""Of so many victims of a gang it is seen whether they can stay after all: each costs a look at every node."""


def _on_node(state: State, view: NodeView, job: Job, min_memory_bytes: int, at: Instant) -> list[Job] | None:
    if view.miss is not None or view.kept_for not in (None, job.id):
        return None

    def fits_without(victims: list[Job]) -> bool:
        emptied = _emptied(view, victims)
        return not isinstance(devices_that_fit(emptied, job.spec.resources, min_memory_bytes, job.id, None), Miss)

    chosen: list[Job] = []
    for victim in _candidates(state, view, job, at):
        chosen.append(victim)
        if fits_without(chosen):
            return _spared(chosen, chosen[:-1], fits_without)
    return None


def _candidates(state: State, view: NodeView | None, job: Job, at: Instant) -> list[Job]:
    """Those that may be taken on a node, or on any: those of the lowest band first, of one band the youngest."""
    found: list[tuple[tuple[int, int, int], Job]] = []
    for job_id in state.durable.preemptible:
        victim = state.durable.jobs[job_id]
        since = may_be_taken_at(state, victim)
        if since is None or since > at or victim.band >= job.band:
            continue
        ranks = victim.attempt.ranks if victim.attempt is not None else ()
        if view is None or any(rank.placement.node == view.node.name for rank in ranks if rank.exit is None):
            found.append(((victim.band, -since, -victim.id), victim))
    return [victim for _, victim in sorted(found, key=itemgetter(0))]


def _emptied(view: NodeView, victims: list[Job]) -> NodeView:
    """A node as it is once these have let go. What they used of a device's memory is free then."""
    placements = [
        rank.placement
        for victim in victims
        if victim.attempt is not None
        for rank in victim.attempt.ranks
        if rank.exit is None and rank.placement.node == view.node.name
    ]
    if not placements:
        return view
    freed = {device.uuid for placement in placements for device in placement.devices}
    shares = dict(view.shares)
    for placement in placements:
        for uuid, share in shares_in(placement).items():
            left = shares.pop(uuid).less(share)
            if left.milli:
                shares[uuid] = left
    return replace(
        view,
        cpus=view.cpus + sum(each.cpus for each in placements),
        memory_bytes=view.memory_bytes + sum(each.memory_bytes for each in placements),
        shares=shares,
        devices=[
            replace(each, held_by=None, sample=None) if each.device.uuid in freed else each for each in view.devices
        ],
    )
