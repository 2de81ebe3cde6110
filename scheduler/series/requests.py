"""What people's requests to served programs came to, as gateways count them: by user, program and five minutes.

Nobody else knows of these requests, so they follow from no record of the store. A gateway numbers its batches and sends
each until it is answered; the number stands in the file beside what the batch said, in the same transaction, and one
that comes again is known by it. Methods of the file block, for one thread.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from ..state.ids import ModelName, UserName
from ..state.units import Instant, Span
from .accounts import bucket_of
from .file import SeriesFile
from .history_file import DELETED_MAX, TellsOnce
from .queries import unavailable

T = TypeVar("T")

FILE = "requests.db"
VERSION = 1
ROWS_MAX = 1_000_000
"""Beyond it the oldest rows are dropped; each takes some 100 bytes."""
STARTS_MAX = 1_000
"""Starts of gateways whose newest batch is known; the one that was not heard for the longest is forgotten."""
CALLS_MAX = 64
"""Calls that are under way or wait for their turn; more are refused, and come again."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS request (
    begin_us INTEGER NOT NULL, model TEXT NOT NULL, user TEXT NOT NULL, requests INTEGER NOT NULL,
    failed INTEGER NOT NULL, prompt INTEGER NOT NULL, completion INTEGER NOT NULL, unknown INTEGER NOT NULL,
    duration_us INTEGER NOT NULL, PRIMARY KEY (begin_us, model, user)
);
CREATE TABLE IF NOT EXISTS fallback (
    begin_us INTEGER NOT NULL, model TEXT NOT NULL, user TEXT NOT NULL, requests INTEGER NOT NULL,
    PRIMARY KEY (begin_us, model, user)
);
CREATE TABLE IF NOT EXISTS batch (start TEXT PRIMARY KEY, sequence INTEGER NOT NULL, told_us INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS known (id INTEGER PRIMARY KEY CHECK (id = 1), since_us INTEGER NOT NULL);
"""
_SUMS = ("requests", "failed", "prompt", "completion", "unknown", "duration_us")
_ADD = f"""INSERT INTO request VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (begin_us, model, user)
    DO UPDATE SET {", ".join(f"{each} = {each} + excluded.{each}" for each in _SUMS)}"""
_ADD_FALLBACKS = """INSERT INTO fallback VALUES (?, ?, ?, ?) ON CONFLICT (begin_us, model, user)
    DO UPDATE SET requests = requests + excluded.requests"""
"""In a table of their own: a file of a version before has none."""
_NOTE = """INSERT INTO batch VALUES (?, ?, ?) ON CONFLICT (start)
    DO UPDATE SET sequence = excluded.sequence, told_us = excluded.told_us"""
_FORGET = "DELETE FROM batch WHERE start NOT IN (SELECT start FROM batch ORDER BY told_us DESC, start LIMIT ?)"
_READ = f"""SELECT model, user, {", ".join(f"sum({each})" for each in (*_SUMS, "fallbacks"))} FROM (
    SELECT *, 0 AS fallbacks FROM request
    UNION ALL SELECT begin_us, model, user, 0, 0, 0, 0, 0, 0, requests FROM fallback)
    WHERE begin_us >= ?1 AND begin_us < ?2 AND (?3 = '' OR user = ?3) AND (?4 = '' OR model = ?4)
    GROUP BY model, user"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSums:
    """What the requests of a user to a program come to; without a user, those of people who were not logged in.

    `fallbacks` preferred a GPU of the program and went to its CPU model, whose requests they are.
    """

    model: ModelName
    user: UserName
    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    unknown: int = 0
    duration: Span = Span(0)
    fallbacks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one start of a gateway tells at a time."""

    gateway_start: str
    sequence: int
    rows: tuple[RequestSums, ...]


class RequestFile(SeriesFile):
    """Sums of requests, with the one connection to them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / FILE, SCHEMA, VERSION)

    def count(self, batch: Batch, at: Instant) -> bool:
        """Count a batch that was told at an instant; False for one that is counted already."""
        connection = self._opened()
        # A gateway forgets a batch once it is answered: a power cut must not lose it then.
        connection.execute("PRAGMA synchronous = FULL")
        known = connection.execute("SELECT sequence FROM batch WHERE start = ?", (batch.gateway_start,)).fetchone()
        if known is not None and batch.sequence <= known[0]:
            return False
        begin = bucket_of(at)
        rows = [_stored(each, begin) for each in batch.rows if each != _only_fallbacks(each)]
        fallbacks = [(begin, each.model, each.user, each.fallbacks) for each in batch.rows if each.fallbacks]
        self._do(
            connection,
            partial(connection.executemany, _ADD, rows),
            partial(connection.executemany, _ADD_FALLBACKS, fallbacks),
            partial(connection.execute, _NOTE, (batch.gateway_start, batch.sequence, at)),
            partial(connection.execute, _FORGET, (STARTS_MAX,)),
        )
        return True

    def known_since(self, now: Instant) -> Instant:
        """Since when all is counted: since now in a new file."""
        connection = self._opened()
        connection.execute("INSERT OR IGNORE INTO known VALUES (1, ?)", (now,))
        (since,) = connection.execute("SELECT since_us FROM known").fetchone()
        return Instant(since)

    def read(self, begin: Instant, end: Instant, user: str, model: str) -> list[RequestSums]:
        """What is counted in a span, by user and program; those with the most tokens, then requests, first."""
        found = self._opened().execute(_READ, (bucket_of(begin), end, user, model)).fetchall()
        rows = [
            RequestSums(
                model=ModelName(name),
                user=UserName(who),
                requests=requests,
                failed=failed,
                prompt_tokens=prompt,
                completion_tokens=completion,
                unknown=unknown,
                duration=Span(duration_us),
                fallbacks=fallbacks,
            )
            for name, who, requests, failed, prompt, completion, unknown, duration_us, fallbacks in found
        ]
        return sorted(rows, key=_most_first)

    def prune(self, before: Instant) -> int:
        """Drop rows from before an instant, and the oldest beyond ROWS_MAX, DELETED_MAX at most; how many."""
        connection = self._opened()
        (count,) = connection.execute("SELECT count(*) FROM request").fetchone()
        oldest = "SELECT rowid, begin_us FROM request WHERE begin_us < ? OR ? > 0 ORDER BY begin_us LIMIT ?"
        excess = min(DELETED_MAX, max(0, count - ROWS_MAX))
        found = connection.execute(oldest, (before, excess, excess or DELETED_MAX)).fetchall()
        since = found[-1][1] + 1 if found else before
        old_fallbacks = connection.execute("SELECT 1 FROM fallback WHERE begin_us < ? LIMIT 1", (since,)).fetchone()
        if not found and old_fallbacks is None:
            return 0

        def drop() -> None:
            connection.execute("DELETE FROM fallback WHERE begin_us < ?", (since,))
            connection.executemany("DELETE FROM request WHERE rowid = ?", [(rowid,) for rowid, _ in found])
            connection.execute("UPDATE known SET since_us = max(since_us, ?)", (since,))

        self._do(connection, drop)
        return len(found)


def _only_fallbacks(sums: RequestSums) -> RequestSums:
    """What a row is that counts nothing else."""
    return RequestSums(model=sums.model, user=sums.user, fallbacks=sums.fallbacks)


def _stored(sums: RequestSums, begin: Instant) -> tuple[object, ...]:
    return (
        begin,
        sums.model,
        sums.user,
        sums.requests,
        sums.failed,
        sums.prompt_tokens,
        sums.completion_tokens,
        sums.unknown,
        sums.duration,
    )


def _most_first(sums: RequestSums) -> tuple[int, int, str, str]:
    return -(sums.prompt_tokens + sums.completion_tokens), -sums.requests, sums.model, sums.user


class RequestLog:
    """The requests, as gateways tell them; `now` is the scheduler's clock."""

    def __init__(self, now: Callable[[], Instant], folder: Path) -> None:
        self._now = now
        self._file = RequestFile(folder)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="requests")
        self._calls = 0
        self._tells = TellsOnce(self._file.path)

    async def count(self, batch: Batch) -> bool:
        """Count a batch, once: False for one that is counted already. Errors: HISTORY_UNAVAILABLE."""
        at = self._now()

        def count() -> bool:
            self._file.known_since(at)
            return self._file.count(batch, at)

        return await self._done(count)

    async def read(self, begin: Instant, end: Instant, user: str, model: str) -> tuple[Sequence[RequestSums], Instant]:
        """What was counted in a span, and since when it is known. Errors: HISTORY_UNAVAILABLE."""
        now = self._now()
        return await self._done(lambda: (self._file.read(begin, end, user, model), self._file.known_since(now)))

    async def prune(self, before: Instant) -> int:
        """Drop what is from before an instant; how many rows. What the file refuses is tried later."""
        try:
            return await self._on_thread(partial(self._file.prune, before))
        except (sqlite3.Error, OSError) as error:
            self._tells.failed(str(error))
            return 0

    async def _done(self, call: Callable[[], T]) -> T:
        if self._calls >= CALLS_MAX:
            raise unavailable(f"{self._calls} others count or ask for requests at this moment")
        self._calls += 1
        try:
            found = await self._on_thread(call)
        except (sqlite3.Error, OSError) as error:
            self._tells.failed(str(error))
            raise unavailable(f"requests cannot be counted now: {error}") from None
        finally:
            self._calls -= 1
        self._tells.worked()
        return found

    async def _on_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def close(self) -> None:
        """Let go of the file. Blocks."""
        self._thread.submit(self._file.close)
        self._thread.shutdown(wait=True)
