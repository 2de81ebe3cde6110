"""One run: a fleet, its people, what goes wrong, and in the end *heal, then it must converge*."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from dataclasses import dataclass
from typing import Any

from gpufleet.v1 import node_pb2

from scheduler.core.story import sentence
from scheduler.state.jobs import Finished
from scheduler.state.records import AttemptEnded, AttemptVoided, JobFinished, JobWarned, job_of
from scheduler.state.units import SECOND
from tests.simulation.checks import Checks
from tests.simulation.disks import NodeDisk, SimulatedOutputs, SimulatedStore
from tests.simulation.faults import Troubles
from tests.simulation.loop import SimulatedLoop, StandStill
from tests.simulation.machine import Machine
from tests.simulation.network import Network
from tests.simulation.scheduler import LIMITS, SchedulerProcess
from tests.simulation.users import RUN_SECONDS_MAX, Users
from tests.simulation.world import Broken, World

JOBS = 40
SUBMIT_SECONDS = 150.0
TROUBLE_SECONDS = 240.0
LOOK_SECONDS = 5.0

QUIET_SECONDS_MAX = RUN_SECONDS_MAX + LIMITS.unreachable_span / SECOND
"""Once all works again, something is stored at least this often until all has ended: the longest run and the longest
span of a rule may follow each other, and nothing else takes as long."""

DRIFT_MAX = 0.009
"""Clocks of nodes run at most 1 % faster or slower than the scheduler's, which is what the fence allows for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a run. `broken` is None when every rule held."""

    seed: int
    steps: int
    commits: int
    seconds: float
    broken: Broken | None
    trace: tuple[str, ...]
    story: tuple[str, ...]
    jobs: int
    """Jobs that ended, as the store tells it: arrays and their items among them."""
    asked: int
    """Jobs that were asked for and not refused."""
    digest: str
    """The same for the same seed, whatever process it runs in."""


def simulate(seed: int, *, is_traced: bool = False) -> Outcome:
    """Run one seed to its end."""
    return Simulation(seed, is_traced=is_traced).run()


class Simulation:
    """Five nodes, forty jobs, and everything that can go wrong."""

    def __init__(self, seed: int, *, is_traced: bool = False) -> None:
        self.loop = SimulatedLoop(lambda call, future: self.world.execute(call, future))
        self.loop.set_exception_handler(self._on_loop_problem)
        self.world = World(seed, self.loop, is_traced=is_traced)
        self.world.on_scheduler_death = self._restart_scheduler
        self.world.network = Network(self.world)
        self.store = SimulatedStore(self.world)
        self.outputs = SimulatedOutputs(self.world)
        self._rng = self.world.rng("fleet")
        self.machines = {machine.name: machine for machine in self._fleet()}
        self.world.checks = Checks(self.world, self.store, self.outputs, self.machines)
        self.users = Users(self.world, JOBS, SUBMIT_SECONDS)
        self.troubles = Troubles(self.world, self.machines, self.users, TROUBLE_SECONDS)
        self._converged_by = 0.0
        self._records_seen = 0
        self._records_seen_at = 0.0

    def _fleet(self) -> list[Machine]:
        return [
            self._machine("n1", gpus=4, cpus=8, is_virtual=False),
            self._machine("n2", gpus=4, cpus=8, is_virtual=False),
            self._machine("n3", gpus=3, cpus=6, is_virtual=True),
            self._machine("n4", gpus=3, cpus=6, is_virtual=True),
            self._machine("n5", gpus=0, cpus=6, is_virtual=True),
        ]

    def _machine(self, name: str, *, gpus: int, cpus: int, is_virtual: bool) -> Machine:
        devices = [
            node_pb2.Device(
                uuid=f"{name}-gpu{index}", index=index, name="GPU", memory_bytes=16 * 10**9, is_virtual=is_virtual
            )
            for index in range(gpus)
        ]
        return Machine(
            world=self.world,
            name=name,
            info=node_pb2.NodeInfo(hostname=name, cpus=cpus, memory_bytes=64 * 10**9, devices=devices),
            rate=1.0 + self._rng.uniform(-DRIFT_MAX, DRIFT_MAX),
            disk=NodeDisk(agent_id=f"agent-{name}"),
        )

    def run(self) -> Outcome:
        """Run it; what the programs would log is in the trace in other words."""
        logging.disable(logging.CRITICAL)
        try:
            return self._run()
        finally:
            logging.disable(logging.NOTSET)

    def _run(self) -> Outcome:
        self.world.after(0.0, self._start_scheduler)
        for machine in self.machines.values():
            self.world.after(self._rng.uniform(0.1, 3.0), machine.start_agent)
        self.world.after(TROUBLE_SECONDS, self._heal)
        try:
            self.loop.run_forever()
        except StandStill:
            self.world.fail(Broken("nothing happens any more"))
        finally:
            self._close()
        broken = self.world.broken
        accepted = [each for each in self.users.submissions if not each.refusal]
        return Outcome(
            seed=self.world.seed,
            steps=self.world.steps,
            commits=self.store.commits,
            seconds=self.world.now,
            broken=broken,
            trace=tuple(self.world.trace),
            story=tuple(self.story(broken.job)) if broken is not None and broken.job is not None else (),
            jobs=sum(self._has_ended(job) for each in accepted for job in range(each.job, each.job + each.size)),
            asked=sum(each.size for each in accepted),
            digest=self._digest(),
        )

    def _has_ended(self, number: int) -> bool:
        job = self.store.job(number)
        return job is not None and isinstance(job.state, Finished)

    def story(self, job: int) -> list[str]:
        """What is stored about a job, in order."""
        return [f"{at:11.6f} {sentence(record)}" for at, record in self.store.story if job_of(record) == job]

    def corners(self) -> set[str]:
        """What this run has met, for those who ask whether the runs meet enough."""
        seen: set[str] = set(self.world.met)
        for _, record in self.store.story:
            name = type(record).__name__
            match record:
                case AttemptEnded(ended=ended):
                    seen.add(f"{name} {ended.reason}")
                case AttemptVoided(reason=reason):
                    seen.add(f"{name} {reason}")
                case JobFinished(finished=finished, ended=last):
                    seen.add(f"{name} {finished.reason}")
                    if last is not None and not last.output_is_complete:
                        seen.add("output incomplete")
                case JobWarned(warning=warning):
                    seen.add(f"{name} {warning.kind.value}")
                case _:
                    seen.add(name)
        return seen

    def _digest(self) -> str:
        lines = (f"{at:.6f} {sentence(record)}" for at, record in self.store.story)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    # --- the scheduler

    def _start_scheduler(self) -> None:
        if self.world.scheduler is None:
            self.world.scheduler = SchedulerProcess(self.world, self.store, self.outputs)

    def _restart_scheduler(self) -> None:
        self.world.after(self.troubles.scheduler_away_seconds(), self._start_scheduler)

    # --- the end

    def _heal(self) -> None:
        """Nothing goes wrong any more; now all must come to its end."""
        self.world.note("everything works again")
        self.world.is_healed = True
        self.world.network.heal()
        self.troubles.heal()
        self._start_scheduler()
        self._converged_by = self.world.now + QUIET_SECONDS_MAX + self.users.seconds_left()
        self.world.after(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        unfinished = self.world.checks.unfinished()
        unanswered = [each.request_id for each in self.users.submissions if not each.job and not each.refusal]
        if not unfinished and not unanswered:
            self.world.checks.at_the_end()
            self.loop.stop()
            return
        if len(self.store.story) > self._records_seen:
            self._records_seen, self._records_seen_at = len(self.store.story), self.world.now
        quiet_seconds = self.world.now - self._records_seen_at
        if quiet_seconds > QUIET_SECONDS_MAX:
            why = f"nothing was stored for {quiet_seconds:.0f} s"
        elif self.world.now > self._converged_by:
            why = "there was time for all of it one after another"
        else:
            self.users.settle(list(self.machines))
            self.world.after(LOOK_SECONDS, self._look)
            return
        job = next((int(word.split()[1]) for word in unfinished if word.startswith("job ")), None)
        raise Broken(f"it does not converge, and {why}: " + "; ".join([*unfinished, *unanswered])[:2000], job)

    def _close(self) -> None:
        """End every task, so that nothing is left for the garbage collector to complain of."""
        self.world.broken = self.world.broken or Broken("")
        is_fine = not str(self.world.broken)
        self._cancel_all()
        self.loop.close()
        self.store.accounts.let_go()
        if is_fine:
            self.world.broken = None

    def _cancel_all(self) -> None:
        for _ in range(10):
            tasks = asyncio.all_tasks(self.loop)
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

    def _on_loop_problem(self, loop: Any, context: dict[str, Any]) -> None:
        problem = context.get("exception")
        if context.get("message", "").startswith("Exception in callback") and problem is not None:
            if isinstance(problem, Broken):
                self.world.fail(problem)
            else:
                self.world.fail_with(problem)
