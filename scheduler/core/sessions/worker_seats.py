"""What the workers of a model mean for who waits: seats on their way, why none comes, and who is called to none.

A pass over turns asks this after `workers.py` said what changes for workers, and before that is true.
"""

from dataclasses import dataclass

from ...policy.sessions.exclusive import what_it_waits_for
from ...policy.sessions.room import where_it_waits
from ...policy.sessions.serving import is_leaving
from ...state.ids import JobId
from ...state.jobs import Deferred, Job, Queued, Running, Starting, Stopping
from ...state.records import AttemptStopping, JobQueued, WorkerDrained
from ...state.sessions.events import WorkerState
from ...state.sessions.serving import Serving
from ...state.sessions.session import Model
from ...state.sessions.turns import WorkerLive
from ...state.state import State
from ...state.units import SECOND, Instant, Span, after
from ..decision import Decision

HOPE_SPAN = Span(1 * SECOND)
"""A worker's job that has waited for less may yet find a device at once: its seats count as starting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerChanges:
    """What is about to change for workers, before it is true: which jobs are queued, and which are to go."""

    queued: tuple[Job, ...] = ()
    going: frozenset[JobId] = frozenset()


def changes_of(decision: Decision) -> WorkerChanges:
    """What a decision of see_to_workers changes."""
    return WorkerChanges(
        queued=tuple(record.job for record in decision.records if isinstance(record, JobQueued)),
        going=frozenset(
            record.job for record in decision.records if isinstance(record, WorkerDrained | AttemptStopping)
        ),
    )


def starting_seats(state: State, model: Model, at: Instant, changes: WorkerChanges) -> int:
    """Seats of a model that are on their way: of workers that load, of jobs that start, of jobs queued just now.

    As long as it may be that those find a device at once, nobody's turn is limited for who will sit there.
    """
    serving = state.live.turns.serving.get(model.name, Serving())
    usual = serving.seats or 1
    connected: set[JobId] = set()
    seats = 0
    for worker in state.live.turns.workers_of(model.name):
        if worker.job is not None:
            connected.add(worker.job)
        if worker.state is WorkerState.LOADING and not _is_additional(state, worker.job):
            seats += worker.seats or (0 if worker.job is None else usual)
    jobs = [state.durable.jobs[job_id] for job_id in state.durable.services.get(model.name, ())]
    staying = {job.id for job in jobs if not is_leaving(job)}
    # A successor brings no seats beyond those of its predecessor, which goes then.
    coming = [job for job in jobs if job.id in staying - connected and job.replaces not in staying]
    starting = [job for job in coming if _may_start(job, at)]
    queued = [job for job in changes.queued if job.spec.serves == model.name and job.replaces not in staying]
    return seats + usual * (len(starting) + len(queued))


def _is_additional(state: State, job_id: JobId | None) -> bool:
    """Whether a worker is to replace one that is still there."""
    job = None if job_id is None else state.durable.jobs.get(job_id)
    predecessor = None if job is None or job.replaces is None else state.durable.jobs.get(job.replaces)
    return predecessor is not None and not is_leaving(predecessor)


def _may_start(job: Job, at: Instant) -> bool:
    match job.state:
        case Starting() | Running():
            return True
        case Queued():
            return at < after(job.waits_since or job.age_since, HOPE_SPAN)
        case _:
            return False


def why_no_bound(state: State, model: Model, at: Instant, changes: WorkerChanges) -> str:
    """Why nobody can say when a seat of a model will be free, in a clause for people."""
    if model.failure is not None:
        return f"the model has failed: {model.failure.message}"
    workers = list(state.live.turns.workers_of(model.name))
    jobs = [state.durable.jobs[job_id] for job_id in state.durable.services.get(model.name, ())]
    jobs = [job for job in jobs if not is_leaving(job)]
    words = (state.live.turns.last_words.get(job.id) for job in jobs)
    if said := next(filter(None, words), ""):
        return f"a worker failed: {said}"
    if any(worker.state is WorkerState.LOADING for worker in workers):
        is_first = not any(worker.state is WorkerState.READY for worker in workers)
        return f"{'the first' if is_first else 'another'} worker is still loading"
    connected = {worker.job for worker in workers}
    if any(_may_start(job, at) for job in jobs if job.id not in connected):
        return "a worker is being started"
    if any(job.spec.serves == model.name for job in changes.queued):
        return "a worker is being started"
    queued = next((job for job in jobs if isinstance(job.state, Queued)), None)
    if queued is not None:
        of_group = what_it_waits_for(state.durable, model)
        return f"a replica {of_group}" if of_group else f"a worker waits {where_it_waits(state, queued, at)}"
    if any(isinstance(job.state, Deferred) for job in jobs):
        return "a worker ended and is started again in a moment"
    return "no worker is ready"


def takes_nobody(state: State, worker: WorkerLive, changes: WorkerChanges) -> bool:
    """Whether a worker is to go, so that nobody is called to it, whatever it says of itself."""
    job = None if worker.job is None else state.durable.jobs.get(worker.job)
    return is_drained(state, worker, changes) or (job is not None and isinstance(job.state, Stopping))


def is_drained(state: State, worker: WorkerLive, changes: WorkerChanges) -> bool:
    """Whether a worker ends after its last turn: by itself, or because it was told to."""
    job = None if worker.job is None else state.durable.jobs.get(worker.job)
    is_told = worker.job in changes.going or (job is not None and job.drained_at is not None)
    return is_told or worker.state is WorkerState.DRAINING
