"""What every run of a simulation has: a world whose clock jumps, a store, an end, and nothing left of it behind."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import Any, Generic, TypeVar

from scheduler.core.story import sentence
from tests.simulation.disks import SimulatedOutputs, SimulatedStore
from tests.simulation.left import SimulatedPlace
from tests.simulation.loop import SimulatedLoop, StandStill
from tests.simulation.network import Network
from tests.simulation.scheduler import SchedulerProcess
from tests.simulation.world import Broken, World

W = TypeVar("W", bound=World)


class Run(Generic[W]):
    """One seed. `_away_seconds` says how long a scheduler that died is away, `_started` is told of each start."""

    def __init__(self, seed: int, make_world: type[W], *, is_traced: bool) -> None:
        self.loop = SimulatedLoop(lambda call, future: self.world.execute(call, future))
        self.loop.set_exception_handler(self._on_loop_problem)
        self.world = make_world(seed, self.loop, is_traced=is_traced)
        self.world.on_scheduler_death = self._restart_scheduler
        self.world.network = Network(self.world)
        self.store = SimulatedStore(self.world)
        self.outputs = SimulatedOutputs(self.world)
        self.place = SimulatedPlace(self.world)

    def _play(self) -> Broken | None:
        """Let everything happen that was planned; answers the rule that was broken, if any.

        What the programs would log is in the trace in other words.
        """
        logging.disable(logging.CRITICAL)
        try:
            self.loop.run_forever()
        except StandStill:
            self.world.fail(Broken("nothing happens any more"))
        finally:
            self._close()
            logging.disable(logging.NOTSET)
        return self.world.broken

    def digest(self) -> str:
        """The same for the same seed, whatever process it runs in."""
        lines = (f"{at:.6f} {sentence(record)}" for at, record in self.store.story)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    # --- the scheduler

    def _start_scheduler(self) -> None:
        if self.world.scheduler is None:
            self.world.scheduler = SchedulerProcess(self.world, self.store, self.outputs, self.place)
            self._started(self.world.scheduler)

    def _started(self, process: SchedulerProcess) -> None:
        pass

    def _restart_scheduler(self) -> None:
        self.world.after(self._away_seconds(), self._start_scheduler)

    def _away_seconds(self) -> float:
        raise NotImplementedError

    # --- the end

    def _close(self) -> None:
        """End every task, so that nothing is left for the garbage collector to complain of."""
        broken = self.world.broken
        self.world.broken = broken or Broken("")
        for _ in range(10):
            tasks = asyncio.all_tasks(self.loop)
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.close()
        if self.world.scheduler is not None:
            self.world.scheduler.close()
        self.store.accounts.let_go()
        self.store.folder.remove()
        self.world.broken = broken

    def _on_loop_problem(self, loop: Any, context: dict[str, Any]) -> None:
        problem = context.get("exception")
        if context.get("message", "").startswith("Exception in callback") and problem is not None:
            if isinstance(problem, Broken):
                self.world.fail(problem)
            else:
                self.world.fail_with(problem)
