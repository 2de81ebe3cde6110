"""The people of a takeover drill, a program on a machine of their own: `python customers.py EVENTS ADDRESSES RATE`.

They submit jobs through `gpufleet.connect_async` at an even rate and follow each to its end, until standard input
ends; then those that are followed are waited for. What they meet is written as JSON lines, times by CLOCK_MONOTONIC,
which all programs of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import IO, Any

import gpufleet
from gpufleet.api.fleet import AsyncFleet
from gpufleet.errors import GpufleetError

LINES, BURSTS = 20, 4
BURST_PAUSE = "0.5"
UNDER_WAY_MAX = 400
"""Jobs that are submitted or followed at once; nobody submits more meanwhile."""

SCRIPT = (
    'echo "$GPUFLEET_JOB_ID.$GPUFLEET_ATTEMPT" >> "$RUNS"; n=0; '
    f'while [ $n -lt {LINES} ]; do echo "$GPUFLEET_JOB_ID line $n"; n=$((n+1)); '
    f"[ $((n % {LINES // BURSTS})) -ne 0 ] || sleep {BURST_PAUSE}; done"
)
"""Says in a file of its node that it ran, and prints its lines, some at a time: it is cheap for the machine."""


def expected_of(job_id: int) -> str:
    """What a job prints."""
    return "".join(f"{job_id} line {number}\n" for number in range(LINES))


class Customers:
    """All of them: what they do, and the file of what they met."""

    def __init__(self, fleet: AsyncFleet, events: IO[str], runs: str) -> None:
        self._fleet = fleet
        self._events = events
        self._runs = runs
        self._room = asyncio.Semaphore(UNDER_WAY_MAX)

    async def run(self, per_s: float) -> None:
        """Submit until standard input ends, and follow all to their ends."""
        is_over = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin.fileno(), is_over.set)
        async with asyncio.TaskGroup() as under_way:
            next_at = time.monotonic()
            while not is_over.is_set():
                await self._room.acquire()
                under_way.create_task(self._one())
                next_at = max(next_at + 1 / per_s, time.monotonic())
                try:
                    async with asyncio.timeout(next_at - time.monotonic()):
                        await is_over.wait()
                except TimeoutError:
                    pass
        loop.remove_reader(sys.stdin.fileno())

    async def _one(self) -> None:
        began = time.monotonic()
        try:
            job = await self._fleet.submit(["sh", "-c", SCRIPT], cpus=1, env={"RUNS": self._runs})
        except GpufleetError as problem:
            self._say(refused=problem.reason.name, began=began)
            self._room.release()
            return
        self._say(job=job.id, began=began, acknowledged=time.monotonic())
        try:
            lines = [line async for line in job.logs(follow=True)]
            await job.wait()
            is_whole = "".join(lines) == expected_of(job.id)
            self._say(followed=job.id, is_whole=is_whole, bytes=sum(map(len, lines)), state=job.state)
        except GpufleetError as problem:
            self._say(lost=job.id, why=f"{problem.reason.name}: {problem.message}")
        finally:
            self._room.release()

    def _say(self, **said: Any) -> None:
        self._events.write(json.dumps({"at": time.monotonic(), **said}) + "\n")
        self._events.flush()


async def be_customers(events: IO[str], addresses: str, per_s: float, runs: str) -> None:
    """Submit and follow until standard input ends."""
    async with gpufleet.connect_async(addresses, insecure=True) as fleet:
        await Customers(fleet, events, runs).run(per_s)


def main() -> None:
    """Read the command line."""
    events, addresses, per_s, runs = sys.argv[1:]
    with Path(events).open("a") as file:
        asyncio.run(be_customers(file, addresses, float(per_s), runs))


if __name__ == "__main__":
    main()
