"""Why a job waits: one sentence, then node by node, by the functions that place."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..state.attempts import Attempt
from ..state.durable import Durable
from ..state.gpu_choice import fallen_back
from ..state.ids import JobId, NodeName
from ..state.jobs import (
    Deferred,
    Divided,
    Finished,
    Held,
    Job,
    Queued,
    Running,
    Starting,
    Stopping,
    items_alike,
    keyed_ranks,
)
from ..state.specs import EndWanted
from ..state.state import State
from ..state.units import NEVER, Instant
from .admission import minimum_memory
from .caps import Caps
from .fit import Miss, NodeView, begin_text, devices_that_fit
from .forecast import Bound, bound, estimates
from .gangs import Ranks, could_ever, fit_together
from .gap import waits_for
from .nearest import nearest_change
from .node_cache import NodeCache
from .order.place import jobs_ahead, may_go_ahead
from .order.queue import is_old, queue_order
from .owners import as_its_users
from .placement_pass import PlacementPass
from .promises import Promises, about_span
from .ranges import Range, helps
from .reservation import ends_if_placed
from .routing import why_at_once
from .sessions.exclusive import what_it_waits_for

AHEAD_SHOWN = 20
USER_CAP = "USER_CAP"
"""The reason of a job whose user holds as much as one user may."""
ARRAY_CAP = "ARRAY_CAP"
"""The reason of an item whose array runs as many as it may at a time."""
STORE_GAP = "STORE_GAP"
"""The reason of a job that waits since history was cut off."""
SHORT_BESIDE_GPUS = frozenset({"CPUS_IN_USE", "MEMORY_IN_USE"})
"""Reasons of a job that no GPU more would help."""
KEPT_FILES = "KEPT_FILES"
"""The reason of a job whose last attempt keeps files that are not stored yet."""
NEXT_PASS = "NEXT_PASS"
"""The reason of a job that fits and that the next pass will place."""
STARTING = "STARTING"
"""The reason of a job that has its node, and waits there if others of its slot are before it."""


class WaitReason(NamedTuple):
    """Why a job waits: a stable name, a clause for people, and the node that would take it soonest, if it is one."""

    name: str
    clause: str
    node: NodeName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVerdict:
    """What one node says to a job; `miss` None when it could take it."""

    node: NodeName
    miss: Miss | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The whole answer to "why does my job wait and when will it start"."""

    reason: str
    sentence: str
    nodes: tuple[NodeVerdict, ...] = ()
    ahead: tuple[JobId, ...] = ()
    ahead_count: int = 0
    estimated_start: Instant | None = None
    latest_start: Instant | None = None
    bound_sentence: str = ""
    nearest_change: str = ""
    estimate_sentence: str = ""
    likely: Range | None = None


def explain(state: State, job: Job, at: Instant, promises: Promises | None = None) -> Explanation:
    """Explain where a job is. For a waiting one, replay the pass up to it and ask every node.

    Of an array, why the first of its items that wait does; where none waits, what the others do. `promises` are the
    bounds that were told before: where one has grown, the sentence of the bound says why.
    """
    job = as_its_users(state.durable, job)
    match job.state:
        case Divided():
            return _explain_array(state, job, at, promises)
        case Finished(reason=reason, message=message):
            return Explanation(reason=reason, sentence=f"job {job.id} has ended: {message or reason}")
        case Held():
            return Explanation(
                reason="HELD", sentence=f"job {job.id} is held; release it with: gpuctl release {job.id}"
            )
        case Deferred():
            deferred = why_deferred(job)
            return Explanation(reason=deferred.name, sentence=f"job {job.id} waits because {deferred.clause}")
        case Starting(attempt=attempt):
            where = nodes_text([rank.placement.node for rank in attempt.ranks])
            how = "prepared" if attempt.is_gang and attempt.rendezvous is None else "started"
            far = _how_far(state, job, attempt)
            does = in_slot(state.durable, job) or f"is being {how} on {where}{far}{_without_gpus(job)}"
            return Explanation(reason=STARTING, sentence=f"job {job.id} {does}")
        case Running(attempt=attempt):
            where = nodes_text([rank.placement.node for rank in attempt.ranks])
            which = ", which has not" if not attempt.is_gang else ", of which not all have"
            lost = f"{which} been heard for {'its' if not attempt.is_gang else 'their'} lease"
            lost = lost if attempt.is_unreachable else ""
            return Explanation(reason="RUNNING", sentence=f"job {job.id} runs on {where}{lost}{_without_gpus(job)}")
        case Stopping(cause=cause):
            return Explanation(reason="STOPPING", sentence=f"job {job.id} is being stopped ({cause.value.lower()})")
        case Queued():
            return _explain_waiting(state, job, at, promises)


def why_in_slot(durable: Durable, job: Job) -> WaitReason | None:
    """Why a job that has its node does not run yet; None for one that waits for nothing there."""
    where = in_slot(durable, job)
    return None if job.attempt is None or not where else WaitReason(STARTING, f"it {where}", _node_of(job.attempt))


def in_slot(durable: Durable, job: Job) -> str:
    """What is said of a job in its node's backlog: whom it is behind, or that it is asked back; empty of all others."""
    if not isinstance(job.state, Starting) or job.state.attempt.slot is None:
        return ""
    attempt, slot = job.state.attempt, job.state.attempt.slot
    node = _node_of(attempt)
    if attempt.is_asked_back:
        return f"is asked back from node {node}, and waits in line again unless it has begun there"
    of_slot = ((key, durable.jobs[key.job].attempt) for key in durable.hold(node).slots.get(slot, ()))
    turns = sorted((other.placed_at, key) for key, other in of_slot if other is not None)
    ahead = [str(key.job) for at, key in turns if (at, key) < (attempt.placed_at, attempt.keys(job.id)[0])]
    if not ahead:
        return ""
    jobs = f"jobs {', '.join(ahead[:-1])} and {ahead[-1]}" if len(ahead) > 1 else f"job {ahead[0]}"
    return f"is the next on node {node} behind {jobs}"


def _how_far(state: State, job: Job, attempt: Attempt) -> str:
    """Which nodes are ready for a job that has not begun, and which still work on it; empty where nothing is known."""
    live, nodes = state.live, {key: rank.placement.node for key, rank in keyed_ranks(job, attempt)}
    ready = sum(key in live.ready for key in nodes)
    at_work = [node for key, node in nodes.items() if key in live.preparing or key in live.setting_up]
    are = "is" if ready == 1 else "are"
    parts = [f"{ready} of {len(nodes)} nodes {are} ready"] if attempt.is_gang and 0 < ready < len(nodes) else []
    parts += [f"{nodes_text(at_work)} {'prepares' if len(at_work) == 1 else 'prepare'} it"] if at_work else []
    return f"; {', '.join(parts)}" if parts else ""


def _node_of(attempt: Attempt) -> NodeName:
    return attempt.ranks[0].placement.node


def _without_gpus(job: Job, reason: str = "") -> str:
    """That a job fell back, and why; and of one that waits for GPUs which it prefers, when it will.

    `reason` is why it waits: where CPUs or memory are short, it does without GPUs only where it starts then.
    """
    if job.fell_back is not None:
        return f"; it does without the GPUs that it prefers, as {job.fell_back.message}"
    if isinstance(job.state, Queued) and job.falls_back_at is not None:
        where = " if it can start so" if reason in SHORT_BESIDE_GPUS else ""
        return f"; from {begin_text(job.falls_back_at)} on it does without GPUs{where}"
    return ""


def _explain_array(state: State, array: Job, at: Instant, promises: Promises | None) -> Explanation:
    item = next_item(state.durable, array.id)
    if item is not None and isinstance(item.state, Held):
        sentence = f"array {array.id} is held; release it with: gpuctl release {array.id}"
        return Explanation(reason="HELD", sentence=sentence)
    if item is not None:
        told = explain(state, item, at, promises)
        return replace(told, sentence=told.sentence.replace(f"job {item.id} ", f"array {array.id} ", 1))
    live = state.durable.arrays[array.id]
    running, active = live.counts.get(Running, 0), live.active
    does = f"{active:,} of its items {'is' if active == 1 else 'are'} active, and none waits"
    return Explanation(reason="RUNNING" if running else STARTING, sentence=f"array {array.id} goes on: {does}")


def next_item(durable: Durable, array: JobId) -> Job | None:
    """Of an array's items that wait the one that comes first; one that is held comes after all others."""
    live, alike = durable.arrays.get(array), durable.items_alike(array)
    waiting = [durable.jobs[item] for item in live.apart] if live is not None else []
    if alike is not None:
        waiting.append(next(alike.jobs()))
    rank = {Queued: 0, Deferred: 1, Held: 2}
    waiting = [job for job in waiting if type(job.state) in rank]
    return min(waiting, key=lambda job: (rank[type(job.state)], job.age_since, job.id), default=None)


def why_deferred(job: Job) -> WaitReason:
    """The reason and the clause for a job that is not eligible yet."""
    if job.unmet:
        ends = [f"{WANTED_WORDS[each.wanted]} job {each.job}" for each in job.unmet[:AHEAD_SHOWN]]
        more = len(job.unmet) - len(ends)
        return WaitReason("DEPENDENCY", f"it runs {', '.join(ends)}{f' and {more} more' if more else ''}")
    if job.awaits_kept:
        last = job.past[-1]
        where = nodes_text([rank.placement.node for rank in last.ranks])
        until = begin_text(job.begins_at)
        clause = f"what attempt {last.number} keeps is still to come from {where}; it waits for that until {until}"
        return WaitReason(KEPT_FILES, f"{clause} (to start it now: gpuctl release {job.id})")
    return WaitReason("BEGIN_TIME", f"its begin time, {begin_text(job.begins_at)}, has not come")


WANTED_WORDS = {
    EndWanted.OK: "after the success of",
    EndWanted.ANY: "after the end of",
    EndWanted.FAIL: "after the failure of",
}


def foretell(state: State, job: Job, at: Instant) -> Explanation:
    """What `explain` would say of a job that is not submitted, as a sentence about what would happen.

    Of an array, what would happen to its first item.
    """
    job = as_its_users(state.durable, job)
    if isinstance(job.state, Divided):
        job = items_alike(job)
    if isinstance(job.state, Held):
        return Explanation(reason="HELD", sentence="it would be held until it is released")
    if isinstance(job.state, Deferred):
        deferred = why_deferred(job)
        return Explanation(reason=deferred.name, sentence=f"it would wait because {deferred.clause}")
    if not state.durable.nodes:
        return Explanation(reason="NO_NODES", sentence="it would wait because no node has registered yet")
    trial = as_seen_by(state, job, at)
    over = over_a_cap(trial.caps, job)
    if over is not None:
        return Explanation(reason=over.name, sentence=f"it would wait because {over.clause}")
    verdicts = verdicts_of(state, trial, job, at)
    placed = trial.place(job)
    if placed is not None:
        where = nodes_text([each.node for each in placed])
        return Explanation(reason=NEXT_PASS, sentence=f"it would start now on {where}", nodes=verdicts)
    why = why_at_once(state, job, trial, at)
    if why is not None:
        told = foretell(state, replace(job, spec=fallen_back(job.spec)), at)
        return replace(told, sentence=f"{told.sentence}, without the GPUs that it prefers, as {why.message}")
    reason = main_reason(state, trial, job, verdicts, at)
    sentence = f"it would wait because {reason.clause}{_without_gpus(job, reason.name)}"
    return Explanation(reason=reason.name, sentence=sentence, nodes=verdicts)


def _explain_waiting(state: State, job: Job, at: Instant, promises: Promises | None) -> Explanation:
    ahead, ahead_count = jobs_ahead(state, job, AHEAD_SHOWN, at)
    if not state.durable.nodes:
        return Explanation(
            reason="NO_NODES",
            sentence=f"job {job.id} waits because no node has registered yet; start one with: gpuctl agent",
            ahead=tuple(ahead),
            ahead_count=ahead_count,
            bound_sentence="no bound: no node is known",
        )
    trial = as_seen_by(state, job, at)
    held = held_since_a_gap(trial, job)
    if held is not None:
        return Explanation(
            reason=held.name,
            sentence=f"job {job.id} waits because {held.clause}; to start it all the same: gpuctl release {job.id}",
            ahead=tuple(ahead),
            ahead_count=ahead_count,
            bound_sentence="no bound: it waits for what nodes tell",
        )
    views = trial.views
    verdicts = verdicts_of(state, trial, job, at)
    reason = main_reason(state, trial, job, verdicts, at)
    aged = ""
    if is_old(state, job, at):
        aged = f"; older than {about_span(state.limits.age_limit)}, it goes in front of band {job.band.name.lower()}"
    aged += _without_gpus(job, reason.name)
    of_group = _in_its_group(state, job)
    told = Explanation(
        reason=reason.name,
        sentence=f"job {job.id} waits because {reason.clause}{aged}{of_group}",
        nodes=verdicts,
        ahead=tuple(ahead),
        ahead_count=ahead_count,
    )
    over = over_a_cap(trial.caps, job)
    if over is not None:
        return replace(
            told,
            reason=over.name,
            sentence=f"job {job.id} waits because {over.clause}{aged}",
            bound_sentence=f"no bound: {over.clause}",
        )
    if reason.name == NEXT_PASS:
        return replace(told, estimated_start=at, latest_start=at)
    placed = len({hold.job for view in views.values() for hold in view.taken})
    latest = bound(state, job, views, may_go_ahead(state.durable, job) - placed, at)
    if promises is not None:
        latest = promises.keep(state, job, latest, views, at)
    estimate = estimates(state, at).of(job.id)
    is_bound_shown = helps(latest.at, estimate.likely, at)
    return replace(
        told,
        estimated_start=estimate.at,
        estimate_sentence=estimate.sentence,
        likely=estimate.likely,
        latest_start=latest.at if is_bound_shown else None,
        bound_sentence=latest.sentence if is_bound_shown else "",
        nearest_change=nearest_change(state, job, views, at),
    )


def _in_its_group(state: State, job: Job) -> str:
    """Of a replica of a program that shares GPUs, which of its group have them; empty for all others."""
    model = state.durable.models.get(job.spec.serves) if job.spec.serves else None
    waits_for = "" if model is None else what_it_waits_for(state.durable, model)
    return f"; in group {model.exclusive_group} it {waits_for}" if model is not None and waits_for else ""


def bounds_of(state: State, jobs: Collection[Job], at: Instant, promises: Promises) -> dict[JobId, Bound]:
    """The bounds of jobs that wait in line, in one walk down the order; each asks every node."""
    if not state.durable.nodes:
        return {}
    trial = next(trial for each, trial in walk(state, at, None) if each is None)
    placed = sum(len(view.taken) for view in trial.views.values())
    found: dict[JobId, Bound] = {}
    for job in (as_its_users(state.durable, each) for each in jobs):
        over = held_since_a_gap(trial, job) or over_a_cap(trial.caps, job)
        if over is not None:
            found[job.id] = Bound(at=None, sentence=f"no bound: {over.clause}")
        else:
            ahead = max(0, may_go_ahead(state.durable, job) - placed)
            found[job.id] = promises.keep(state, job, bound(state, job, trial.views, ahead, at), trial.views, at)
    return found


def held_since_a_gap(trial: PlacementPass, job: Job) -> WaitReason | None:
    """What a job waits for since history was cut off; None where it is tried."""
    gap = trial.gap
    if gap is None or not gap.holds(job):
        return None
    lost = "the store was put back and lacks what happened since it was copied"
    ends_on, untold = gap.still_ends_on(job), gap.untold(job)
    if ends_on is not None:
        return WaitReason(STORE_GAP, f"{lost}: node {ends_on} still ends what it ran of it", ends_on)
    until = gap.until(waits_for(gap.limits, job.spec))
    end = "" if until == NEVER else f"; its wait ends at {begin_text(until)} at the latest"
    have = "has" if len(untold) == 1 else "have"
    who = f"{nodes_text(untold)}, which {have} not told yet," if untold else "a node that joined meanwhile"
    return WaitReason(STORE_GAP, f"{lost}: {who} may run it{end}")


def over_a_cap(caps: Caps, job: Job) -> WaitReason | None:
    """The cap that keeps a job from being placed now, of its array, its user or its group; None without one."""
    over = caps.array_refusal(job)
    if over:
        return WaitReason(ARRAY_CAP, over)
    over = caps.refusal(job)
    if over:
        return WaitReason(USER_CAP, over)
    of_group = caps.of_groups.refusal(job) if job.group else None
    return None if of_group is None else WaitReason(of_group.reason, of_group.clause)


NO_NODES = WaitReason("NO_NODES", "no node has registered yet")


def as_seen_by(state: State, job: Job, at: Instant) -> PlacementPass:
    """Nodes and caps after every job ahead was tried, as the pass sees them when it comes to this job."""
    return next(trial for each, trial in walk(state, at, job) if each is None)


def walk(
    state: State, at: Instant, until: Job | None, known: NodeCache | None = None
) -> Iterator[tuple[Job | None, PlacementPass]]:
    """A pass without consequences: each job that it tries, with all as it is at its turn; at the end None.

    It ends before the job `until`.
    """
    known = NodeCache() if known is None else known
    candidates = known.brought_up_to(state, at)
    trial = PlacementPass(state, known.views, at, candidates=candidates)
    for job in trial.in_order(queue_order(state, at, trial.given_up, until), until):
        yield job, trial
        if trial.place(job) is None:
            trial.keep_for(job)
    yield None, trial


def verdicts_of(state: State, trial: PlacementPass, job: Job, at: Instant) -> tuple[NodeVerdict, ...]:
    """What each node says to a job: to the part of it that it could take soonest, where it needs several nodes."""
    minimum, ends_at = minimum_memory(state, job.spec.resources), ends_if_placed(job, at)
    return tuple(
        NodeVerdict(node=name, miss=_miss(view, trial.ranks_of(job), minimum, job.id, ends_at))
        for name, view in trial.views.items()
    )


def _miss(view: NodeView, ranks: Ranks, minimum: int, job: JobId, ends_at: Instant | None) -> Miss | None:
    miss: Miss | None = None
    for rank in dict.fromkeys(ranks):
        fitting = devices_that_fit(view, rank, minimum, job, ends_at)
        if not isinstance(fitting, Miss):
            return None
        miss = fitting
        if any(pins.node == view.node.name for pins in rank.pins):
            break
    return miss


def main_reason(
    state: State, trial: PlacementPass, job: Job, verdicts: tuple[NodeVerdict, ...], at: Instant
) -> WaitReason:
    """Why a job waits."""
    ranks, minimum = trial.ranks_of(job), minimum_memory(state, job.spec.resources)
    if len(ranks) > 1:
        if fit_together(trial.views.values(), ranks, minimum, job.id, ends_if_placed(job, at)):
            return IN_A_MOMENT
        is_never = not could_ever([view.node for view in trial.views.values()], ranks, minimum)
        return _reason_of_gang(verdicts, len(ranks), is_never=is_never)
    misses = [verdict.miss for verdict in verdicts]
    if any(miss is None for miss in misses):
        return IN_A_MOMENT
    if all(miss is not None and miss.is_lasting for miss in misses):
        return never_fits(verdicts)
    kept = trial.node_kept_for(job)
    here = next((each for each in verdicts if each.node == kept), None)
    return only_nearest(here or _nearest(verdicts), len(verdicts))


def never_fits(verdicts: tuple[NodeVerdict, ...]) -> WaitReason:
    clauses = "; ".join(map(_told, verdicts[:NEVER_TOLD]))
    return WaitReason("NEVER_FITS", f"no node that is known could ever hold it: {clauses}")


NEVER_TOLD = 3
"""Nodes of which it is told why they could never hold a job."""


def only_nearest(nearest: NodeVerdict, nodes: int) -> WaitReason:
    others = nodes - 1
    rest = f", and {others} other {'node takes' if others == 1 else 'nodes take'} it no sooner" if others else ""
    return WaitReason(_reason(nearest), f"{_told(nearest)}{rest}", nearest.node)


IN_A_MOMENT = WaitReason(NEXT_PASS, "the next pass has not come to it yet")


def _reason_of_gang(verdicts: tuple[NodeVerdict, ...], wanted: int, *, is_never: bool) -> WaitReason:
    missing = tuple(verdict for verdict in verdicts if verdict.miss is not None)
    free = len(verdicts) - len(missing)
    if is_never:
        clauses = "; ".join(map(_told, missing[:3]))
        which = f"of the {wanted} nodes that it needs" if missing else f"it needs {wanted} nodes"
        able = sum(1 for verdict in verdicts if verdict.miss is None or not verdict.miss.is_lasting)
        told = f"{able} {which} could{f' ({clauses})' if clauses else ''}"
        return WaitReason("NEVER_FITS", f"the nodes that are known could never hold it: {told}")
    nearest = f", and {_told(_nearest(missing))}" if missing else ""
    reason = _reason(_nearest(missing)) if missing else "DEVICES_IN_USE"
    if free >= wanted:
        return WaitReason(reason, f"{free} nodes are free, and not all of the {wanted} that it needs{nearest}")
    are = "is" if free == 1 else "are"
    return WaitReason(reason, f"{free or 'none'} of the {wanted} nodes that it needs {are} free{nearest}")


def _nearest(verdicts: tuple[NodeVerdict, ...]) -> NodeVerdict:
    return min((verdict for verdict in verdicts if verdict.miss), key=nearness)


def _told(verdict: NodeVerdict) -> str:
    return f"node {verdict.node} {verdict.miss.clause if verdict.miss is not None else 'could take it'}"


def nodes_text(names: list[NodeName]) -> str:
    """Nodes for people: node n1, or nodes n1, n2 and n3."""
    if len(names) == 1:
        return f"node {names[0]}"
    shown = names[:NODES_SHOWN]
    more = len(names) - len(shown)
    return f"nodes {', '.join(shown)} and {more} more" if more else f"nodes {', '.join(shown[:-1])} and {shown[-1]}"


NODES_SHOWN = 8


def _reason(verdict: NodeVerdict) -> str:
    return "" if verdict.miss is None else verdict.miss.reason


NEARNESS = (
    "KEPT_FOR_ANOTHER",
    "DEVICES_IN_USE",
    "CPUS_IN_USE",
    "MEMORY_IN_USE",
    "DEVICE_MEMORY_IN_USE",
    "DEVICE_BUSY",
    "SAMPLE_TOO_OLD",
    "NODE_CANNOT_START",
    "DISK_IN_USE",
    "DEVICE_LEFT_OUT",
    "NODE_LEFT_OUT",
    "NODE_CLEANING",
    "NODE_NOT_HEARD",
    "NODE_DRAINING",
    "DEVICE_UNHEALTHY",
    "NODE_LOST",
)
"""Reasons from the one that passes soonest by itself to the one that needs a person."""


def nearness_of(reason: str) -> tuple[int, str]:
    return (NEARNESS.index(reason) if reason in NEARNESS else len(NEARNESS), reason)


def nearness(verdict: NodeVerdict) -> tuple[int, str]:
    return nearness_of(_reason(verdict))
