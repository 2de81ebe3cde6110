"""Models that the fleet serves: workers as jobs on simulated machines, beside batch jobs, and what befalls both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from gpufleet.jobs.runs import ExitCode, ExitSignal, ExitStatus
from node_agent.core.launch import Launch
from node_agent.core.outcome import Stream
from scheduler.state.events import CancelRequested, Event
from scheduler.state.ids import UserName
from scheduler.state.replies import Done, Reply
from scheduler.state.sessions.events import ServeRequested, StopModelRequested
from scheduler.state.sessions.session import Model, ModelName
from scheduler.state.specs import JobSpec, Resources
from scheduler.state.units import SECOND, Instant, Span
from tests.simulation.machine import DRIFT_MAX, NEVER, SIGKILL, Machine, Plan, Process
from tests.simulation.session_workers import Worker
from tests.simulation.session_world import SessionWorld

OWNER = UserName("carol")
SERVES = "serves "
"""How the plan of a worker's process names its model."""

CANNOT_LOAD, STOPPED = 1, 0
STOP_SECONDS = (0.05, 1.0)
"""How long a worker that is told to end takes to tell of its turns."""


class WorkerProcess(Process):
    """The process of a job that is a worker: it lives as long as the worker, and the worker no longer than it."""

    has_fence = False

    def __init__(
        self, machine: Machine, asked: Launch, devices: Mapping[str, int], cpus: int, *, world: SessionWorld, seats: int
    ) -> None:
        super().__init__(machine, asked, devices, cpus)
        self._sessions_world = world
        self._seats = seats
        self._rng = world.rng(f"worker process {asked.key}")
        self.worker: Worker | None = None

    def begin(self) -> None:
        """Its model loads, or cannot be loaded."""
        key, world = self.key, self._sessions_world
        self._write(Stream.STDOUT, b"loading\n")
        self.worker = Worker(
            world,
            self.machine.name,
            world.next_worker(),
            self.plan.trouble.removeprefix(SERVES),
            self._seats,
            job=key,
            on_finished=partial(self._exit, ExitCode(code=STOPPED)),
        )
        if self._rng.random() < 0.04 and not world.is_healed:
            world.met.add("a worker whose model cannot be loaded")
            world.after(self._rng.uniform(0.1, 2.0), self._cannot_load)

    def _cannot_load(self) -> None:
        assert self.worker is not None
        if self.is_alive:
            self.worker.cannot_load()
            self._sessions_world.after(0.1, self._exit, ExitCode(code=CANNOT_LOAD))

    def term(self) -> None:
        """Its turns end, and then it."""
        if self.is_alive and self.worker is not None and not self._is_ending:
            self._is_ending = True
            self.worker.stop()
            self._sessions_world.after(self._rng.uniform(*STOP_SECONDS), self._exit, ExitCode(code=STOPPED))

    def die(self) -> None:
        """Somebody kills it, as by -9, or its model brings it down."""
        self._exit(ExitSignal(signal=SIGKILL))

    def vanish(self) -> None:
        super().vanish()
        self._worker_dies()

    def _exit(self, status: ExitStatus) -> None:
        super()._exit(status)
        self._worker_dies()

    def _worker_dies(self) -> None:
        if self.worker is not None and self.worker.is_alive:
            self.worker.die()
            del self._sessions_world.workers[self.worker.endpoint]


class ServedFleet:
    """Machines with GPUs, and the models that are served on them."""

    def __init__(self, world: SessionWorld, models: Sequence[ModelName], nodes: int, workers: int) -> None:
        self._world = world
        self._rng = world.rng("served")
        self.machines = {machine.name: machine for machine in map(self._machine, range(nodes))}
        self._seats = {model: self._rng.choice((1, 2, 4)) for model in models}
        self._workers = workers
        self.models = {model: self._model(model) for model in models}
        self._stopped: set[ModelName] = set()

    def _machine(self, number: int) -> Machine:
        rate = 1.0 + self._rng.uniform(-DRIFT_MAX, DRIFT_MAX)
        machine = Machine.made(self._world, f"n{number}", gpus=3, cpus=8, rate=rate, is_virtual=number % 2 == 1)
        machine.make_process = self._process
        return machine

    def _process(self, machine: Machine, asked: Launch, devices: Mapping[str, int], cpus: int) -> Process:
        what = Plan.of(asked.process.argv).trouble
        if not what.startswith(SERVES):
            return Process(machine, asked, devices, cpus)
        seats = self._seats[ModelName(what.removeprefix(SERVES))]
        return WorkerProcess(machine, asked, devices, cpus, world=self._world, seats=seats)

    def _model(self, name: ModelName) -> Model:
        rng = self._rng
        plan = Plan(
            seconds=NEVER,
            code=0,
            lines=0,
            term_seconds=0.0,
            dies_seconds=rng.choice((0.0, 0.05, 2.0)),
            lingers_seconds=0.0,
            trouble=f"{SERVES}{name}",
        )
        spec = JobSpec(
            argv=plan.argv(),
            name=name,
            cwd="/",
            resources=Resources(gpus=1),
            grace=Span(rng.choice((1, 5)) * SECOND),
            is_preemptible=rng.random() < 0.3,
            serves=name,
        )
        most = rng.randint(1, self._workers)
        least = rng.choice((0, 1, min(2, most)))
        return Model(
            name=name,
            owner=OWNER,
            limits=self._world.limits[name],
            chosen=self._world.chosen,
            entry_point="drawn:Drawn",
            worker=spec,
            min_workers=least,
            max_workers=most,
        )

    # --- what people do about models

    def serve(self, name: ModelName, *, again: bool = False) -> None:
        """Ask until it is served; again with other numbers."""
        if name in self._stopped:
            return
        if again:
            most = self._rng.randint(1, self._workers)
            least = min(self.models[name].min_workers, most)
            self.models[name] = replace(self.models[name], min_workers=least, max_workers=most)
        self._ask(lambda at: ServeRequested(at=at, model=self.models[name]), partial(self.serve, name))

    def stop(self, name: ModelName) -> None:
        """Ask until it is stopped."""
        self._stopped.add(name)
        scheduler = self._world.scheduler
        if scheduler is None or name in scheduler.state.durable.models:
            self._ask(lambda at: StopModelRequested(at=at, model=name, by=OWNER), partial(self.stop, name))

    def _ask(self, event: Callable[[Instant], Event], otherwise: Callable[[], None]) -> None:
        scheduler = self._world.scheduler

        def answered(reply: Reply | Exception) -> None:
            if not isinstance(reply, Done):
                self._world.after(1.0, otherwise)

        if scheduler is None:
            self._world.after(1.0, otherwise)
        else:
            scheduler.request(event, answered)

    # --- troubles

    def kill_worker(self) -> None:
        """One of their processes dies."""
        alive = [each for each in self._processes() if each.is_alive]
        if alive:
            self._world.met.add("a served worker that died")
            self._rng.choice(alive).die()

    def cancel_worker(self) -> None:
        """Somebody cancels the job of one."""
        alive = [each for each in self._processes() if each.is_alive]
        scheduler = self._world.scheduler
        if alive and scheduler is not None:
            self._world.met.add("a served worker that was cancelled")
            job = self._rng.choice(alive).key.job
            scheduler.request(lambda at: CancelRequested(at=at, by=OWNER, jobs=(job,)), lambda reply: None)

    def serve_again(self) -> None:
        """Somebody wants more workers of a model, or fewer."""
        if self.models:
            self.serve(self._rng.choice(list(self.models)), again=True)

    def mend(self) -> None:
        """A model that has failed is served again, by people who have mended it."""
        scheduler = self._world.scheduler
        for name in self.models:
            known = scheduler.state.durable.models.get(name) if scheduler is not None else None
            if known is not None and known.failure is not None:
                self.serve(name)

    def stop_all(self) -> None:
        """Nobody needs them any more."""
        for name in self.models:
            if name not in self._stopped:
                self.stop(name)

    def _processes(self) -> list[WorkerProcess]:
        return [
            process
            for machine in self.machines.values()
            for process in machine.processes.values()
            if isinstance(process, WorkerProcess)
        ]
