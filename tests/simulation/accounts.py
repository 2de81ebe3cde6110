"""The account of what attempts held, kept by each start of the scheduler, and what it must come to in the end."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from scheduler.engine import Engine
from scheduler.ports import Commit
from scheduler.series.accounts import Totals, UsageSpan
from scheduler.series.held import GROUPS
from scheduler.series.history_file import SCHEMA, HistoryFile
from scheduler.series.ledger import Ledger
from scheduler.series.recorder import Recorder
from scheduler.state.attempts import EndedAttempt
from scheduler.state.records import AttemptEnded, ItemsFinished, JobFinished
from scheduler.state.shares import WHOLE_MILLI
from scheduler.state.units import DAY, Instant, Span
from tests.simulation.world import Broken, World

if TYPE_CHECKING:
    from tests.simulation.disks import OpenStore, SimulatedStore

T = TypeVar("T")
WRITE_SECONDS = 5.0
KEPT = Span(36_500 * DAY)


class AccountsDisk(HistoryFile):
    """The file, in memory: what was written is there at the next start."""

    def __init__(self) -> None:
        super().__init__(Path())
        self._disk = sqlite3.connect(":memory:", isolation_level=None)
        self._disk.executescript(SCHEMA)
        self._made(self._disk)

    def _opened(self) -> sqlite3.Connection:
        return self._disk

    def close(self) -> None:
        """It stays: a scheduler that dies closes nothing."""

    def let_go(self) -> None:
        """The run is over."""
        self._disk.close()


class Accounts:
    """What one start of the scheduler records; of the recorder only its part of commits is there."""

    def __init__(self, world: World, disk: AccountsDisk, store: OpenStore, engine: Callable[[], Engine]) -> None:
        self._world = world
        self._rng = world.rng(f"accounts {store.term}")
        self._disk = disk
        self._store = store
        self._engine = engine
        self._recorder: Recorder | None = None

    def begin(self) -> None:
        """The engine is there."""
        engine = self._engine()
        self._recorder = Recorder.__new__(Recorder)
        self._recorder._view, self._recorder._running, self._recorder._waits = engine.view, {}, {}
        self._recorder.ledger = Ledger(self._disk, engine.view, self._store, engine.now, lambda: KEPT)

    def take(self, commit: Commit, sequence: int) -> None:
        """What the engine has committed."""
        assert self._recorder is not None
        self._recorder.take_commit(commit, sequence)

    async def run(self) -> None:
        """Write now and then, until the scheduler dies."""
        assert self._recorder is not None
        while True:
            await self._recorder.ledger.write(self._at_once)
            await asyncio.sleep(WRITE_SECONDS * self._rng.uniform(0.1, 3.0))

    async def _at_once(self, call: Callable[[], T]) -> T:
        """The thread of the file: it takes its time, too, and may die before or behind what it does."""
        await asyncio.sleep(self._rng.uniform(0.0001, 0.01))
        found = call()
        await asyncio.sleep(self._rng.uniform(0.0001, 0.01))
        return found

    def check(self, store: SimulatedStore) -> None:
        """Everything that ended is counted once, to the microsecond."""
        assert self._recorder is not None
        known = self._disk.accounted()
        waiting = self._recorder.ledger.waiting
        more = [hold for number, hold in waiting if known is None or number > known.sequence]
        expected = expected_of(store)
        for group in GROUPS:
            found = Totals()
            for each in self._disk.usage(more, UsageSpan(Instant(0), Instant(KEPT), KEPT), group, "").values():
                found.add_all(each.totals)
            told = (found.milli_us, found.jobs, found.starts)
            if told != expected:
                raise Broken(f"by {group} the account is {told} (device time, jobs, starts), and {expected} is true")


def expected_of(store: SimulatedStore) -> tuple[int, int, int]:
    """Device time in thousandths of a device × microseconds, jobs that ended, and attempts that started."""
    milli_us, jobs, starts = 0, 0, 0
    for _, record in store.story:
        match record:
            case AttemptEnded(ended=ended) | JobFinished(ended=EndedAttempt() as ended):
                devices = (device for rank in ended.ranks for device in rank.placement.devices)
                milli = sum(device.share_milli or WHOLE_MILLI for device in devices)
                # In a slot of a backlog it held nothing before it began.
                since = ended.placed_at if ended.slot is None else ended.ranks[0].started_at or ended.ended_at
                milli_us += milli * max(0, ended.ended_at - since)
                starts += ended.ranks[0].started_at is not None
            case ItemsFinished(spans=spans):
                jobs += sum(end - begin for begin, end in spans)
            case _:
                pass
        if isinstance(record, JobFinished) and store.finished[record.job].items is None:
            jobs += 1
    return milli_us, jobs, starts
