"""Models that the fleet serves, under random people, workers that end and schedulers that start again."""

from __future__ import annotations

import random

import pytest

from gpufleet.jobs.runs import ExitCode, ExitSignal, ExitStatus, StopCause
from scheduler.core.story import sentence, tell
from scheduler.policy.sessions.revisions import AT_A_TIME, started_revision
from scheduler.policy.sessions.serving import DEATHS_MAX, deaths_since, may_start_at
from scheduler.state.attempts import RankExit
from scheduler.state.commands import LaunchAttempt, StopAttempt
from scheduler.state.events import CancelRequested, Event, RankExited, RankStarted, ReportedRunning, ReportedStarting
from scheduler.state.ids import JobId, RankKey, UserName
from scheduler.state.jobs import Job, Queued, Running, Starting, Stopping
from scheduler.state.records import AttemptEnded, AttemptStopping, Record, WorkerDrained
from scheduler.state.sessions.commands import DrainWorker, OfferSeat
from scheduler.state.sessions.events import (
    Connection,
    JoinRequested,
    LeaveRequested,
    ReportedTurn,
    ServeRequested,
    StopModelRequested,
    WorkerJoined,
    WorkerLost,
    WorkerReported,
    WorkerState,
)
from scheduler.state.sessions.records import (
    ModelFailed,
    ModelReady,
    ModelUpdated,
    SessionRequeued,
    UpdateFailed,
    WorkerDied,
)
from scheduler.state.sessions.session import Identity, Model, ModelName, WorkerId
from scheduler.state.specs import JobSpec, Resources
from scheduler.state.units import MINUTE, SECOND, Instant, Span, after
from tests.core.fleet import Fleet, Turn

pytestmark = pytest.mark.slow

ALICE = UserName("alice")
GPUS = 4
BROKEN = "3"
"""The version of a model that cannot be loaded."""

SEATS = 2


class Served:
    """Two models on one node; its workers call, end and are replaced."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.fleet = Fleet()
        self.node = self.fleet.add_node("n1", gpus=GPUS)
        self.streams = 0
        self.workers: dict[JobId, tuple[WorkerId, int]] = {}
        self.people: dict[int, Connection] = {}
        self.joined = 0
        self.launched: set[tuple[JobId, int]] = set()
        self.met: set[type[Record]] = set()
        for turn in self.fleet.join(self.node):
            self.follow(turn)
        self.versions: dict[ModelName, int] = {}
        self.models = {
            ModelName(name): self.random.choice([(0, 2), (1, 3), (1, 1), (0, 4)]) for name in ("canvas", "depth")
        }
        for name in self.models:
            self.serve(name)

    @property
    def now(self) -> Instant:
        return self.fleet.now

    def serve(self, name: ModelName) -> None:
        least, most = self.models[name]
        argv = ("w", str(self.versions.get(name, 0)))
        spec = JobSpec(argv=argv, name=name, cwd="/", resources=Resources(gpus=1), serves=name)
        model = Model(name=name, owner=ALICE, worker=spec, min_workers=least, max_workers=most, entry_point="m:C")
        self.do(ServeRequested(at=self.now, model=model))

    def do(self, event: Event) -> None:
        self.follow(self.fleet.take_up(event))

    def follow(self, turn: Turn) -> None:
        for record in turn.records:
            assert tell(record)
            assert sentence(record)
            self.met.add(type(record))
        for command in turn.commands:
            if isinstance(command, LaunchAttempt):
                key = (command.key.job, command.key.attempt)
                assert key not in self.launched, "an attempt is started twice"
                self.launched.add(key)
        self.check(turn)
        # What follows from these is done once all that the turn decided is true.
        for news in turn.session_commands:
            if isinstance(news, DrainWorker):
                self._drained(news.worker)
        for command in turn.commands:
            if isinstance(command, StopAttempt):
                self._stopped(command)

    def check(self, turn: Turn) -> None:
        durable, live = self.fleet.state.durable, self.fleet.state.live.turns
        for name, jobs in durable.services.items():
            model = durable.models.get(name)
            staying = [job for job in map(durable.jobs.__getitem__, jobs) if not is_leaving(job)]
            if model is None:
                assert not staying, f"{name} is stopped, and has workers"
            else:
                ids = {job.id for job in staying}
                successors = [job for job in staying if job.replaces in ids]
                assert len(successors) <= (AT_A_TIME if model.failure is None else len(staying))
                assert len(staying) - len(successors) <= model.max_workers, f"{name} has more workers than it may have"
                if model.failure is None:
                    assert len(staying) >= model.min_workers, f"{name} has fewer workers than it must have"
                assert all(job.user == model.owner for job in staying)
        for model in durable.models.values():
            waits = durable.sessions.line_length(model.name) > 0
            has_some = any(not is_leaving(durable.jobs[each]) for each in durable.services.get(model.name, ()))
            assert not waits or has_some or model.failure is not None, (
                f"people wait for {model.name}, and nothing comes"
            )
            assert deaths_since(model.deaths, turn.at) < DEATHS_MAX
        for record in turn.records:
            if isinstance(record, WorkerDrained | AttemptStopping) and "its successor is ready" in record.reason:
                (successor,) = [job for job in durable.jobs.values() if job.replaces == record.job]
                worker = live.worker_of_job(successor.id)
                assert worker is not None and worker.state is WorkerState.READY, "nobody takes its place"
                assert isinstance(successor.state, Running) and not is_leaving(successor)
        for offer in [each for each in turn.session_commands if isinstance(each, OfferSeat)]:
            worker = live.workers[offer.worker]
            job = None if worker.job is None else durable.jobs.get(worker.job)
            assert job is not None and not is_leaving(job), "somebody is sent to a worker that is to go"

    # --- workers

    def _stopped(self, command: StopAttempt) -> None:
        if command.key.job in self.workers:
            self.lose(command.key.job)
        self.exit(command.key, RankExit(exit=ExitCode(code=0), reason="EXITED", stop_cause=command.cause))

    def _drained(self, worker: WorkerId) -> None:
        job = next((job for job, (known, _) in self.workers.items() if known == worker), None)
        if job is not None and worker not in self.fleet.state.durable.sessions.seated:
            key = self._key(job)
            self.lose(job)
            self.exit(key, RankExit(exit=ExitCode(code=0), reason="EXITED"))

    def _key(self, job: JobId) -> RankKey:
        attempt = self.fleet.state.durable.jobs[job].attempt
        assert attempt is not None
        return RankKey(job, attempt.number, 0)

    def exit(self, key: RankKey, exit_: RankExit) -> None:
        self.do(RankExited(at=self.now, node=self.node.name, key=key, exit=exit_))

    def lose(self, job: JobId) -> None:
        worker, stream = self.workers.pop(job)
        self.do(WorkerLost(at=self.now, worker=worker, stream=stream))

    def active(self) -> list[Job]:
        durable = self.fleet.state.durable
        jobs = [durable.jobs[job] for of_model in durable.services.values() for job in of_model]
        return [job for job in jobs if isinstance(job.state, Starting | Running)]

    def call(self) -> None:
        """A worker that was launched runs, calls and is ready."""
        for job in self.active():
            if job.id in self.workers:
                continue
            if isinstance(job.state, Starting):
                self.do(RankStarted(at=self.now, node=self.node.name, key=self._key(job.id)))
            if job.spec.argv[1] == BROKEN:
                self.exit(self._key(job.id), RankExit(exit=ExitCode(code=1), reason="EXITED"))
                return
            assert job.attempt is not None
            self._begin_stream(job, WorkerId(f"w{job.id}.{job.attempt.number}"))
            self.report(job.id)
            return

    def _begin_stream(self, job: Job, worker: WorkerId) -> None:
        self.streams += 1
        self.workers[job.id] = (worker, self.streams)
        joined = WorkerJoined(
            at=self.now,
            worker=worker,
            model=job.spec.serves,
            endpoint="h:1",
            stream=self.streams,
            by=ALICE,
            job=job.id,
        )
        self.do(joined)

    def report(self, job: JobId) -> None:
        """It lists who has a seat on it: each is there and does something."""
        worker, stream = self.workers[job]
        durable, live = self.fleet.state.durable, self.fleet.state.live.turns
        turns = []
        for session in durable.sessions.on_worker(worker):
            started = live.turns[session.id].started_at
            age = Span(0 if started is None else self.now - started)
            turns.append(ReportedTurn(session=session.id, epoch=session.epoch, age=age, since_input=Span(0)))
        known = durable.jobs.get(job)
        state = WorkerState.DRAINING if known is not None and known.drained_at is not None else WorkerState.READY
        self.do(WorkerReported(at=self.now, worker=worker, stream=stream, state=state, seats=SEATS, turns=tuple(turns)))
        if state is WorkerState.DRAINING:
            self._drained(worker)

    def all_report(self) -> None:
        for job in list(self.workers):
            if job in self.workers:
                self.report(job)

    def die(self) -> None:
        for job in self.random.sample(sorted(self.workers), k=min(1, len(self.workers))):
            key = self._key(job)
            self.lose(job)
            exits: list[ExitStatus] = [ExitSignal(signal=9), ExitCode(code=3), ExitCode(code=0)]
            exit_ = self.random.choice(exits)
            self.exit(key, RankExit(exit=exit_, reason="EXITED"))

    def cancel(self) -> None:
        jobs = self.active()
        if jobs:
            self.do(CancelRequested(at=self.now, by=ALICE, jobs=(self.random.choice(jobs).id,)))

    # --- people and time

    def join(self) -> None:
        self.joined += 1
        number = self.joined
        self.people[number] = Connection(1, number)
        name = self.random.choice(sorted(self.models))
        if name in self.fleet.state.durable.models:
            self.do(
                JoinRequested(
                    at=self.now,
                    connection=self.people[number],
                    model=name,
                    identity=Identity(f"p{number}"),
                    key_digest=f"k{number}",
                )
            )

    def leave(self) -> None:
        if self.people:
            number = self.random.choice(sorted(self.people))
            self.do(LeaveRequested(at=self.now, connection=self.people.pop(number), is_final=True))

    def stop_and_serve(self) -> None:
        name = self.random.choice(sorted(self.models))
        starting = [job for job in self.active() if job.spec.serves == name and job.id not in self.workers]
        if name in self.fleet.state.durable.models:
            self.do(StopModelRequested(at=self.now, model=name, by=ALICE))
            for job in starting:  # it says that it is there only now, and goes
                self._begin_stream(job, WorkerId(f"late{job.id}"))
                self.lose(job.id)
            assert name not in self.fleet.state.durable.models, "it was stopped, and is served"
        self.models[name] = self.random.choice([(0, 2), (1, 3), (2, 2)])
        self.serve(name)

    def update(self) -> None:
        """A model is served otherwise, as before, or as before that."""
        name = self.random.choice(sorted(self.models))
        model = self.fleet.state.durable.models.get(name)
        if model is not None and model.former is not None and self.random.random() < 0.3:
            self.do(ServeRequested(at=self.now, model=model, rolls_back=True))
        else:
            self.versions[name] = self.random.randrange(4)
            self.serve(name)

    def wait(self, span: int) -> None:
        for _ in range(max(1, span // (10 * SECOND))):
            for turn in self.fleet.advance(min(span, 10 * SECOND)):
                self.follow(turn)
            self.all_report()

    def restart(self) -> None:
        """The scheduler starts again; the node lists what runs there, and the workers come back."""
        self.people.clear()
        self.follow(self.fleet.restart())
        durable = self.fleet.state.durable
        entries = [
            (
                self._key(job.id),
                ReportedRunning(run_span=Span(0)) if isinstance(job.state, Running) else ReportedStarting(),
            )
            for job in durable.jobs.values()
            if job.attempt is not None and not isinstance(job.state, Stopping)
        ]
        for turn in [self.fleet.inventory(self.node, entries), self.fleet.beat(self.node.name)]:
            self.follow(turn)
        for job, (worker, _) in list(self.workers.items()):
            self.streams += 1
            self.workers[job] = (worker, self.streams)
            model = self.fleet.state.durable.jobs[job].spec.serves
            joined = WorkerJoined(
                at=self.now, worker=worker, model=model, endpoint="h:1", stream=self.streams, by=ALICE, job=job
            )
            self.do(joined)
            if job in self.workers:
                self.report(job)

    def live_on(self) -> None:
        steps = [self.join] * 6 + [self.leave] * 4 + [self.call] * 6 + [self.die, self.cancel, self.restart]
        steps += [self.all_report] * 3 + [lambda: self.wait(self.random.choice([1, 5, 20, 90]) * SECOND)] * 3
        if self.random.random() < 0.3:
            steps += [self.die] * 8 + [lambda: self.wait(5 * SECOND)] * 8  # a model that does not live long
        for _ in range(60):
            self.random.choice(steps)()
            if self.random.random() < 0.02:
                self.stop_and_serve()
            if self.random.random() < 0.05:
                self.update()


def is_leaving(job: Job) -> bool:
    is_stopped = isinstance(job.state, Stopping) and job.state.cause is StopCause.CANCELLED
    return job.drained_at is not None or is_stopped


@pytest.mark.parametrize("seed", range(12))
def test_a_model_has_the_workers_that_it_needs_whatever_happens(seed: int) -> None:
    lived(seed)


CORNERS: set[type[Record]] = {
    *(ModelReady, WorkerDied, ModelFailed, WorkerDrained, SessionRequeued, AttemptEnded, ModelUpdated, UpdateFailed)
}
SEEDS_TO_REACH_THEM = 40


def test_a_few_lives_reach_every_corner() -> None:
    """A life in which nothing ends proves nothing."""
    missing = set(CORNERS)
    for seed in range(100, 100 + SEEDS_TO_REACH_THEM):
        missing -= lived(seed)
        if not missing:
            return
    pytest.fail(f"never met: {missing}")


def lived(seed: int) -> set[type[Record]]:
    """What was decided in one life of a fleet that serves."""
    served = Served(seed)
    served.live_on()
    # Everybody leaves, every worker that is to come has come: in the end each has the fewest workers.
    while served.people:
        served.leave()
    for _ in range(20):
        served.wait(40 * SECOND)
        served.call()
    durable = served.fleet.state.durable
    for name, model in durable.models.items():
        if model.failure is None:
            jobs = [durable.jobs[job] for job in durable.services.get(name, ())]
            assert len(jobs) == model.min_workers, f"{name}: {jobs}"
            assert not any(isinstance(job.state, Queued) for job in jobs), "a device is free"
            assert {job.revision for job in jobs} <= {started_revision(model).number}, "an update came to no end"
            is_done = model.update is None or model.update.failure is not None
            assert is_done or not model.has_been_ready, f"{name} is all as it should be, and says that it is not"
    return served.met


# --- the numbers


def test_the_pause_before_a_worker_is_started_again_doubles() -> None:
    at = Instant(1_000_000 * SECOND)
    deaths: tuple[Instant, ...] = ()
    pauses: list[int] = []
    for _ in range(DEATHS_MAX - 1):
        deaths = (*deaths, at)
        begins_at = may_start_at(deaths, at)
        pauses.append(0 if begins_at is None else (begins_at - at) // SECOND)
    assert pauses == [0, 1, 2, 4]
    assert may_start_at(deaths, after(at, 4 * SECOND)) is None
    assert deaths_since(deaths, after(at, 11 * MINUTE)) == 0
