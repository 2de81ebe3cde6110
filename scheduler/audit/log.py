"""The rows on their way into the store: a bounded queue on the event loop, and one writer a second behind.

A call adds a row and goes on. While the store takes none, rows wait as long as there is room; those that find none are
counted, and the count is a row, once there is room again. What waits at an orderly stop is written then.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Protocol, TypeVar

from gpufleet.telemetry.logs import fields

from ..clock import is_set_within
from ..state.audited import AuditedCall, AuditQuery, AuditRow
from ..state.units import Instant
from ..store.errors import StoreError, StoreUnavailable, TermSuperseded
from .limits import Thinning

T = TypeVar("T")
log = logging.getLogger(__name__)

ROWS_WAITING_MAX = 20_000
"""Rows that may wait to be written; further ones are counted."""

ROWS_AT_ONCE = 500
"""Rows of one transaction, so that a commit never waits long behind it."""

WRITE_SECONDS = 1.0
"""How long a row waits, at most, before it is written, while the store takes rows."""

PAUSE_SECONDS_MAX = 5.0
"""How long at most until the store is asked again that took none."""

PRUNE_SECONDS = 60.0
"""How often old rows are looked for; while there are many, some go every WRITE_SECONDS."""

LOST = "(rows lost)"
"""The name of the row that tells of rows for which there was no room."""


class AuditStore(Protocol):
    """What of the store keeps rows. Methods block. Errors: those of the store."""

    def newest_audit_sequence(self) -> int:
        """The sequence of the newest row; 0 where there is none."""
        ...

    def write_audit(self, rows: list[AuditRow]) -> None:
        """Make rows durable; those that are there already stay."""
        ...

    def audit_rows(self, query: AuditQuery) -> list[AuditRow]:
        """A page, newest first."""
        ...

    def prune_audit(self, before: Instant, rows_max: int) -> int:
        """Drop some that are too old or too many; how many."""
        ...


class MeetsDamage(Protocol):
    """Awaits what is asked of the store."""

    async def __call__(self, read: Awaitable[T]) -> T:
        """What comes of it. Damage that it meets ends the program. Errors: STORE_CORRUPT, and others."""
        ...


class AuditLog:
    """Takes rows on the event loop. `kept`: from when on rows are kept, and how many of each kind at most.

    `meeting_damage` awaits a read or a write, and ends the program where the store is damaged.
    """

    def __init__(
        self,
        store: AuditStore,
        now: Callable[[], Instant],
        kept: Callable[[], tuple[Instant, int]],
        meeting_damage: MeetsDamage,
    ) -> None:
        self.now = now
        self.lost = 0
        self._store = store
        self._kept = kept
        self._meeting_damage = meeting_damage
        self._thread = ThreadPoolExecutor(2, thread_name_prefix="audit")
        self._sequence = store.newest_audit_sequence()
        self._rows: deque[AuditRow] = deque()
        self._thinning = Thinning(time.monotonic())
        self._untold = 0
        self._is_asked = asyncio.Event()
        self._waiting_for: list[tuple[int, asyncio.Future[None]]] = []
        self._prune_s = 0.0
        self._is_over = False
        self._is_failing = False

    @property
    def waiting(self) -> int:
        """Rows that wait to be written."""
        return len(self._rows)

    @property
    def is_superseded(self) -> bool:
        """Whether another scheduler has taken over: nothing more is written."""
        return self._is_over

    def add(self, call: AuditedCall, *, counts_alike: bool = False) -> None:
        """Take a call down. It waits for nothing, and never fails."""
        if self._thinning.is_written(call, time.monotonic(), counts_alike=counts_alike):
            self._put(call)

    def _put(self, call: AuditedCall) -> None:
        if len(self._rows) >= ROWS_WAITING_MAX or self._is_over:
            self.lost += call.count
            self._untold += call.count
            return
        self._sequence += 1
        self._rows.append(AuditRow(sequence=self._sequence, call=call))

    async def run(self) -> None:
        """Write and prune until cancelled. What damage of the store raises ends it."""
        pause = WRITE_SECONDS
        while True:
            await is_set_within(self._is_asked, pause)
            self._is_asked.clear()
            try:
                await self._write()
                await self._prune()
            except StoreUnavailable as error:
                pause = min(pause * 2, PAUSE_SECONDS_MAX)
                self._tell_failing(error)
            except TermSuperseded as error:
                # Another scheduler writes the audit now. This one ends as soon as it commits something.
                self._is_over = True
                self._lose_waiting(error)
                await asyncio.get_running_loop().create_future()
            else:
                pause = WRITE_SECONDS
                if self._is_failing:
                    self._is_failing = False
                    log.info("the audit is written again")

    def _lose_waiting(self, error: TermSuperseded) -> None:
        """Count what waits: its successor has never heard of it, and the store takes no more of this one."""
        lost = sum(row.call.count for row in self._rows)
        self._rows.clear()
        self.lost += lost
        log.error("another scheduler leads: the end of the audit is lost", extra=fields(calls=lost, why=str(error)))

    async def _write(self) -> None:
        for call in self._thinning.due(time.monotonic()):
            self._put(call)
        while self._rows:
            batch = list(islice(self._rows, ROWS_AT_ONCE))
            await self._on_thread(partial(self._store.write_audit, batch))
            self._written(batch)
        self._wake(self._sequence)

    def _written(self, batch: list[AuditRow]) -> None:
        for _ in batch:
            self._rows.popleft()
        if self._untold:
            told, self._untold = self._untold, 0
            self._put(AuditedCall(at=self.now(), call=LOST, code="DATA_LOSS", detail=_room(told), count=told))
        self._wake(batch[-1].sequence)

    def _wake(self, sequence: int) -> None:
        done = [waiting for upto, waiting in self._waiting_for if upto <= sequence]
        self._waiting_for = [each for each in self._waiting_for if each[0] > sequence]
        for waiting in done:
            if not waiting.done():
                waiting.set_result(None)

    async def _prune(self) -> None:
        now_s = time.monotonic()
        if now_s < self._prune_s:
            return
        dropped = await self._on_thread(partial(self._store.prune_audit, *self._kept()))
        self._prune_s = now_s + (0.0 if dropped else PRUNE_SECONDS)

    async def page(self, query: AuditQuery, wait_seconds: float) -> list[AuditRow]:
        """A page of rows, newest first, with all that was added before, as far as the store takes that in such a time.

        Errors: those of the store.
        """
        if self._rows and not self._is_over:
            written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting_for.append((self._sequence, written))
            self._is_asked.set()
            await asyncio.wait([written], timeout=wait_seconds)
        return await self._on_thread(partial(self._store.audit_rows, query))

    async def _on_thread(self, call: Callable[[], T]) -> T:
        return await self._meeting_damage(asyncio.get_running_loop().run_in_executor(self._thread, call))

    def _tell_failing(self, error: StoreError) -> None:
        if not self._is_failing:
            self._is_failing = True
            log.warning("the audit is not written", extra=fields(why=str(error), rows=len(self._rows)))

    def close(self) -> None:
        """Write all that waits, and end the threads. Blocks."""
        for call in self._thinning.due(time.monotonic(), is_over=True):
            self._put(call)
        rows = [] if self._is_over else list(self._rows)
        self._is_over = True
        self._rows.clear()

        def write() -> None:
            for start in range(0, len(rows), ROWS_AT_ONCE):
                try:
                    self._store.write_audit(rows[start : start + ROWS_AT_ONCE])
                except StoreError as error:
                    lost = len(rows) - start
                    log.error("the end of the audit is lost", extra=fields(rows=lost, why=str(error)))
                    return

        self._thread.submit(write)
        self._thread.shutdown(wait=True)


def _room(count: int) -> str:
    return f"{count:,} calls had no room in the queue, while the store took no rows"
