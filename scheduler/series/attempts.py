"""The course of each attempt: a few hundred points a device, kept as its node sent them, the newest attempts only."""

import asyncio
import logging
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from gpufleet.telemetry.logs import fields

from ..state.ids import RankKey
from .file import open_or_move_aside

FILE = "series.db"
RANKS_KEPT = 20_000
"""Ranks whose course is kept; the oldest go first. With eight devices each takes some 50 kB."""
PRUNE_EVERY = 500
"""Ranks that are kept before the oldest are looked for again."""
WAITING_MAX = 2_000
"""Ranks that may wait to be written; beyond them a course is given up."""
SERIES_BYTES_MAX = 1_000_000
VERSION = 0
SCHEMA = """
CREATE TABLE IF NOT EXISTS rank_series
    (job INTEGER, attempt INTEGER, rank INTEGER, payload BLOB, UNIQUE (job, attempt, rank))
"""
ADD_LINEAGE = "ALTER TABLE rank_series ADD COLUMN lineage TEXT NOT NULL DEFAULT ''"
"""For files of before lineages, and new ones. Of attempts with the same numbers the newest course is kept."""

log = logging.getLogger(__name__)


class AttemptSeries:
    """A file and its thread. Payloads are opaque here."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="series")
        self._connection: sqlite3.Connection | None = None
        self._room = threading.Semaphore(WAITING_MAX)
        self._since_pruned = PRUNE_EVERY
        self._has_failed = False

    def keep(self, key: RankKey, payload: bytes) -> None:
        """Keep the course of a rank, soon; one that is told again takes the place of the one before."""
        if len(payload) > SERIES_BYTES_MAX or not self._room.acquire(blocking=False):
            self._note_failure("one was too large, or too many waited")
            return
        self._thread.submit(self._keep, key, payload)

    async def of(self, key: RankKey) -> dict[int, bytes]:
        """What is kept of an attempt, one of whose ranks this is, by rank; empty where nothing is or can be read."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._read, key)

    def close(self) -> None:
        """Write what waits, and let go of the file. Blocks."""
        self._thread.submit(self._let_go)
        self._thread.shutdown(wait=True)

    def _keep(self, key: RankKey, payload: bytes) -> None:
        self._room.release()
        try:
            with self._opened() as connection:
                row = (key.job, key.attempt, key.rank, payload, key.lineage)
                connection.execute("REPLACE INTO rank_series VALUES (?, ?, ?, ?, ?)", row)
                self._since_pruned += 1
                if self._since_pruned >= PRUNE_EVERY:
                    self._since_pruned = 0
                    connection.execute(
                        "DELETE FROM rank_series WHERE rowid <= (SELECT max(rowid) FROM rank_series) - ?", (RANKS_KEPT,)
                    )
        except (sqlite3.Error, OSError) as problem:
            self._note_failure(str(problem))

    def _read(self, key: RankKey) -> dict[int, bytes]:
        try:
            found = self._opened().execute(
                "SELECT rank, payload FROM rank_series WHERE job = ? AND attempt = ? AND lineage = ?",
                (key.job, key.attempt, key.lineage),
            )
            with closing(found):
                return {int(rank): bytes(payload) for rank, payload in found}
        except (sqlite3.Error, OSError) as problem:
            self._note_failure(str(problem))
            return {}

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = open_or_move_aside(self._file, SCHEMA, VERSION)
            columns = self._connection.execute("PRAGMA table_info(rank_series)").fetchall()
            if not any(name == "lineage" for _, name, *_ in columns):
                self._connection.execute(ADD_LINEAGE)
        return self._connection

    def _let_go(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _note_failure(self, why: str) -> None:
        """Once: what is wrong with one is wrong with the next, too."""
        if not self._has_failed:
            self._has_failed = True
            log.warning("courses of attempts are not kept", extra=fields(file=str(self._file), why=why))
