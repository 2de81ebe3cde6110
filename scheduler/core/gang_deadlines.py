"""What time alone changes about a gang: it is not prepared, or not started, in time; its nodes are silent."""

from collections.abc import Iterator

from ..state.attempts import Attempt, Rendezvous
from ..state.commands import KillAttempt
from ..state.ids import NodeName
from ..state.jobs import Job, Starting, rank_keys
from ..state.nodes import Reach
from ..state.records import AttemptUnreachable
from ..state.state import State
from ..state.units import Instant, after
from . import gangs
from .attempts import gang_without_nodes
from .decision import Decision, together
from .live_ranks import given_up_at


def deadlines_of_gangs(state: State) -> Iterator[Instant]:
    """When gangs that are being prepared or started are late; their silent nodes have deadlines of their own."""
    for job_id in state.durable.gangs:
        job = state.durable.jobs[job_id]
        attempt = job.attempt
        assert attempt is not None
        if not isinstance(job.state, Starting):
            continue
        if attempt.rendezvous is None:
            yield gangs.prepared_by(state, attempt)
        elif gangs.unstarted(state, job, attempt):
            yield gangs.started_by(state, attempt.rendezvous)


def overdue_gangs(state: State, at: Instant) -> list[Decision]:
    """What follows for each gang from the time that it is."""
    jobs = [state.durable.jobs[job_id] for job_id in sorted(state.durable.gangs)]
    return [_overdue(state, at, job, job.attempt) for job in jobs if job.attempt is not None]


def _overdue(state: State, at: Instant, job: Job, attempt: Attempt) -> Decision:
    if gangs.is_being_prepared(job):
        return _not_prepared(state, at, job, attempt) if at >= gangs.prepared_by(state, attempt) else Decision()
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
            for key, rank in zip(rank_keys(job, attempt), attempt.ranks, strict=True)
            if rank.exit is None and rank.placement.node in gone
        )
        return together(given_up, Decision(commands=kills))
    decisions = [_unreachable(state, at, job, attempt)]
    if job.spec.is_requeueable and (lost := _lost_just_now(state, at, attempt)):
        decisions.append(gangs.stop_others(state, at, job, attempt, *lost, has_ended=False))
    elif attempt.rendezvous is not None and isinstance(job.state, Starting):
        decisions.append(_not_started(state, at, job, attempt, attempt.rendezvous))
    return together(*decisions)


def _not_prepared(state: State, at: Instant, job: Job, attempt: Attempt) -> Decision:
    """The nodes that did not say that they are ready are left out for a moment."""
    keys = rank_keys(job, attempt)
    late = tuple(attempt.ranks[key.rank].placement.node for key in keys if key not in state.live.ready)
    message = f"not ready in time: {', '.join(late)}"
    return gangs.handed_back(at, job, attempt, late[0], "PREPARE_TIMED_OUT", message, late)


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
        state.live.nodes[rank.placement.node].reach is Reach.READY
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
