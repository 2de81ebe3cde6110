"""Stores that are put back while a drill goes on: a copy is taken, and some time later it is all there is.

As with faults, when is a pure function of the seed. A copy is taken while the scheduler runs, as a backup is.
"""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tests.drills.beside import Outsider
from tests.drills.injector import Injector
from tests.several_nodes.fleet import SpreadFleet

FIRST_SECONDS, LAST_SECONDS = 15.0, 25.0
"""None begins before the one, or ends in the last of the other."""

GAP_SECONDS = (5.0, 15.0)
SECONDS_PER_RESTORE = 120.0
ACCEPT: tuple[str, ...] = ("--accept-restored",)
CUTS = "cuts.jsonl"
DATABASE = "scheduler.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """A copy is taken `at` seconds from the start, and put back `seconds` later."""

    at: float
    seconds: float

    def __str__(self) -> str:
        return f"{self.at:7.1f}s  store: a copy, put back after {self.seconds:.1f} s"


def restores(seed: int, seconds: float) -> tuple[Restore, ...]:
    """What is put back in a drill of so many seconds: one at least where there is room, none within another."""
    rng = random.Random(f"restores {seed}")
    room = seconds - FIRST_SECONDS - LAST_SECONDS
    count = max(1, round(seconds / SECONDS_PER_RESTORE))
    if room / count < GAP_SECONDS[1]:
        return ()
    found: list[Restore] = []
    for number in range(count):
        gap = rng.uniform(*GAP_SECONDS)
        begin = FIRST_SECONDS + room / count * number
        at = rng.uniform(begin, begin + room / count - gap)
        found.append(Restore(at=round(at, 1), seconds=round(gap, 1)))
    return tuple(found)


class Restoring:
    """Carries them out, and tells everybody as an operator would."""

    def __init__(self, fleet: SpreadFleet, injector: Injector, outsider: Outsider, folder: Path) -> None:
        self._fleet = fleet
        self._injector = injector
        self._outsider = outsider
        self._folder = folder

    async def carry_out(self, plan: Sequence[Restore]) -> None:
        """Let all of it happen."""
        start = time.monotonic()
        for number, restore in enumerate(plan, 1):
            await asyncio.sleep(max(0.0, start + restore.at - time.monotonic()))
            await self._put_back(self._folder / f"copy{number}.db", restore.seconds)

    async def _put_back(self, copy: Path, seconds: float) -> None:
        database = self._fleet.scheduler.data / DATABASE
        since = _now_ns()
        await asyncio.to_thread(_copy, database, copy)
        await asyncio.sleep(seconds)
        async with self._injector.without_scheduler(*ACCEPT):
            until = _now_ns()
            await asyncio.to_thread(_replace, database, copy)
            told = {"since_ns": since, "until_ns": until}
            with (self._folder / CUTS).open("a") as file:
                file.write(json.dumps(told) + "\n")
            self._outsider.tell("cut", **told)


def _copy(database: Path, copy: Path) -> None:
    """What is committed now, with the scheduler running or not."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as source, closing(sqlite3.connect(copy)) as to:
        source.backup(to)


def _replace(database: Path, copy: Path) -> None:
    for suffix in ("-wal", "-shm"):
        database.with_name(DATABASE + suffix).unlink(missing_ok=True)
    copy.replace(database)


def _now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
