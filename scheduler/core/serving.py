"""The workers of a model: how many there are, which one goes, and what follows when one ends by itself.

A worker is a job of kind SERVICE, placed by the pass like any other. `see_to_workers` says which jobs there are to be,
once a turn of the loop for each model that something happened to. What the end of one means: worker_ends.py. Rules:
SESSIONS.md 3; the numbers: policy/scaling.py and policy/serving.py.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ..policy.admission import refusal
from ..policy.scaling import Load, Scale, gives_up_a_worker, may_shrink_at, workers_wanted
from ..policy.serving import may_start_at, numbers_of
from ..state.attempts import StopCause
from ..state.commands import Command
from ..state.ids import JobId, ModelName
from ..state.jobs import Deferred, Finished, Held, Job, Queued, Running, Starting, Stopping
from ..state.records import AttemptStopping, JobFinished, JobQueued, Record, WorkerDrained
from ..state.serving import Serving, WorkersSeenTo
from ..state.session_commands import DrainWorker, SessionCommand
from ..state.session_events import ServeRequested, WorkerState
from ..state.session_records import ModelServed
from ..state.sessions import Model
from ..state.specs import Outcome
from ..state.state import State
from ..state.turns import WorkerLive
from ..state.units import SECOND, Instant, Span, after
from .decision import NOTHING, Decision, together
from .jobs import stop_commands

TAKEN_AFTER = Span(5 * SECOND)
"""A model without any worker, for which people wait, takes a device of another model after its own has waited so."""

HOPE_SPAN = Span(1 * SECOND)
"""A worker's job that has waited for less may yet find a device at once: its seats count as starting."""

DRAIN_SPAN_MAX = Span(180 * SECOND)
"""A worker that was told to end after its last turn, and lives for longer, is stopped by the grace rule."""


# --- serving


def on_serve(state: State, event: ServeRequested) -> Decision:
    """Serve a model, or change it. The same again changes nothing, unless it has failed: then it is tried anew.

    Numbers and how many workers there are to be hold at once; what a worker is started with, for new workers only.
    """
    wanted, known = event.model, state.durable.models.get(event.model.name)
    if known is not None and event.keeps_workers:
        kept = replace(known, limits=replace(known.limits, **_named(wanted)))
        wanted = replace(kept, chosen=tuple(dict.fromkeys((*known.chosen, *wanted.chosen))))
    elif wanted.worker is not None:
        why = refusal(state, wanted.worker.asked, "model.worker")
        if why is not None:
            return Decision(reply=why)
    is_alike = known is not None and known.worker == wanted.worker
    wanted = replace(
        wanted,
        limits=numbers_of(state.limits, wanted),
        has_been_ready=known is not None and known.has_been_ready and is_alike,
        deaths=known.deaths if known is not None and known.failure is None else (),
        failure=None,
    )
    if event.keeps_workers and known is not None:
        wanted = replace(wanted, failure=known.failure)
    return NOTHING if wanted == known else Decision(records=(ModelServed(at=event.at, model=wanted),))


def _named(model: Model) -> dict[str, Span]:
    return {name: getattr(model.limits, name) for name in model.chosen}


def renumbered(state: State, at: Instant) -> Decision:
    """Models whose numbers are others by the settings of now."""
    changed = (
        replace(model, limits=numbers)
        for model in state.durable.models.values()
        if (numbers := numbers_of(state.limits, model)) != model.limits
    )
    return Decision(records=tuple(ModelServed(at=at, model=model) for model in changed))


def end_of_workers(state: State, at: Instant, model: ModelName, message: str) -> Decision:
    """Every worker of a model is ended."""
    jobs = [state.durable.jobs[job_id] for job_id in state.durable.services.get(model, ())]
    return together(*(_end_job(job, at, message) for job in jobs))


# --- how many there are


def serving_deadlines(state: State) -> Iterator[Instant]:
    """When time alone changes something for the workers of a model."""
    for serving in state.live.turns.serving.values():
        if serving.look_at is not None:
            yield serving.look_at


def models_due(state: State, at: Instant) -> Iterator[ModelName]:
    """The models whose workers are to be seen to because of the time."""
    for model, serving in state.live.turns.serving.items():
        if serving.look_at is not None and serving.look_at <= at:
            yield model


def see_to_workers(state: State, models: Iterable[ModelName], at: Instant) -> Decision:
    """Start the workers that are missing, take down those that are too many."""
    decisions: list[Decision] = []
    next_job = state.durable.counters.next_job
    for name in models:
        model = state.durable.models.get(name)
        if model is not None and model.worker is not None:
            workers = _Workers(state, model, at, next_job)
            decisions.append(workers.seen_to())
            next_job = workers.next_job
    return together(*decisions) if decisions else NOTHING


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
        if worker.state is WorkerState.LOADING:
            seats += worker.seats or (0 if worker.job is None else usual)
    jobs = [state.durable.jobs[job_id] for job_id in state.durable.services.get(model.name, ())]
    starting = [job for job in jobs if job.id not in connected and not _is_leaving(job) and _may_start(job, at)]
    return seats + usual * (len(starting) + sum(1 for job in changes.queued if job.spec.serves == model.name))


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
    jobs = [job for job in jobs if not _is_leaving(job)]
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
    if any(isinstance(job.state, Queued) for job in jobs):
        return "a worker waits for a device"
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


class _Workers:
    """One model's workers as they are seen to."""

    def __init__(self, state: State, model: Model, at: Instant, next_job: int) -> None:
        self.state = state
        self.model = model
        self.at = at
        self.next_job = next_job
        turns = state.live.turns
        self.known = turns.serving.get(model.name, Serving())
        self.live = sorted(turns.workers_of(model.name), key=lambda worker: worker.id)
        self.of_job = {worker.job: worker for worker in self.live if worker.job is not None}
        jobs = [state.durable.jobs[job_id] for job_id in sorted(state.durable.services.get(model.name, ()))]
        self.leaving = [job for job in jobs if _is_leaving(job)]
        self.staying = [job for job in jobs if not _is_leaving(job)]
        said = [worker.seats for worker in self.of_job.values() if worker.seats]
        self.seats = max(said, default=self.known.seats)
        self.wakes: list[Instant] = []

    def seen_to(self) -> Decision:
        """What follows for this model."""
        want = self._wanted()
        fewer_since, shrunk_at = self.known.fewer_since, self.known.shrunk_at
        decisions: list[Decision] = [self._overdue()]
        if self.model.failure is not None:
            decisions.extend(_end_job(job, self.at, "its model has failed") for job in self.staying if _waits(job))
        elif len(self.staying) < want:
            decisions.append(self._started(want - len(self.staying)))
        waiting = [job for job in reversed(self.staying) if _waits(job)][: max(0, len(self.staying) - want)]
        if self.model.failure is None:
            decisions.extend(_end_job(job, self.at, "nobody waits for it any more") for job in waiting)
        active = [job for job in self.staying if not _waits(job)]
        most, extra = len(active) - self.model.max_workers, len(active) - want
        if most > 0:
            chosen = sorted(active, key=self._sessions_on)[:most]
            decisions.extend(self._taken_down(job, f"model {self.model.name} has fewer workers now") for job in chosen)
        elif extra <= 0:
            fewer_since = None
        else:
            fewer_since = self.at if fewer_since is None else fewer_since
            idle = [job for job in active if not self._sessions_on(job)]
            due = may_shrink_at(fewer_since, shrunk_at)
            if idle and due <= self.at:
                decisions.append(self._taken_down(self._least(idle), "it was not needed for a minute"))
                shrunk_at = self.at
                if extra > 1:
                    self.wakes.append(may_shrink_at(fewer_since, shrunk_at))
            elif idle:
                self.wakes.append(due)
        decisions.append(self._taken_from_another())
        fresh = (after(job.waits_since or job.age_since, HOPE_SPAN) for job in self.staying if _waits(job))
        self.wakes.extend(fresh)
        look_at = min((wake for wake in self.wakes if wake > self.at), default=None)
        serving = Serving(seats=self.seats, fewer_since=fewer_since, shrunk_at=shrunk_at, look_at=look_at)
        if serving != self.known:
            decisions.append(Decision(notes=(WorkersSeenTo(model=self.model.name, serving=serving),)))
        return together(*decisions)

    def _people(self) -> tuple[int, int]:
        """Who has a turn on a worker that stays, and who waits."""
        sessions, missing = self.state.durable.sessions, self.state.live.turns.missing
        turns = sum(len(sessions.seated.get(each.id, ())) for each in self.live if self._stays(each))
        for worker in missing:
            turns += sum(1 for session in sessions.on_worker(worker) if session.model == self.model.name)
        return turns, sessions.line_length(self.model.name)

    def _stays(self, worker: WorkerLive) -> bool:
        is_going = worker.state in (WorkerState.DRAINING, WorkerState.FAILED)
        return not is_going and worker.job not in {job.id for job in self.leaving}

    def _wanted(self) -> int:
        turns, waiting = self._people()
        by_hand = sum(each.seats for each in self.live if each.job is None and self._stays(each))
        people = max(0, turns + waiting - by_hand)
        # Until one has said how many seats a worker has, one is enough to find out.
        counted, seats = (people, self.seats) if self.seats else (min(people, 1), 1)
        scale = Scale(min_workers=self.model.min_workers, max_workers=self.model.max_workers, seats=seats)
        return workers_wanted(scale, counted, 0)

    def _sessions_on(self, job: Job) -> int:
        worker = self.of_job.get(job.id)
        return 0 if worker is None else len(self.state.durable.sessions.seated.get(worker.id, ()))

    def _least(self, jobs: list[Job]) -> Job:
        """The one that is missed least: one that is not ready yet, else the youngest."""

        def is_ready(job: Job) -> bool:
            worker = self.of_job.get(job.id)
            return worker is not None and worker.state is WorkerState.READY

        return min(jobs, key=lambda job: (is_ready(job), -job.id))

    def _started(self, count: int) -> Decision:
        assert self.model.worker is not None
        begins_at = may_start_at(self.model.deaths, self.at)
        records: list[Record] = []
        for _ in range(count):
            if len(self.state.durable.jobs) + len(records) >= self.state.limits.queued_jobs:
                break
            job = Job(
                id=JobId(self.next_job),
                user=self.model.owner,
                spec=self.model.worker,
                band=self.model.band,
                submitted_at=self.at,
                state=Queued() if begins_at is None else Deferred(),
                begins_at=begins_at,
            )
            self.next_job += 1
            records.append(JobQueued(at=self.at, job=job, count=1))
        # What is queued now is looked at again when it may have found no device.
        self.wakes.extend((after(self.at, HOPE_SPAN), after(self.at, TAKEN_AFTER)))
        return Decision(records=tuple(records))

    def _taken_down(self, job: Job, why: str) -> Decision:
        """A worker that is ready ends after its last turn; any other one is stopped."""
        worker = self.of_job.get(job.id)
        if worker is None or worker.state is not WorkerState.READY or not isinstance(job.state, Running):
            return _end_job(job, self.at, why)
        self.wakes.append(after(self.at, DRAIN_SPAN_MAX))
        commands: tuple[SessionCommand, ...] = (DrainWorker(worker=worker.id),)
        return Decision(records=(WorkerDrained(at=self.at, job=job.id, reason=why),), session_commands=commands)

    def _overdue(self) -> Decision:
        """Stop those that were to end long ago."""
        decisions: list[Decision] = []
        for job in self.leaving:
            if job.drained_at is not None and isinstance(job.state, Starting | Running):
                until = after(job.drained_at, DRAIN_SPAN_MAX)
                if until <= self.at:
                    decisions.append(_end_job(job, self.at, "it did not end by itself"))
                else:
                    self.wakes.append(until)
        return together(*decisions)

    def _taken_from_another(self) -> Decision:
        """People wait, no worker of theirs is there or on its way, and no device: another model gives one up."""
        waiting = [job for job in self.staying if isinstance(job.state, Queued)]
        is_alone = len(waiting) == len(self.staying) and not self.live
        if not waiting or not is_alone or not self.state.durable.sessions.line_length(self.model.name):
            return NOTHING
        since = after(waiting[0].waits_since or waiting[0].age_since, TAKEN_AFTER)
        if since > self.at:
            self.wakes.append(since)
            return NOTHING
        others = {
            name: _Workers(self.state, model, self.at, self.next_job)
            for name, model in self.state.durable.models.items()
            if name != self.model.name and model.worker is not None
        }
        if any(other.leaving for other in others.values()):
            return NOTHING  # one is going already
        asked = waiting[0].spec.resources
        loads: dict[str, Load] = {}
        for name, other in others.items():
            assert other.model.worker is not None
            if other.model.worker.resources.gpu_milli >= asked.gpu_milli:
                turns, line = other._people()
                active = sum(1 for job in other.staying if not _waits(job))
                loads[name] = Load(turns=turns, waiting=line, workers=active, min_workers=other.model.min_workers)
        chosen = gives_up_a_worker(loads)
        if chosen is None:
            return NOTHING
        giver = others[ModelName(chosen)]
        job = min((job for job in giver.staying if not _waits(job)), key=lambda job: (giver._sessions_on(job), -job.id))
        return giver._taken_down(job, f"people wait for model {self.model.name}, which has no worker")


def _is_leaving(job: Job) -> bool:
    is_stopped = isinstance(job.state, Stopping) and job.state.cause is StopCause.CANCELLED
    return job.drained_at is not None or is_stopped


def _waits(job: Job) -> bool:
    return isinstance(job.state, Queued | Deferred | Held)


def _end_job(job: Job, at: Instant, why: str) -> Decision:
    """End a worker's job: at once while it waits, else by the grace rule."""
    match job.state:
        case Queued() | Deferred() | Held():
            finished = Finished(outcome=Outcome.CANCELLED, at=at, reason="CANCELLED", message=f"cancelled: {why}")
            return Decision(records=(JobFinished(at=at, job=job.id, finished=finished),))
        case Starting(attempt=attempt) | Running(attempt=attempt) | Stopping(attempt=attempt):
            if isinstance(job.state, Stopping) and job.state.cause is StopCause.CANCELLED:
                return NOTHING
            stopping = AttemptStopping(at=at, job=job.id, cause=StopCause.CANCELLED, reason=why)
            commands: tuple[Command, ...] = stop_commands(job, attempt, StopCause.CANCELLED)
            return Decision(records=(stopping,), commands=commands)
        case _:
            return NOTHING
