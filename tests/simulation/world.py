"""What everything in a simulation shares: the clock, chance, the trace, and the count of steps."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scheduler.worker_secrets import WorkerSecrets
from tests.simulation.loop import SimulatedLoop

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.checks import Checks
    from tests.simulation.network import Call, Network
    from tests.simulation.scheduler import SchedulerProcess


class Broken(AssertionError):
    """A rule was broken; `job` is whose story to tell."""

    def __init__(self, what: str, job: int | None = None) -> None:
        super().__init__(what)
        self.job = job


class World:
    """One seed gives one world: each part draws from its own chance, so that one more draw here moves nothing there."""

    network: Network
    checks: Checks
    scheduler: SchedulerProcess | None = None
    worker_secrets = WorkerSecrets(bytes(32))
    """Every start of the scheduler finds the same key."""
    is_healed = False
    wall_is_off = 0.0
    """By so many seconds the wall clock of the scheduler's machine is wrong now."""

    def __init__(self, seed: int, loop: SimulatedLoop, *, is_traced: bool = False) -> None:
        self.seed = seed
        self.loop = loop
        self.steps = 0
        self.broken: Broken | None = None
        self.is_traced = is_traced
        """Whether anybody will read the trace."""
        self.trace: list[str] = []
        self.met: set[str] = set()

    def rng(self, part: str) -> random.Random:
        return random.Random(f"{self.seed} {part}")

    @property
    def now(self) -> float:
        return self.loop.now

    def at(self, when: float, call: Callable[..., None], *arguments: Any) -> None:
        self.loop.call_at(when, self._step, call, arguments)

    def after(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        self.loop.call_at(self.loop.now + seconds, self._step, call, arguments)

    def _step(self, call: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """One thing happens. The first rule that is broken ends the run."""
        self.steps += 1
        if self.broken is not None:
            return
        try:
            call(*arguments)
        except Broken as broken:
            self.fail(broken)
        except Exception as problem:
            problem.add_note(f"at {self.now:.6f} in {call}")
            self.fail_with(problem)

    def fail(self, broken: Broken) -> None:
        if self.broken is None:
            self.broken = broken
            self.loop.stop()

    def fail_with(self, problem: BaseException) -> None:
        """A program in the simulation raised what it must not raise."""
        broken = Broken(f"{type(problem).__name__}: {problem}")
        broken.__cause__ = problem
        self.fail(broken)

    # --- the way to the scheduler, whichever process it is

    def execute(self, call: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        """A call on a thread of the scheduler; of a dead one nothing is executed."""
        if self.scheduler is not None:
            self.scheduler.execute(call, future, self.is_healed)

    def serve(self, method: str, call: Call) -> None:
        """An agent opens a stream; where nobody listens it breaks, and where another start of the scheduler does.

        What is sent on a connection reaches the process that it was made with, or nobody: gRPC sends no call before the
        other side has spoken, and an agent closes a connection before it dials again.
        """
        self.network.open(call)
        if not self.network.is_reachable(call.node):
            call.up.stall()
        self.after(self.network.delay(), self._serve, method, call, self.scheduler)

    def _serve(self, method: str, call: Call, dialled: SchedulerProcess | None) -> None:
        if dialled is None or dialled is not self.scheduler:
            call.break_()
        else:
            dialled.serve(method, call)

    def register(self, agent: Agent, number: int, request: Any) -> None:
        """An agent's registration arrives; where nobody listens the agent hears so."""
        if self.scheduler is None:
            self.met.add("a scheduler that was away")
            self.after(self.network.delay(), agent.registered, number, None)
        else:
            self.scheduler.register(
                request, lambda answer: self.after(self.network.delay(), agent.registered, number, answer)
            )

    def scheduler_died(self, process: SchedulerProcess) -> None:
        if self.scheduler is process:
            self.scheduler = None
            self.on_scheduler_death()

    on_scheduler_death: Callable[[], None]

    def note(self, what: str, *arguments: object) -> None:
        """Write down what happened, if anybody will read it."""
        if self.is_traced:
            self.trace.append(f"{self.now:11.6f} {what.format(*arguments)}")
