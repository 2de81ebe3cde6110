"""The pass: try the waiting jobs in their order and place what fits."""

from functools import partial

from ..policy.admission import minimum_memory
from ..policy.caps import Caps
from ..policy.fit import NodeView, node_views
from ..policy.order import queue_order
from ..policy.placement import Candidates, take
from ..policy.preemption import victims_for
from ..policy.reservation import ends_if_placed, holds_on, keep_claims, keep_for, reserve
from ..state.commands import Command
from ..state.ids import NodeName, RankKey, UserName
from ..state.jobs import Asked, Attempt, Job, Rank, StopCause
from ..state.records import AttemptPlaced, AttemptStopping, Record
from ..state.state import State
from ..state.units import Instant, after
from .decision import Decision
from .jobs import stop_commands
from .nodes import launch_command

PLACEMENTS_PER_PASS = 256
"""A pass gives way to the loop after this many placements; the next one goes on."""


def schedule(state: State, at: Instant) -> Decision:
    """Place what fits now, in the order of the queue, around one reservation for the first that does not."""
    views = node_views(state, at)
    records: list[Record] = []
    commands: list[Command] = []
    caps = Caps(state)
    hopeless: set[Asked | tuple[UserName, Asked]] = set()
    is_kept = False
    keep_claims(state, views, at)
    candidates = Candidates(views, state.limits.node_order)
    for job in queue_order(state.durable, at, hopeless):
        if caps.refusal(job):
            hopeless.add((job.user, job.spec.asked))
            continue
        minimum = minimum_memory(state, job.spec.resources)
        ends_at = ends_if_placed(job, at)
        placement = candidates.place(job, minimum, ends_at)
        if placement is None:
            hopeless.add(job.spec.asked)
            if not is_kept:
                victims = _victims(state, views, job, minimum, at)
                records.extend(_preempted(victim, job, at) for victim in victims)
                commands.extend(command for victim in victims for command in _stops(victim))
                nodes = _nodes_of(victims) or views.keys()
                is_kept = keep_for(state, {name: views[name] for name in nodes}, job, at)
            continue
        take(views[placement.node], placement, job.id, ends_at)
        caps.take(job)
        attempt = Attempt(number=job.attempt_count + 1, placed_at=at, ranks=(Rank(placement=placement),))
        records.append(AttemptPlaced(at=at, job=job.id, attempt=attempt))
        commands.append(_launch(state, job, attempt))
        if len(records) >= PLACEMENTS_PER_PASS:
            break
        if not any(view.cpus > 0 for view in views.values()):
            break
    return Decision(records=tuple(records), commands=tuple(commands))


def _victims(state: State, views: dict[NodeName, NodeView], job: Job, minimum: int, at: Instant) -> list[Job]:
    """Whom to take off a node for the job with the reservation; nobody when it fits as soon by itself."""
    if job.id in state.durable.claims:
        return []
    victims = victims_for(state, views, job, minimum, at)
    if not victims:
        return []
    soonest = reserve(views, job, minimum, at, partial(holds_on, state.durable))
    freed_at = after(at, max(victim.spec.grace for victim in victims))
    fits_as_soon = soonest is not None and soonest.begins_at is not None and soonest.begins_at <= freed_at
    return [] if fits_as_soon else victims


def _preempted(victim: Job, claimant: Job, at: Instant) -> Record:
    reason = f"job {claimant.id} of band {claimant.band.name.lower()} needs its place"
    return AttemptStopping(at=at, job=victim.id, cause=StopCause.PREEMPTED, reason=reason, claimant=claimant.id)


def _stops(victim: Job) -> tuple[Command, ...]:
    assert victim.attempt is not None
    return stop_commands(victim, victim.attempt, StopCause.PREEMPTED)


def _nodes_of(victims: list[Job]) -> frozenset[NodeName]:
    return frozenset(rank.placement.node for each in victims if each.attempt for rank in each.attempt.ranks)


def _launch(state: State, job: Job, attempt: Attempt) -> Command:
    return launch_command(state, job, attempt, RankKey(job.id, attempt.number, 0))
