"""Whether a request could start now: what is free, what is missing, and when it may be free, in one line.

The same line tells a person who asks before submitting, and a job that waited for its whole queue time-out.
"""

from dataclasses import dataclass, replace

from ..state.gpu_choice import fallen_back
from ..state.jobs import Deferred, Divided, Job, items_alike
from ..state.shares import share_text
from ..state.specs import Resources
from ..state.state import State
from ..state.units import Instant
from .admission import minimum_memory
from .explain import NEXT_PASS, as_seen_by, held_since_a_gap, nodes_text, over_a_cap, why_deferred
from .fit import Miss, begin_text, could_ever_hold, devices_that_fit, memory_text
from .forecast import bound
from .order.place import may_go_ahead
from .owners import as_its_users
from .page_reasons import PassReasons
from .placement_pass import PlacementPass
from .reservation import ends_if_placed
from .routing import why_at_once

NODES_TOLD = 3
"""Nodes whose free GPUs are counted by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Whether a job would start now, a stable reason where not, one line for people, and the latest start."""

    is_available: bool
    message: str
    reason: str = ""
    latest_start: Instant | None = None


def capacity(state: State, job: Job, at: Instant) -> Capacity:
    """What there is for a job that waits in line, or for one that is not submitted, at its place in the order.

    Of an array, for one of its items.
    """
    job = as_its_users(state.durable, job)
    if isinstance(job.state, Divided):
        job = items_alike(job)
    if isinstance(job.state, Deferred):
        deferred = why_deferred(job)
        return Capacity(is_available=False, reason=deferred.name, message=deferred.clause)
    if not state.durable.nodes:
        return Capacity(is_available=False, reason="NO_NODES", message="no node has registered yet")
    trial = as_seen_by(state, job, at)
    reason, clause, _ = PassReasons(trial).of(job, trial.caps)
    if held_since_a_gap(trial, job) is not None or over_a_cap(trial.caps, job) is not None:
        return Capacity(is_available=False, reason=reason, message=clause)
    counted = _free_now(state, trial, job, at)
    if reason == NEXT_PASS:
        # Asked of a job that falls back, the walk has met it as it is in line, and may have placed it.
        is_placed = job.id in trial.placed or trial.place(job) is not None
        assert is_placed, f"job {job.id} fits and is not placed"
        nodes = (name for name, view in trial.views.items() if any(hold.job == job.id for hold in view.taken))
        where = nodes_text(list(nodes))
        asked = asked_text(state, job.spec.resources)
        return Capacity(is_available=True, latest_start=at, message=f"{asked} would start now on {where}")
    why = why_at_once(state, job, trial, at)
    if why is not None:
        told = capacity(state, replace(job, spec=fallen_back(job.spec)), at)
        return replace(told, message=f"{told.message}; without GPUs, as {why.message}")
    went_ahead = len({hold.job for view in trial.views.values() for hold in view.taken})
    latest = bound(state, job, trial.views, max(0, may_go_ahead(state.durable, job) - went_ahead), at)
    when = f"free by {begin_text(latest.at)} at the latest" if latest.at is not None else latest.sentence
    message = "; ".join(filter(None, (counted, clause, when)))
    return Capacity(is_available=False, reason=reason, message=message, latest_start=latest.at)


def asked_text(state: State, resources: Resources) -> str:
    """What is asked for, for people: 4 GPUs with 10 GB each, or 2 CPUs."""
    if not resources.gpus:
        return f"{resources.cpus} CPU{'' if resources.cpus == 1 else 's'}"
    gpus = f"{resources.gpus} GPU{'' if resources.gpus == 1 else 's'}"
    if resources.share_milli:
        gpus = f"{share_text(resources.share_milli)} of {gpus}"
    minimum = minimum_memory(state, resources)
    each = " each" if resources.gpus > 1 else ""
    return f"{gpus} with {memory_text(minimum)}{each}" if minimum else gpus


def _free_now(state: State, trial: PlacementPass, job: Job, at: Instant) -> str:
    """How many of the GPUs that it needs are free, where, and how many are missing; empty without GPUs."""
    resources, ends_at = job.spec.resources, ends_if_placed(job, at)
    if not resources.gpus:
        return ""
    minimum, one = minimum_memory(state, resources), replace(resources, gpus=1, pins=(), node_count=0)
    counts = []
    is_together = len(trial.ranks_of(job)) == 1
    for name, view in trial.views.items():
        if is_together and could_ever_hold(view.node, resources, minimum) is not None:
            continue
        fitting = devices_that_fit(view, one, minimum, job.id, ends_at)
        if not isinstance(fitting, Miss):
            pinned = [each for pin in resources.pins if pin.node == name for each in pin.indices]
            count = sum(1 for each in fitting if not resources.pins or each.device.index in pinned)
            counts += [(count, name)] if count else []
    counts.sort(key=lambda each: (-each[0], each[1]))
    free = sum(count for count, _ in counts)
    usable = counts[0][0] if counts and is_together else free
    missing = max(0, resources.gpus - usable)
    named = ", ".join(f"node {name}: {count}" for count, name in counts[:NODES_TOLD])
    more = f", {len(counts) - NODES_TOLD} more nodes" if len(counts) > NODES_TOLD else ""
    on_one = " on one node" if free > usable else ""
    told = f"free now: {usable} of {asked_text(state, resources)}{on_one}" + (f" ({named}{more})" if counts else "")
    return f"{told}, {missing} missing" if missing else told
