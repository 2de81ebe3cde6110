"""Carries the plan out on a fleet of real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from tests.drills.faults import SCHEDULER, Fault, Kind
from tests.drills.links import Links
from tests.e2e.processes import Program
from tests.several_nodes.fleet import SpreadFleet

LOOK_SECONDS = 0.2
LATE_SECONDS_MAX = 2.0
"""A fault that would come later than this is left out."""


class Injector:
    """Faults of a fleet, and an eye on programs that leave although nobody killed them."""

    def __init__(self, fleet: SpreadFleet, links: Links) -> None:
        self._fleet = fleet
        self._links = links
        self._killed: set[str] = set()
        self._in_turn: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.surprises: list[str] = []
        self.left_out: list[Fault] = []

    async def carry_out(self, plan: Sequence[Fault]) -> None:
        """Let all of it happen, and return once all of it is over and every program runs."""
        start = time.monotonic()
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self.watch())
            async with asyncio.TaskGroup() as faults:
                for fault in plan:
                    faults.create_task(self._at(start, fault))
            watching.cancel()

    async def watch(self) -> None:
        """Note a program that left by itself, and start it again: the drill goes on."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for name, program in [(SCHEDULER, self._fleet.scheduler), *self._agents()]:
                process = program.process
                if name in self._killed or process is None or (code := process.poll()) is None:
                    continue
                async with self._in_turn[name]:
                    if program.process is not process:
                        continue  # somebody's turn was to kill it, and to start it again
                    self.surprises.append(f"{program.name} left by itself with {code}: {program.tail()[-2000:]}")
                    program.process = None
                    await self._begin(name)

    @asynccontextmanager
    async def without_scheduler(self, *flags: str) -> AsyncIterator[None]:
        """The scheduler is killed, and started again behind the block with these flags; nothing else happens to it."""
        async with self._in_turn[SCHEDULER]:
            self._killed.add(SCHEDULER)
            scheduler = self._fleet.scheduler
            scheduler.kill()
            yield
            usual, scheduler.flags = scheduler.flags, [*scheduler.flags, *flags]
            await scheduler.start()
            scheduler.flags = usual
            self._killed.discard(SCHEDULER)

    def _agents(self) -> list[tuple[str, Program]]:
        return [(f"agent {name}", agent) for name, agent in self._fleet.agents.items()]

    async def _at(self, start: float, fault: Fault) -> None:
        await asyncio.sleep(max(0.0, start + fault.at - time.monotonic()))
        # On a slow machine what was killed may not be back when its next turn has come, and gets time to breathe then.
        async with self._in_turn[fault.target]:
            if time.monotonic() - start > fault.at + LATE_SECONDS_MAX:
                self.left_out.append(fault)
                return
            await self._carry_out(fault)

    async def _carry_out(self, fault: Fault) -> None:
        match fault.part, fault.kind:
            case "link", _:
                await self._links.spoil(fault)
                try:
                    await asyncio.sleep(fault.seconds)
                finally:
                    self._links.mend(fault)
            case "keeper", Kind.KILL:
                for pid in self._fleet.agents[fault.node].keeper_pids():
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            case _, Kind.PAUSE:
                await self._pause(fault)
            case _, Kind.KILL:
                await self._kill(fault)
            case _:
                raise AssertionError(f"no such fault: {fault}")

    async def _kill(self, fault: Fault) -> None:
        program = self._program(fault)
        self._killed.add(fault.target)
        program.kill()
        await asyncio.sleep(fault.seconds)
        await self._begin(fault.target)
        self._killed.discard(fault.target)

    async def _begin(self, target: str) -> None:
        if target == SCHEDULER:
            await self._fleet.scheduler.start()
        else:
            self._fleet.agents[target.partition(" ")[2]].spawn()

    async def _pause(self, fault: Fault) -> None:
        if fault.part == "keeper":
            pids = self._fleet.agents[fault.node].keeper_pids()
        else:
            pids = [self._program(fault).pid]
        try:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(fault.seconds)
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _program(self, fault: Fault) -> Program:
        return self._fleet.scheduler if fault.target == SCHEDULER else self._fleet.agents[fault.node]
