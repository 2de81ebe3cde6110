"""One run of lines and turns: people, gateways, workers, what goes wrong, and in the end *heal, then all must end*."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from scheduler.state.ids import UserName
from scheduler.state.replies import Done, Reply
from scheduler.state.sessions.events import CloseRequested, ServeRequested
from scheduler.state.sessions.session import Model, ModelName, SessionLimits
from scheduler.state.units import SECOND, Span
from tests.simulation.faults import STEP_SECONDS, STORE_FAULTS, Troubles
from tests.simulation.gateways import Gateway
from tests.simulation.people import Person
from tests.simulation.run import Run
from tests.simulation.scheduler import SchedulerProcess
from tests.simulation.served import ServedFleet
from tests.simulation.session_checks import SessionChecks
from tests.simulation.session_workers import DRAINING, Worker
from tests.simulation.session_world import SessionWorld
from tests.simulation.users import Users
from tests.simulation.world import Broken

LOOK_SECONDS = 1.0
END_SECONDS_MAX = 3_000.0
"""Once all works again, everybody has had a turn and left within so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """How large a run is. `trouble_seconds` of faults, within which everybody arrives in `arrive_seconds`."""

    people: int
    workers: int
    models: int
    gateways: int
    arrive_seconds: float
    trouble_seconds: float
    served: int = 0
    """So many of the models are served by the fleet, on `nodes` machines with three GPUs each, beside `jobs` jobs."""
    nodes: int = 0
    jobs: int = 0


SMALL = Crowd(people=30, workers=3, models=2, gateways=2, arrive_seconds=60.0, trouble_seconds=120.0)
SERVED = Crowd(
    people=30,
    workers=4,
    models=3,
    gateways=2,
    arrive_seconds=60.0,
    trouble_seconds=120.0,
    served=2,
    nodes=4,
    jobs=12,
)
LARGE = Crowd(
    people=1_000,
    workers=8,
    models=3,
    gateways=3,
    arrive_seconds=60.0,
    trouble_seconds=150.0,
    served=2,
    nodes=5,
    jobs=20,
)
CROWDS = {"small": SMALL, "served": SERVED, "large": LARGE}
SUBMIT_SECONDS = 90.0
NODE_TROUBLES = (3, 8, 15)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsOutcome:
    """What became of a run. `broken` is None when every rule held."""

    seed: int
    steps: int
    commits: int
    seconds: float
    broken: Broken | None
    trace: tuple[str, ...]
    sessions: int
    met: frozenset[str]
    digest: str


def simulate_sessions(seed: int, crowd: Crowd = SMALL, *, is_traced: bool = False) -> SessionsOutcome:
    """Run one seed to its end."""
    return SessionsSimulation(seed, crowd, is_traced=is_traced).run()


class SessionsSimulation(Run[SessionWorld]):
    """People behind gateways, workers with seats, and everything that can go wrong.

    The workers of the first models are started by hand, those of the last ones by the fleet.
    """

    def __init__(self, seed: int, crowd: Crowd, *, is_traced: bool = False) -> None:
        super().__init__(seed, SessionWorld, is_traced=is_traced)
        self.crowd = crowd
        self.world.workers = {}
        self.world.closed, self.world.ended, self.world.broken_steps = set(), {}, {}
        self.world.end_decided_at = {}
        self._rng = self.world.rng("sessions")
        self.models = [ModelName(f"model{number}") for number in range(crowd.models)]
        self.world.limits = {model: self._limits() for model in self.models}
        self.by_hand = self.models[: crowd.models - crowd.served]
        served = self.models[len(self.by_hand) :]
        self.fleet = ServedFleet(self.world, served, crowd.nodes, max(1, crowd.workers // 2))
        self.checks = SessionChecks(self.world, self.store, self.outputs, self.fleet.machines, self.place)
        self.world.checks = self.checks
        self.users = Users(self.world, crowd.jobs, SUBMIT_SECONDS)
        self.gateways: list[Gateway] = []
        self.people: list[Person] = []
        self._healed_at = 0.0
        self._node_troubles: Troubles | None = None

    def _limits(self) -> SessionLimits:
        rng = self._rng
        idle = rng.choice((12, 20))
        return SessionLimits(
            idle=Span(idle * SECOND),
            idle_warning=Span(idle * SECOND // 2),
            turn=Span(rng.choice((8, 15, 30)) * SECOND),
            turn_warning=Span(rng.choice((2, 5)) * SECOND),
            grace=Span(rng.choice((0, 2, 5)) * SECOND),
            line_length=rng.choice((10_000, 10_000, max(3, self.crowd.people // 20))),
        )

    def run(self) -> SessionsOutcome:
        """Run it to its end."""
        world, crowd = self.world, self.crowd
        world.after(0.0, self._start_scheduler)
        for model in self.by_hand:
            world.after(0.1, self._serve, model)
        for model in self.fleet.models:
            world.after(0.1, self.fleet.serve, model)
        for machine in self.fleet.machines.values():
            world.after(self._rng.uniform(0.1, 3.0), machine.start_agent)
        self.gateways.extend(Gateway(world, f"g{number}") for number in range(crowd.gateways))
        for number in range(self._hand_workers()):
            world.after(self._rng.uniform(0.1, 5.0), self._start_worker, f"w{number}", number)
        self.people.extend(Person(world, number, self.gateways, self.models) for number in range(crowd.people))
        for person in self.people:
            world.after(self._rng.uniform(1.0, crowd.arrive_seconds), person.arrive)
        self._plan_troubles()
        world.after(LOOK_SECONDS, self._look)
        world.after(crowd.trouble_seconds, self._heal)
        broken = self._play()
        return SessionsOutcome(
            seed=world.seed,
            steps=world.steps,
            commits=self.store.commits,
            seconds=world.now,
            broken=broken,
            trace=tuple(world.trace),
            sessions=self.checks.ended,
            met=frozenset(world.met | {type(record).__name__ for _, record in self.store.story}),
            digest=self.digest(),
        )

    def _hand_workers(self) -> int:
        """The fleet starts the workers of its own models."""
        return self.crowd.workers * len(self.by_hand) // len(self.models)

    def _started(self, process: SchedulerProcess) -> None:
        self.checks.began(process)

    def _away_seconds(self) -> float:
        return 0.5 if self.world.is_healed else self._rng.choice((0.05, 0.5, 2.0, 10.0, self._rng.uniform(5, 70)))

    def _serve(self, model: ModelName) -> None:
        """Ask until it is served."""
        scheduler = self.world.scheduler
        limits = self.world.limits[model]
        wanted = Model(name=model, owner=UserName("alice"), limits=limits, chosen=self.world.chosen)

        def answered(reply: Reply | Exception) -> None:
            if not isinstance(reply, Done):
                self.world.after(1.0, self._serve, model)

        if scheduler is None:
            self.world.after(1.0, self._serve, model)
        else:
            scheduler.request(lambda at: ServeRequested(at=at, model=wanted), answered)

    # --- workers

    def _start_worker(self, name: str, number: int) -> None:
        model = self.by_hand[number % len(self.by_hand)]
        Worker(self.world, name, self.world.next_worker(), model, self._rng.choice((1, 2, 4)))

    def _kill_worker(self) -> None:
        by_hand = [each for each in self._workers() if each.is_by_hand]
        if by_hand:
            self._end_worker(self._rng.choice(by_hand), self._rng.choice((0.5, 3.0, 20.0)))

    def _end_worker(self, worker: Worker, away_seconds: float) -> None:
        if worker.is_alive:
            worker.die()
            self.world.network.break_streams(worker.name)
            self.world.after(away_seconds, self._start_worker, worker.name, int(worker.name[1:]))

    def _drain_worker(self) -> None:
        if self._workers():
            worker = self._rng.choice(self._workers())
            self.world.note("{}: is drained", worker.start)
            worker.drain()

    # --- troubles

    def _plan_troubles(self) -> None:
        kinds: tuple[tuple[Callable[[], None], int], ...] = (
            (self._break_streams, 6),
            (self._cut_off, 5),
            (self._arm_scheduler, 5),
            (self._crash_scheduler, 3),
            (self._crash_gateway, 3),
            (self._kill_worker, 5),
            (self._drain_worker, 1),
            (self._fail_model, 3),
            (self._say_again, 8),
            (self._close_session, 3),
            (self._set_the_wall_clock, 2),
            *self._fleet_troubles(),
        )
        calls, weights = zip(*kinds, strict=True)
        for call in self._rng.choices(calls, weights, k=self._rng.choice((6, 15, 30))):
            self.world.after(self._rng.uniform(8.0, self.crowd.trouble_seconds - 2.0), call)

    def _fleet_troubles(self) -> tuple[tuple[Callable[[], None], int], ...]:
        if not self.fleet.models:
            return ()
        seconds = self.crowd.trouble_seconds
        self._node_troubles = Troubles(self.world, self.fleet.machines, self.users, seconds, NODE_TROUBLES)
        return (self.fleet.kill_worker, 6), (self.fleet.cancel_worker, 2), (self.fleet.serve_again, 2)

    def _name(self) -> str:
        return self._rng.choice([*(each.name for each in self.gateways), *(each.name for each in self._workers())])

    def _workers(self) -> list[Worker]:
        return list(self.world.workers.values())

    def _break_streams(self) -> None:
        name = self._name()
        self.world.note("network: the streams of {} break", name)
        self.world.network.break_streams(name)

    def _cut_off(self) -> None:
        name, seconds = self._name(), self._rng.choice((0.5, 2.0, 5.0, 12.0))
        self.world.note("network: {} is cut off for {} s", name, seconds)
        self.world.network.cut_off_node(name, seconds)

    def _arm_scheduler(self) -> None:
        if self.world.scheduler is not None:
            fault = self._rng.choice(STORE_FAULTS)
            self.world.note("scheduler: next, {}", fault)
            self.world.scheduler.faults.arm(fault, 1 if "crash" in fault else self._rng.randint(1, 4))

    def _crash_scheduler(self) -> None:
        if self.world.scheduler is not None:
            self.world.scheduler.crash()

    def _crash_gateway(self) -> None:
        self._rng.choice(self.gateways).crash()

    def _fail_model(self) -> None:
        if self._workers():
            self._rng.choice(self._workers()).fail()

    def _say_again(self) -> None:
        for worker in self._workers():
            worker.say_again()

    def _close_session(self) -> None:
        scheduler = self.world.scheduler
        if scheduler is None or not scheduler.state.durable.sessions.by_id:
            return
        session = self._rng.choice(list(scheduler.state.durable.sessions.by_id))
        self.world.closed.add(f"s{session}")
        scheduler.request(lambda at: CloseRequested(at=at, session=session, by=UserName("alice")), lambda reply: None)

    def _set_the_wall_clock(self) -> None:
        off = self._rng.choice((0.0, -0.4, 3.0, -7.0, 40.0, -1_000.0, 4_000.0))
        self.world.note("scheduler: its wall clock steps, and is off by {} s", off)
        self.world.wall_is_off = off
        if abs(off) > STEP_SECONDS:
            self.world.met.add("a wall clock that stepped")

    # --- the end

    def _heal(self) -> None:
        self.world.note("everything works again")
        self.world.is_healed = True
        self._healed_at = self.world.now
        self.world.network.heal()
        if self.world.scheduler is not None:
            self.world.scheduler.faults.clear()
        if self._node_troubles is not None:
            self._node_troubles.heal()
        self._start_scheduler()

    def _look(self) -> None:
        scheduler = self.world.scheduler
        if scheduler is not None:
            self.checks.look(scheduler)
        for worker in self._workers():
            if worker.is_by_hand and worker.state == DRAINING and not worker.held():
                self._end_worker(worker, 2.0)
        if self.world.is_healed:
            self.fleet.mend()
        if self.world.is_healed and scheduler is not None and self._is_over(scheduler):
            self.checks.at_the_end()
            self.loop.stop()
            return
        self.world.after(LOOK_SECONDS, self._look)

    def _is_over(self, scheduler: SchedulerProcess) -> bool:
        is_over = False
        if not any(self._still_here(scheduler)):
            self.fleet.stop_all()
            is_over = not any(self.checks.unfinished())
        self.users.settle(list(self.fleet.machines))
        if not is_over and self.world.now > self._healed_at + END_SECONDS_MAX:
            wrong = [*self._still_here(scheduler), *self.checks.unfinished()]
            raise Broken("it does not come to its end: " + "; ".join(wrong)[:2000])
        return is_over

    def _still_here(self, scheduler: SchedulerProcess) -> Iterator[str]:
        """People, sessions and turns that are not done, each described only when it is asked for."""
        yield from (f"{each} is here, {each.visit}" for each in self.people if not each.is_done)
        yield from self.checks.left_over(scheduler)
        yield from (f"{each.start} still has {each.held()}" for each in self._workers() if each.held())
