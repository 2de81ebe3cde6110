"""When time alone changes something: `wake_at` says when, `on_clock_advanced` says what.

Of a gang: it is not prepared, or not started, in time; its nodes are silent.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice, takewhile

from ..policy.capacity import capacity
from ..policy.fit import node_views
from ..policy.gap import GapHold, gap_hold
from ..policy.gap import deadlines as gap_deadlines
from ..policy.owners import as_its_users
from ..policy.placement_pass import PlacementPass
from ..policy.preemption import may_be_taken_at
from ..policy.routing import GPU_WAIT_OVER, gains_without_gpus
from ..state.attempts import Attempt, Rendezvous
from ..state.commands import KillAttempt
from ..state.events import ClockAdvanced, Event, NodeAnnounced, ReadingResumed, SchedulerStarted
from ..state.ids import NodeName, RankKey
from ..state.jobs import Deferred, Divided, Finished, Job, Starting, is_being_prepared, live_ranks, rank_keys
from ..state.live import SWEEP_SPAN, NodeLive, silent_from
from ..state.nodes import Node, Reachability
from ..state.records import (
    AttemptUnreachable,
    AttemptVoided,
    BeginReached,
    FallBackPostponed,
    ItemsFallBackPostponed,
    ItemsFellBack,
    ItemsFinished,
    JobFellBack,
    JobFinished,
    KeptWaitEnded,
    NodeLost,
    NodeRegistered,
    NodeReturned,
    NodesOpened,
    Record,
    RequestForgotten,
)
from ..state.specs import Asked, Outcome
from ..state.state import State
from ..state.units import MINUTE, SECOND, Instant, Span, after
from . import gangs
from .attempts import gang_without_nodes, without_its_node
from .decision import Decision, together
from .gaps import closed_if_over
from .live_ranks import given_up_at, jobs_on
from .results import overdue, result_deadlines
from .sessions.serving import renumbered
from .sessions.turns import on_time, session_deadlines
from .sessions.workers import serving_deadlines
from .story import span_text
from .warnings import of_time_limits

WAKES_AT_ONCE = 1_000
"""Waiting jobs whose time has come that are seen to at once; the rest follow at once, in a turn of their own."""

FALL_BACK_PAUSE, FALL_BACK_PAUSE_MAX = Span(10 * SECOND), Span(10 * MINUTE)
"""A job that would gain nothing without its GPUs is asked again after so long at least, and at most."""

REQUESTS_PER_SWEEP = 10_000
"""Remembered requests that are forgotten at once; the next sweep goes on."""


def wake_at(state: State) -> Instant | None:
    """The next instant at which time alone changes something; None when nothing waits for time.

    Hearing a node that is READY only moves its deadlines later, so that an answer stays a safe lower bound until a
    record changes, a launch is refused, or a node becomes READY again.
    """
    return Wakes().next(state, (), ())


class Wakes:
    """The same from turn to turn: of the nodes only those are asked again of which a turn said something.

    What is known of the others is a safe lower bound; all are asked again when time is said to have gone on.
    """

    def __init__(self) -> None:
        self._of_nodes: Instant | None = None
        self._is_known = False

    def next(
        self, state: State, events: Iterable[Event], records: Iterable[Record], reached: Iterable[NodeName] = ()
    ) -> Instant | None:
        """The next instant at which time may change something, behind a turn of these events and records.

        `reached` are nodes that are heard otherwise than before, whatever said so.
        """
        touched = dict.fromkeys(reached)
        touched.update((name, None) for event in events for name in _nodes_heard(event))
        touched.update((name, None) for record in records for name in _nodes_changed(record))
        if not self._is_known or ALL in touched:
            touched = dict.fromkeys(state.durable.nodes)
            self._of_nodes, self._is_known = None, True
        deadlines = (at for name in touched for at in _deadlines_of_node(state, name))
        earliest = min(deadlines, default=None)
        if earliest is not None:
            self._of_nodes = earliest if self._of_nodes is None else min(earliest, self._of_nodes)
        others = _deadlines_of_others(state)
        return min(others if self._of_nodes is None else chain(others, (self._of_nodes,)), default=None)


ALL = NodeName("")
"""In place of a node's name: whatever is known of any node may be over."""


def _nodes_heard(event: Event) -> tuple[NodeName, ...]:
    match event:
        case NodeAnnounced(name=name):
            return (name,)
        case ClockAdvanced() | SchedulerStarted() | ReadingResumed():
            return (ALL,)
        case _:
            node: NodeName | None = getattr(event, "node", None)
            return () if node is None else (node,)


def _nodes_changed(record: Record) -> tuple[NodeName, ...]:
    match record:
        case AttemptVoided(node=node, left_out=left_out):
            return (node, *left_out)
        case NodeRegistered(node=node):
            return (node.name,)
        case NodeLost(node=name) | NodeReturned(node=name):
            return (name,)
        case _:
            return ()


def _deadlines_of_node(state: State, name: NodeName) -> Iterator[Instant]:
    limits, node, live = state.limits, state.durable.nodes.get(name), state.live.nodes.get(name)
    if node is None or live is None:
        return
    if live.reach is Reachability.READY:
        yield silent_from(limits, live)
    if not node.is_lost:
        yield after(live.heard_at, limits.node_lease)
    else:
        yield from (given_up_at(state, live, job) for job in jobs_on(state, name))
    if live.left_out_until:
        yield live.left_out_until
    yield from live.devices_left_out.values()


def _deadlines_of_others(state: State) -> Iterator[Instant]:
    yield from _deadlines_of_gangs(state)
    if state.durable.lines.count:
        # Who becomes old enough to make room for a job that waits.
        victims = (may_be_taken_at(state, state.durable.jobs[job_id]) for job_id in state.durable.preemptible)
        yield from (since for since in victims if since is not None and since > state.live.clock_at)
    yield from _wakes_of_waiting_jobs(state)
    if state.live.time_limits.marks:
        yield state.live.time_limits.marks[0][0]
    yield from session_deadlines(state)
    yield from gap_deadlines(state)
    yield from serving_deadlines(state)
    yield from result_deadlines(state)
    oldest = next(iter(state.durable.requests.values()), None)
    if oldest is not None:
        # An old one may have to stay as long as its jobs, so that the next look is never sooner than the sweep.
        yield max(after(oldest.at, state.limits.request_retention), after(state.live.swept_at, SWEEP_SPAN))


def on_clock_advanced(state: State, event: ClockAdvanced) -> Decision:
    """Carry out every deadline that has come."""
    decisions = [
        _on_node(state, event.at, node, live)
        for node in state.durable.nodes.values()
        if (live := state.live.nodes.get(node.name)) is not None
    ]
    decisions.extend(_overdue_gangs(state, event.at))
    decisions.append(Decision(records=tuple(_of_waiting_jobs(state, event.at))))
    decisions.append(Decision(records=tuple(of_time_limits(state, event.at))))
    decisions.append(Decision(records=tuple(_forgotten_requests(state, event.at))))
    decisions.append(Decision(records=tuple(overdue(state, event.at))))
    decisions.append(on_time(state, event.at))
    decisions.append(closed_if_over(state, event.at))
    decisions.append(renumbered(state, event.at))
    return together(*decisions)


def _on_node(state: State, at: Instant, node: Node, live: NodeLive) -> Decision:
    if at < after(live.heard_at, state.limits.node_lease) and not node.is_lost:
        return Decision()
    lost = Decision() if node.is_lost else Decision(records=(NodeLost(at=at, node=node.name),))
    alone = (job for job in jobs_on(state, node.name) if job.id not in state.durable.gangs)
    return together(lost, *(_on_silent_job(state, at, node.name, live, job) for job in alone))


def _on_silent_job(state: State, at: Instant, node: NodeName, live: NodeLive, job: Job) -> Decision:
    attempt = job.attempt
    assert attempt is not None
    if at >= given_up_at(state, live, job):
        # Its stream may be only stalled; without one the kill is lost and the next inventory says it again.
        live_keys = state.durable.hold(node).ranks
        kills = tuple(KillAttempt(node=node, key=key) for key in rank_keys(job, attempt) if key in live_keys)
        given_up = without_its_node(state, at, job, attempt, node, f"node {node} was not heard")
        return replace(given_up, commands=given_up.commands or kills)
    if not attempt.is_unreachable:
        return Decision(records=(AttemptUnreachable(at=at, job=job.id, is_unreachable=True),))
    return Decision()


def _of_waiting_jobs(state: State, at: Instant) -> Iterator[Record]:
    """Begin times that have come, and queue time-outs and waits for GPUs that are over, the earliest first; a few at a
    time.
    """
    hold, jobs = gap_hold(state, at), state.durable.jobs
    due = takewhile(lambda wake: wake[0] <= at, state.durable.wakes)
    trial: PlacementPass | None = None
    gains: dict[Asked, bool] = {}
    for wakes_at, job_id in islice((wake for wake in due if _is_seen_to(jobs[wake[1]], hold)), WAKES_AT_ONCE):
        job = jobs[job_id]
        if job.awaits_kept:
            overdue_words = f"it did not come within {span_text(state.limits.kept_wait)}"
            yield KeptWaitEnded(at=at, job=job_id, reason=overdue_words)
        elif _begins(job):
            yield BeginReached(at=at, job=job_id)
        elif wakes_at == job.opens_at and wakes_at != job.times_out_at:
            yield NodesOpened(at=at, job=job_id)
        elif wakes_at == job.falls_back_at and wakes_at != job.times_out_at:
            why = GPU_WAIT_OVER
            trial = PlacementPass(state, node_views(state, at), at) if trial is None else trial
            asked = as_its_users(state.durable, job).spec.asked
            if asked not in gains:
                gains[asked] = gains_without_gpus(trial, job)
            if not gains[asked]:
                yield _postponed(at, job)
            elif isinstance(job.state, Divided):
                yield ItemsFellBack(at=at, array=job_id, reason=why.reason, message=why.message)
            else:
                yield JobFellBack(at=at, job=job_id, reason=why.reason, message=why.message)
        elif isinstance(job.state, Divided):
            alike = state.durable.items_alike(job_id)
            assert alike is not None
            finished = _no_capacity(state, at, next(alike.jobs()))
            yield ItemsFinished(at=at, array=job_id, spans=alike.spans, finished=finished)
        else:
            yield JobFinished(at=at, job=job_id, finished=_no_capacity(state, at, job))


def _postponed(at: Instant, job: Job) -> FallBackPostponed | ItemsFallBackPostponed:
    """Ask again after as long as it has waited, so that a long wait costs few records."""
    waited = at - (job.waits_since or job.age_since)
    until = after(at, min(max(waited, FALL_BACK_PAUSE), FALL_BACK_PAUSE_MAX))
    if isinstance(job.state, Divided):
        return ItemsFallBackPostponed(at=at, array=job.id, until=until)
    return FallBackPostponed(at=at, job=job.id, until=until)


def _no_capacity(state: State, at: Instant, job: Job) -> Finished:
    timeout = span_text(job.spec.queue_timeout or Span(0))
    found = capacity(state, job, at)
    why = "no pass has come to it yet" if found.is_available else found.message
    message = f"it waited for its whole queue time-out of {timeout}: {why}"
    return Finished(outcome=Outcome.FAILED, at=at, reason="NO_CAPACITY", message=message)


def _forgotten_requests(state: State, at: Instant) -> Iterator[Record]:
    """Requests that are old enough and whose jobs have all ended, the oldest first; a few at a time."""
    retention, requests = state.limits.request_retention, state.durable.requests
    old = takewhile(lambda each: after(each.at, retention) <= at, requests.values() if state.live.sweep_is_due else ())
    over = (
        RequestForgotten(at=at, user=each.user, request_id=each.request_id)
        for each in old
        if not any(job in state.durable.jobs for job in range(each.first_job, each.first_job + each.count))
    )
    return islice(over, REQUESTS_PER_SWEEP)


def _wakes_of_waiting_jobs(state: State) -> Iterator[Instant]:
    """When time changes something for jobs that wait. Of those whose nodes are to tell first it changes nothing."""
    wakes, hold = state.durable.wakes, gap_hold(state, state.live.clock_at)
    if hold is None:
        yield from (at for at, _ in wakes[:1])
        return
    overdue_count = bisect_right(wakes, state.live.clock_at, key=lambda wake: wake[0])
    yield from (at for at, _ in wakes[overdue_count : overdue_count + 1])
    overdue = (state.durable.jobs[job_id] for _, job_id in wakes[: min(overdue_count, WAKES_AT_ONCE)])
    if any(_is_seen_to(job, hold) for job in overdue):
        yield state.live.clock_at


def _is_seen_to(job: Job, hold: GapHold | None) -> bool:
    """Whether a time that has come counts for a waiting job: who may have run already neither times out nor falls back.

    Its nodes may tell yet that it runs; that it begins to be eligible changes nothing of that.
    """
    return hold is None or _begins(job) or not hold.holds(job)


def _begins(job: Job) -> bool:
    return isinstance(job.state, Deferred | Divided) and job.begins_at is not None


def _deadlines_of_gangs(state: State) -> Iterator[Instant]:
    """When gangs that are being prepared or started are late; their silent nodes have deadlines of their own."""
    for job_id in state.durable.gangs:
        job = state.durable.jobs[job_id]
        attempt = job.attempt
        assert attempt is not None
        if not isinstance(job.state, Starting):
            continue
        if attempt.rendezvous is None:
            yield gangs.prepared_by(state, job, attempt)
        elif gangs.unstarted(state, job, attempt):
            yield gangs.started_by(state, attempt.rendezvous)


def _overdue_gangs(state: State, at: Instant) -> list[Decision]:
    """What follows for each gang from the time that it is."""
    jobs = [state.durable.jobs[job_id] for job_id in sorted(state.durable.gangs)]
    return [_overdue(state, at, job, job.attempt) for job in jobs if job.attempt is not None]


def _overdue(state: State, at: Instant, job: Job, attempt: Attempt) -> Decision:
    if is_being_prepared(job):
        return _not_prepared(state, at, job, attempt) if at >= gangs.prepared_by(state, job, attempt) else Decision()
    gone = {
        node: f"node {node} was not heard"
        for node in _silent_nodes(state, at, attempt)
        if at >= given_up_at(state, state.live.nodes[node], job)
    }
    if gone:
        given_up = gang_without_nodes(state, at, job, attempt, gone)
        # Their streams may be only stalled; without one the kill is lost and the next inventory says it again.
        kills = tuple(
            KillAttempt(node=rank.placement.node, key=key)
            for key, rank in live_ranks(job, attempt)
            if rank.placement.node in gone
        )
        return together(given_up, Decision(commands=kills))
    decisions = [_unreachable(state, at, job, attempt)]
    if job.spec.is_requeueable and (lost := _lost_just_now(state, at, attempt)):
        decisions.append(gangs.stop_others(state, at, job, attempt, *lost, has_ended=False))
    elif attempt.rendezvous is not None and isinstance(job.state, Starting):
        decisions.append(_not_started(state, at, job, attempt, attempt.rendezvous))
    return together(*decisions)


def _not_prepared(state: State, at: Instant, job: Job, attempt: Attempt) -> Decision:
    """The job is kept for a while from nodes that say nothing of their ranks, or get no further."""
    keys = [key for key in rank_keys(job, attempt) if key not in state.live.ready]
    late = [key for key in keys if at >= gangs.late_at(state, attempt, key)]
    nodes = tuple(attempt.ranks[key.rank].placement.node for key in late)
    message = "; ".join(_why_late(state, attempt, key) for key in late)
    return gangs.handed_back(at, job, attempt, nodes[0], "PREPARE_TIMED_OUT", message, nodes)


def _why_late(state: State, attempt: Attempt, key: RankKey) -> str:
    told, limits = state.live.preparing.get(key), state.limits
    words = gangs.rank_words(attempt, key.rank)
    if told is not None and told.moved_at + limits.prepare_still_span <= told.told_at + limits.prepare_span:
        return f"{words} made no progress for {span_text(limits.prepare_still_span)}"
    return f"{words} was not ready, and its node said nothing of it for {span_text(limits.prepare_span)}"


def _not_started(state: State, at: Instant, job: Job, attempt: Attempt, rendezvous: Rendezvous) -> Decision:
    late = gangs.unstarted(state, job, attempt)
    if not late or at < gangs.started_by(state, rendezvous):
        return Decision()
    why = f"{gangs.rank_words(attempt, late[0])} did not start in time"
    return gangs.stop_others(state, at, job, attempt, late[0], why, has_ended=False)


def _silent_nodes(state: State, at: Instant, attempt: Attempt) -> Iterator[NodeName]:
    """Nodes of live ranks that are lost, or are to be lost now."""
    for rank in attempt.ranks:
        name = rank.placement.node
        live = state.live.nodes.get(name)
        if rank.exit is None and live is not None:
            is_over = at >= after(live.heard_at, state.limits.node_lease)
            if is_over or state.durable.nodes[name].is_lost:
                yield name


def _lost_just_now(state: State, at: Instant, attempt: Attempt) -> tuple[int, str] | None:
    """A rank whose node is lost at this moment while another one's is heard; where none is, the link is to blame."""
    lost = [node for node in _silent_nodes(state, at, attempt) if not state.durable.nodes[node].is_lost]
    is_heard = any(
        state.live.nodes[rank.placement.node].reach is Reachability.READY
        for rank in attempt.ranks
        if rank.exit is None and rank.placement.node in state.live.nodes
    )
    if not lost or not is_heard:
        return None
    number = next(number for number, rank in enumerate(attempt.ranks) if rank.placement.node == lost[0])
    return number, f"node {lost[0]} of rank {number} is lost"


def _unreachable(state: State, at: Instant, job: Job, attempt: Attempt) -> Decision:
    silent = any(True for _ in _silent_nodes(state, at, attempt))
    if not silent or attempt.is_unreachable:
        return Decision()
    return Decision(records=(AttemptUnreachable(at=at, job=job.id, is_unreachable=True),))
