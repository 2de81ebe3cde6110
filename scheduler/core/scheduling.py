"""The pass: try the waiting jobs in their order and place what fits."""

from functools import partial

from ..policy.admission import minimum_memory
from ..policy.caps import Caps
from ..policy.fit import node_views
from ..policy.order import queue_order
from ..policy.placement import place, take
from ..policy.reservation import Reservation, ends_if_placed, holds_on, keep, reserve
from ..state.commands import Command
from ..state.ids import RankKey, UserName
from ..state.jobs import Asked, Attempt, Job, Rank
from ..state.records import AttemptPlaced, Record
from ..state.state import State
from ..state.units import Instant
from .decision import Decision
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
    reservation: Reservation | None = None
    for job in queue_order(state.durable, at, hopeless):
        if caps.refusal(job):
            hopeless.add((job.user, job.spec.asked))
            continue
        resources = job.spec.resources
        minimum = minimum_memory(state, resources)
        ends_at = ends_if_placed(job, at)
        placement = place(views, resources, minimum, job.id, state.limits.node_order, ends_at)
        if placement is None:
            hopeless.add(job.spec.asked)
            if reservation is None:
                reservation = reserve(views, job, minimum, at, partial(holds_on, state.durable))
                if reservation is not None:
                    keep(views, reservation)
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


def _launch(state: State, job: Job, attempt: Attempt) -> Command:
    return launch_command(state, job, attempt, RankKey(job.id, attempt.number, 0))
