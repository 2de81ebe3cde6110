"""Sees to it that each visit is counted once, whatever happens to the scheduler or to the file; and reads them.

What is committed waits in memory for some seconds. What was never written (a crash, a full disk, a file that was lost)
is counted from the store's own records, as the account of what jobs held is (ledger.py).
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from ..ports import Commit, RecordStore, StoredRecord
from ..state.sessions.records import ClaimMissed, SessionEnded, SessionJoined, SessionRequeued, TurnGranted
from ..state.units import Instant, Span
from ..store.errors import StoreError
from .file import Accounted
from .history_file import TellsOnce
from .ledger import FIRST_KINDS, PAUSE_SECONDS, RECORDS_AT_ONCE, known_since
from .queries import unavailable
from .recorder import WRITE_SECONDS
from .visits import KINDS, Found, VisitFile

T = TypeVar("T")
log = logging.getLogger(__name__)
RECORDS_WAITING_MAX = 100_000
"""Records that may wait to be written; beyond them they are counted from the store later."""
READS_MAX = 16
"""Reads that are under way or wait for their turn; more are refused."""


class VisitLog:
    """The visits, as they are counted. `kept` is how long records of the store are kept."""

    def __init__(self, store: RecordStore, now: Callable[[], Instant], kept: Callable[[], Span], folder: Path) -> None:
        self._store = store
        self._now = now
        self._kept = kept
        self._file = VisitFile(folder)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="visits")
        self._waiting: list[StoredRecord] = []
        self._is_complete = False
        self._stored = 0
        self._reads = 0
        self._writing = asyncio.Lock()
        self._tells = TellsOnce(self._file.path)

    def take_commit(self, commit: Commit, sequence: int) -> None:
        """Take note of what was committed; `sequence` is that of its last record."""
        for number, record in enumerate(commit.records, sequence - len(commit.records) + 1):
            match record:
                case SessionJoined() | TurnGranted() | ClaimMissed() | SessionRequeued() | SessionEnded():
                    self._waiting.append(StoredRecord(sequence=number, at=record.at, record=record))
                case _:
                    pass
        if len(self._waiting) > RECORDS_WAITING_MAX:
            self._waiting.clear()
            self._is_complete = False

    async def run(self) -> None:
        """Write what waits, every few seconds, until cancelled."""
        while True:
            await self.write()
            await asyncio.sleep(WRITE_SECONDS)

    async def write(self) -> bool:
        """Write what waits; whether all is counted now. What cannot be written goes on waiting."""
        async with self._writing:
            try:
                await self._write()
            except (sqlite3.Error, OSError, StoreError) as error:
                self._tells.failed(str(error))
                self._is_complete = False
                return False
            self._tells.worked()
            return True

    async def _write(self) -> None:
        counted = await self._on_thread(self._file.accounted)
        is_known = counted is not None and self._stored <= counted.sequence and counted.is_of(self._store)
        if not self._is_complete or not is_known:
            await self._catch_up()
        elif self._waiting and counted is not None:
            newest = Accounted(self._waiting[-1].sequence, counted.known_since, self._store.lineage)
            await self._store_visits(self._waiting[:], newest)

    async def _store_visits(self, records: list[StoredRecord], accounted: Accounted) -> None:
        await self._on_thread(partial(self._file.write, records, accounted))
        self._stored = accounted.sequence
        self._waiting = [each for each in self._waiting if each.sequence > accounted.sequence]

    async def _catch_up(self) -> None:
        """Count the store's records from where the file knows of; a file of another history is begun anew."""
        counted = await self._on_thread(self._file.accounted)
        if counted is not None and not counted.is_of(self._store):
            log.warning("visits are counted anew: the store has not the history that was counted")
            await self._on_thread(self._file.forget)
            counted = None
        self._is_complete = True  # what is committed from here on waits, or is told by the store, or both
        while True:
            after = 0 if counted is None else counted.sequence
            page = await self._on_thread(partial(self._store.records_from, KINDS, after, RECORDS_AT_ONCE))
            if counted is None:
                first = await self._on_thread(partial(self._store.records_from, FIRST_KINDS, 0, 1))
                counted = Accounted(0, known_since(first, page, self._now(), self._kept()), self._store.lineage)
            counted = Accounted(page[-1].sequence if page else after, counted.known_since, self._store.lineage)
            await self._store_visits(page, counted)
            if len(page) < RECORDS_AT_ONCE:
                return
            await asyncio.sleep(PAUSE_SECONDS)

    async def read(self, begin: Instant, end: Instant, step: Span, model: str) -> tuple[Found, Instant]:
        """The visits of a span by model and step, and since when they are known. Errors: HISTORY_UNAVAILABLE."""
        if self._reads >= READS_MAX:
            raise unavailable(f"{self._reads} others ask for visits at this moment")
        self._reads += 1
        try:
            if not await self.write():
                raise unavailable("visits cannot be counted now")
            now = self._now()

            def answer() -> tuple[Found, Instant]:
                counted = self._file.accounted()
                return self._file.read(begin, end, step, model, now), counted.known_since if counted else now

            return await self._on_thread(answer)
        except (sqlite3.Error, OSError) as error:
            raise unavailable(f"visits cannot be read: {error}") from None
        finally:
            self._reads -= 1

    async def prune(self, before: Instant) -> int:
        """Drop visits from before an instant; how many. What the file refuses is tried later."""
        try:
            return await self._on_thread(partial(self._file.prune, before))
        except (sqlite3.Error, OSError) as error:
            self._tells.failed(str(error))
            return 0

    async def _on_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def close(self) -> None:
        """Let go of the file. What waits is counted from the store's records by the next start. Blocks."""
        self._thread.submit(self._file.close)
        self._thread.shutdown(wait=True)
