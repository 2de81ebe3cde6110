"""The workers of a model: how many there are, which one goes, and what follows when one ends by itself.

A worker is a job of kind SERVICE, placed by the pass like any other. `see_to_workers` says which jobs there are to be,
once a turn of the loop for each model that something happened to. What the end of one means: worker_ends.py. Rules:
docs/rules/sessions.md 3.5 to 3.7; the numbers: policy/sessions/scaling.py and policy/sessions/serving.py.
"""

from collections.abc import Iterable, Iterator

from gpufleet.jobs.runs import StopCause

from ...policy.sessions.exclusive import group_of
from ...policy.sessions.revisions import Replica, hand_over, next_replaced, started_revision
from ...policy.sessions.scaling import (
    Load,
    Scale,
    gives_up_a_worker,
    grows_at,
    may_shrink_at,
    replicas_wanted,
    workers_wanted,
)
from ...policy.sessions.serving import is_leaving, may_start_at, spec_of_worker, waits
from ...state.commands import Command
from ...state.ids import JobId, ModelName
from ...state.jobs import Deferred, Finished, Held, Job, Queued, Running, Starting, Stopping
from ...state.records import AttemptStopping, JobFinished, JobQueued, Record, WorkerDrained
from ...state.sessions.commands import DrainWorker, SessionCommand
from ...state.sessions.events import WorkerState
from ...state.sessions.records import ModelUpdated
from ...state.sessions.serving import Requests, Serving, WorkersChecked
from ...state.sessions.session import HttpService, Model
from ...state.sessions.turns import WorkerLive
from ...state.specs import Outcome
from ...state.state import State
from ...state.units import SECOND, Instant, Span, after
from ..decision import NOTHING, Decision, together
from ..groups import band_in
from ..jobs import stop_commands
from .exclusive import TURN_KEPT, looks_again, noted_awake, put_to_sleep, with_those_that_wait
from .worker_seats import HOPE_SPAN

TAKEN_AFTER = Span(5 * SECOND)
"""A model without any worker, for which people wait, takes a device of another model after its own has waited so."""

DRAIN_SPAN_MAX = Span(180 * SECOND)
"""A worker that was told to end after its last turn, and lives for longer, is stopped by the grace rule."""


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
    """Start the workers that are missing, take down those that are too many, and let programs sleep for others."""
    names = with_those_that_wait(state, models)
    decisions: list[Decision] = []
    next_job = state.durable.counters.next_job
    for name in names:
        model = state.durable.models.get(name)
        if model is not None and model.worker is not None:
            workers = Workers(state, model, at, next_job)
            decisions.append(workers.adjusted())
            next_job = workers.next_job
    if not decisions:
        return NOTHING
    decided = together(*decisions)

    def ended(model: Model, job: Job, why: str) -> Decision:
        return Workers(state, model, at, next_job).worker_ended(job, why, is_gentle=True)

    return together(decided, put_to_sleep(state, names, at, decided, ended))


class Workers:
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
        self.leaving = [job for job in jobs if is_leaving(job)]
        self.revision = started_revision(model)
        self.additional: frozenset[JobId] = frozenset()
        self.staying = [job for job in jobs if not is_leaving(job)]
        said = [worker.seats for worker in self.of_job.values() if worker.seats]
        self.seats = max(said, default=self.known.seats)
        self.requests = turns.requests_of(model.name)
        is_quiet = model.http is not None and self.requests == Requests()
        quiet_since = at if self.known.quiet_since is None else self.known.quiet_since
        self.quiet_since = quiet_since if is_quiet else None
        self.ready = {worker.job for worker in self.live if worker.state is WorkerState.READY}
        self.ready_since: Instant | None = None
        self.wakes: list[Instant] = []

    def adjusted(self) -> Decision:
        """What follows for this model."""
        fewer_since, shrunk_at = self.known.fewer_since, self.known.shrunk_at
        decisions: list[Decision] = [self._overdue()]
        has_failed = self.model.failure is not None
        if not has_failed:
            decisions.append(self._handed_over())
        replicas = [self._replica(job) for job in self.staying]
        # Those that are there only until their predecessors go are not counted.
        self.staying = [job for job in self.staying if job.id not in self.additional]
        ready_since = self.at if self.known.ready_since is None else self.known.ready_since
        is_ready = self.model.http is not None and all(job.id in self.ready for job in self.staying)
        self.ready_since = ready_since if is_ready else None
        want = self._wanted()
        waiting = [job for job in reversed(self.staying) if waits(job)][: max(0, len(self.staying) - want)]
        active = [job for job in self.staying if not waits(job)]
        most, extra = max(0, len(active) - self.model.max_workers), len(active) - want
        beyond = sorted(active, key=lambda job: (self._sessions_on(job), self._least_key(job)))[:most]
        left = [each for each in replicas if each.job not in {job.id for job in (*waiting, *beyond)}]
        if has_failed:
            decisions.extend(end_job(job, self.at, "its model has failed") for job in self.staying if waits(job))
        elif len(self.staying) < want:
            decisions.append(self._started(want - len(self.staying)))
        elif (replaced := next_replaced(left, want)) is not None:
            decisions.append(self._started(1, replaces=replaced))
        if not has_failed:
            decisions.extend(end_job(job, self.at, "nobody waits for it any more") for job in waiting)
        if beyond:
            decisions.extend(self.worker_ended(job, f"model {self.model.name} has fewer workers now") for job in beyond)
        elif extra <= 0:
            fewer_since = None
        else:
            fewer_since = self.at if fewer_since is None else fewer_since
            idle = [job for job in active if not self._sessions_on(job)]
            # A program without requests was waited for already, for as long as it was served to be.
            due = may_shrink_at(fewer_since, shrunk_at) if want or self.model.http is None else self.at
            if idle and due <= self.at:
                decisions.append(self.worker_ended(self._least(idle), "it was not needed for a minute"))
                shrunk_at = self.at
                if extra > 1:
                    self.wakes.append(may_shrink_at(fewer_since, shrunk_at))
            elif idle:
                self.wakes.append(due)
        if group_of(self.model) is None:
            decisions.append(self._taken_from_another())
        else:
            self.wakes.extend(looks_again(self.state, self.model, self.at))
            decisions.append(noted_awake(self.state, self.model))
        held_since, awake_since = self._held()
        fresh = (after(job.waits_since or job.age_since, HOPE_SPAN) for job in self.staying if waits(job))
        self.wakes.extend(fresh)
        look_at = min((wake for wake in self.wakes if wake > self.at), default=None)
        serving = Serving(
            seats=self.seats,
            fewer_since=fewer_since,
            shrunk_at=shrunk_at,
            look_at=look_at,
            quiet_since=self.quiet_since,
            ready_since=self.ready_since,
            held_since=held_since,
            awake_since=awake_since,
        )
        if serving != self.known:
            decisions.append(Decision(notes=(WorkersChecked(model=self.model.name, serving=serving),)))
        return together(*decisions)

    def _held(self) -> tuple[Instant | None, Instant | None]:
        """Since when it has workers that hold something, and since when one of them was ready."""
        active = [job for job in self.staying if not waits(job)]
        if not active:
            return None, None
        awake_since = self.known.awake_since
        if awake_since is None and any(job.id in self.ready for job in active):
            awake_since = self.at
        return self.known.held_since or self.at, awake_since

    def _handed_over(self) -> Decision:
        """Workers of another revision than the one that is started now go when their successors are ready."""
        update = self.model.update
        plan = hand_over(
            [self._replica(job) for job in self.staying],
            self.at,
            is_in_place=update is not None and update.is_in_place,
            is_leaving=bool(self.leaving),
        )
        going = [job for job in self.staying if job.id in plan.ends]
        self.additional = plan.additional
        if plan.look_at is not None:
            self.wakes.append(plan.look_at)
        why = f"model {self.model.name} is updated to revision {self.revision.number}"
        decisions = [
            self.worker_ended(job, f"{why}: {plan.ends[job.id]}", is_gentle=not self._has_predecessor(job))
            for job in going
        ]
        self.staying = [job for job in self.staying if job.id not in plan.ends]
        is_on = update is not None and update.failure is None
        if is_on and self.model.has_been_ready and all(self._is_new(job) for job in self.staying):
            decisions.append(Decision(records=(ModelUpdated(at=self.at, model=self.model.name),)))
        return together(*decisions)

    def _is_new(self, job: Job) -> bool:
        return job.revision == self.revision.number

    def _has_predecessor(self, job: Job) -> bool:
        """Whether the worker that it was to replace stays, so that it was never ready."""
        return any(job.replaces == each.id for each in self.staying)

    def _replica(self, job: Job) -> Replica:
        # One from before that is not heard for the moment, as after a start of the scheduler, may well serve people.
        is_silent = not self._is_new(job) and job.id not in self.of_job and not self._has_predecessor(job)
        return Replica(
            job=job.id,
            is_new=self._is_new(job),
            is_ready=isinstance(job.state, Running) and (job.id in self.ready or is_silent),
            waits=waits(job),
            gpu_milli=job.spec.resources.gpu_milli,
            queued_since=(job.waits_since or job.age_since) if isinstance(job.state, Queued) else None,
            replaces=job.replaces,
            people=self._sessions_on(job),
        )

    def _people(self) -> tuple[int, int]:
        """Who has a turn on a worker that stays, and who waits; of a program, requests."""
        if self.model.http is not None:
            return self.requests.under_way, self.requests.waiting
        sessions, missing = self.state.durable.sessions, self.state.live.turns.missing
        turns = sum(len(sessions.seated.get(each.id, ())) for each in self.live if self._stays(each))
        for worker in missing:
            turns += sum(1 for session in sessions.on_worker(worker) if session.model == self.model.name)
        return turns, sessions.line_length(self.model.name)

    def _stays(self, worker: WorkerLive) -> bool:
        is_going = worker.state in (WorkerState.DRAINING, WorkerState.FAILED)
        return not is_going and worker.job not in {job.id for job in self.leaving}

    def _wanted(self) -> int:
        if self.model.http is not None:
            return self._replicas_wanted(self.model.http)
        turns, waiting = self._people()
        by_hand = sum(each.seats for each in self.live if each.job is None and self._stays(each))
        people = max(0, turns + waiting - by_hand)
        # Until one has said how many seats a worker has, one is enough to find out.
        counted, seats = (people, self.seats) if self.seats else (min(people, 1), 1)
        scale = Scale(min_workers=self.model.min_workers, max_workers=self.model.max_workers, seats=seats)
        return workers_wanted(scale, counted, 0)

    def _replicas_wanted(self, http: HttpService) -> int:
        grows = grows_at(http, self.requests, self.ready_since)
        if grows is not None:
            self.wakes.append(grows)
        wanted = replicas_wanted(self.model, self.requests, len(self.staying), grows, self.at)
        if self.quiet_since is None or wanted:
            return wanted
        if all(waits(job) for job in self.staying):
            return 1 if self._keeps_its_turn(self.quiet_since) else 0
        ends_at = after(self.quiet_since, http.idle)
        self.wakes.append(ends_at)
        return 0 if ends_at <= self.at else 1

    def _keeps_its_turn(self, quiet_since: Instant) -> bool:
        """Whether the replica that waits stays in its place, as who asked was told to come again."""
        if group_of(self.model) is None or not any(isinstance(job.state, Queued) for job in self.staying):
            return False
        ends_at = after(quiet_since, TURN_KEPT)
        self.wakes.append(ends_at)
        return self.at < ends_at

    def _sessions_on(self, job: Job) -> int:
        worker = self.of_job.get(job.id)
        return 0 if worker is None else len(self.state.durable.sessions.seated.get(worker.id, ()))

    def _least(self, jobs: list[Job]) -> Job:
        """The one that is missed least: one that is not ready yet, else of another revision, else the youngest."""
        return min(jobs, key=self._least_key)

    def _least_key(self, job: Job) -> tuple[bool, bool, int]:
        return job.id in self.ready, self._is_new(job), -job.id

    def _started(self, count: int, replaces: JobId | None = None) -> Decision:
        assert self.revision.worker is not None
        begins_at = may_start_at(self.revision.deaths, self.at)
        spec = spec_of_worker(self.state, self.model.owner, self.revision.worker)
        group = self.state.durable.groups.default_of(self.model.owner)
        records: list[Record] = []
        for _ in range(count):
            if len(self.state.durable.jobs) + len(records) >= self.state.limits.queued_jobs:
                break
            job = Job(
                id=JobId(self.next_job),
                user=self.model.owner,
                spec=spec,
                band=band_in(self.state.durable.groups.live(group), self.revision.band),
                submitted_at=self.at,
                state=Queued() if begins_at is None else Deferred(),
                begins_at=begins_at,
                revision=self.revision.number,
                replaces=replaces,
                group=group,
            )
            self.next_job += 1
            records.append(JobQueued(at=self.at, job=job, count=1))
        # What is queued now is looked at again when it may have found no device.
        self.wakes.extend((after(self.at, HOPE_SPAN), after(self.at, TAKEN_AFTER)))
        return Decision(records=tuple(records))

    def worker_ended(self, job: Job, why: str, *, is_gentle: bool = False) -> Decision:
        """A worker that is ready ends after its last turn; any other one is stopped.

        `is_gentle`: so does a program that is not well for the moment, and one that is not heard, once it is.
        """
        worker = self.of_job.get(job.id)
        is_program = is_gentle and self.model.http is not None
        states = (WorkerState.READY, WorkerState.LOADING) if is_program else (WorkerState.READY,)
        may_end_by_itself = is_gentle if worker is None else worker.state in states
        if not may_end_by_itself or not isinstance(job.state, Running):
            return end_job(job, self.at, why)
        self.wakes.append(after(self.at, DRAIN_SPAN_MAX))
        commands: tuple[SessionCommand, ...] = () if worker is None else (DrainWorker(worker=worker.id),)
        return Decision(records=(WorkerDrained(at=self.at, job=job.id, reason=why),), session_commands=commands)

    def _overdue(self) -> Decision:
        """Stop those that were to end long ago."""
        decisions: list[Decision] = []
        for job in self.leaving:
            if job.drained_at is not None and isinstance(job.state, Starting | Running):
                until = after(job.drained_at, DRAIN_SPAN_MAX)
                if until <= self.at:
                    decisions.append(end_job(job, self.at, "it did not end by itself"))
                else:
                    self.wakes.append(until)
        return together(*decisions)

    def _taken_from_another(self) -> Decision:
        """People wait, no worker of theirs is there or on its way, and no device: another model gives one up."""
        waiting = [job for job in self.staying if isinstance(job.state, Queued)]
        is_alone = len(waiting) == len(self.staying) and not self.live
        if not waiting or not is_alone or not self._people()[1]:
            return NOTHING
        since = after(waiting[0].waits_since or waiting[0].age_since, TAKEN_AFTER)
        if since > self.at:
            self.wakes.append(since)
            return NOTHING
        others = {
            name: Workers(self.state, model, self.at, self.next_job)
            for name, model in self.state.durable.models.items()
            # What programs of a group have goes to others of it, and to nobody else.
            if name != self.model.name and model.worker is not None and group_of(model) is None
        }
        if any(other.leaving for other in others.values()):
            return NOTHING  # one is going already
        asked = waiting[0].spec.resources
        loads: dict[str, Load] = {}
        for name, other in others.items():
            assert other.model.worker is not None
            if other.model.worker.resources.gpu_milli >= asked.gpu_milli:
                turns, line = other._people()
                active = sum(1 for job in other.staying if not waits(job))
                loads[name] = Load(turns=turns, waiting=line, workers=active, min_workers=other.model.min_workers)
        chosen = gives_up_a_worker(loads)
        if chosen is None:
            return NOTHING
        giver = others[ModelName(chosen)]
        job = min((job for job in giver.staying if not waits(job)), key=lambda job: (giver._sessions_on(job), -job.id))
        return giver.worker_ended(job, f"people wait for model {self.model.name}, which has no worker")


def end_job(job: Job, at: Instant, why: str) -> Decision:
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
