"""The pass: try the waiting jobs in their order and place what fits."""

from dataclasses import replace

from gpufleet.jobs.runs import StopCause

from ..policy.admission import minimum_memory
from ..policy.backlog import Backlog
from ..policy.node_cache import NodeCache
from ..policy.order.queue import queue_order
from ..policy.placement_pass import PlacementPass
from ..policy.preemption import victims_for
from ..policy.routing import falling_back
from ..state.attempts import Attempt, Placement, Rank
from ..state.commands import Command
from ..state.gpu_choice import fallen_back
from ..state.ids import RankKey
from ..state.jobs import FellBack, Job, rank_keys
from ..state.records import AttemptPlaced, AttemptStopping, GapOutlived, JobFellBack, Record
from ..state.state import State
from ..state.units import Instant, after
from .backlog import asked_back_for
from .decision import Decision
from .gangs import launch_command
from .jobs import stop_commands

PLACEMENTS_PER_PASS = 256
"""A pass gives way to the loop after this many placements; the next one goes on."""


def schedule(state: State, at: Instant, known: NodeCache | None = None) -> Decision:
    """Place what fits now, in the order of the queue, around one reservation for the first that does not.

    Of what waits then, those fall back that prefer GPUs and have none to wait for, and are tried without.

    `known` is what the last pass on this state remembered; it makes the pass faster and decides nothing.
    """
    known = NodeCache() if known is None else known
    candidates = known.brought_up_to(state, at)
    trial = PlacementPass(state, known.views, at, candidates=candidates)
    backlog = Backlog(state, known.views, at)
    records: list[Record] = []
    commands: list[Command] = []
    for job in trial.in_order(queue_order(state, at, trial.given_up)):
        placements = trial.place(job)
        if placements is None:
            if trial.is_first_to_wait(job):
                found = None if backlog.has_ended else backlog.slot_for(job)
                if found is not None:
                    slot, placement = found
                    trial.wait_behind(job)
                    _give(state, job, (placement,), at, records, commands, slot)
                    if len(records) >= PLACEMENTS_PER_PASS:
                        break
                    continue
                if not backlog.has_ended:
                    backlog.has_ended = True
                    asked_back = asked_back_for(state, job, at)
                    records.extend(asked_back.records)
                    commands.extend(asked_back.commands)
                victims = _victims(state, trial, job, at)
                records.extend(_preempted(victim, job, at) for victim in victims)
                for victim in victims:
                    assert victim.attempt is not None
                    commands.extend(stop_commands(victim, victim.attempt, StopCause.PREEMPTED))
                trial.keep_for(
                    job, {rank.placement.node for each in victims if each.attempt for rank in each.attempt.ranks}
                )
            continue
        _give(state, job, placements, at, records, commands)
        if len(records) >= PLACEMENTS_PER_PASS:
            break
    else:
        for job, why in list(falling_back(state, trial, at)):
            records.append(JobFellBack(at=at, job=job.id, reason=why.reason, message=why.message))
            fell_back = FellBack(at=at, reason=why.reason, message=why.message)
            job = replace(job, spec=fallen_back(job.spec), fell_back=fell_back)
            placements = trial.place(job) if job.spec.asked not in trial.given_up else None
            if placements is not None:
                _give(state, job, placements, at, records, commands)
    known.last_pass = trial
    return Decision(records=tuple(records), commands=tuple(commands))


def _give(
    state: State,
    job: Job,
    placements: tuple[Placement, ...],
    at: Instant,
    records: list[Record],
    commands: list[Command],
    slot: RankKey | None = None,
) -> None:
    """Add what gives a job its places, and tells their nodes."""
    ranks = tuple(Rank(placement=placement) for placement in placements)
    forecast = state.live.waits.forecasts.get(job.id)
    attempt = Attempt(
        number=job.attempt_count + 1,
        placed_at=at,
        ranks=ranks,
        forecast=forecast,
        lineage=_lineage_for(state, placements),
        slot=slot,
        kept=job.kept,
    )
    gap = state.durable.gap
    if gap is not None and job.id < gap.jobs_below and (not job.past or job.past[-1].placed_at < gap.at):
        records.append(GapOutlived(at=at, job=job.id, cut_at=gap.at))
    records.append(AttemptPlaced(at=at, job=job.id, attempt=attempt))
    commands.extend(launch_command(state, job, attempt, key) for key in rank_keys(job, attempt))


def _lineage_for(state: State, placements: tuple[Placement, ...]) -> str:
    """What names the attempt beside its numbers: this start of the scheduler, where all of its nodes know of it."""
    return state.lineage if all(state.durable.nodes[each.node].knows_lineages for each in placements) else ""


def _victims(state: State, trial: PlacementPass, job: Job, at: Instant) -> list[Job]:
    """Whom to take off a node for the job with the reservation; nobody when it fits as soon by itself, or may do
    without GPUs: whoever is stopped would be stopped for nothing.
    """
    if job.id in state.durable.claims or job.spec.prefers_gpus:
        return []
    minimum = minimum_memory(state, job.spec.resources)
    victims = victims_for(state, trial.views, job, trial.ranks_of(job), minimum, at)
    if not victims:
        return []
    soonest = trial.soonest(job)
    freed_at = after(at, max(victim.spec.grace for victim in victims))
    fits_as_soon = soonest is not None and soonest.begins_at is not None and soonest.begins_at <= freed_at
    return [] if fits_as_soon else victims


def _preempted(victim: Job, claimant: Job, at: Instant) -> Record:
    reason = f"job {claimant.id} of band {claimant.band.name.lower()} needs its place"
    return AttemptStopping(at=at, job=victim.id, cause=StopCause.PREEMPTED, reason=reason, claimant=claimant.id)
