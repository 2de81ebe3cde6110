"""Keeps the account of what attempts held: each exactly once, whatever happens to the scheduler or to the file.

What ends is a record of the store, and records are numbered. With the holds the file keeps the number up to which they
are counted, in the same transaction. So what is told twice is counted once, and what was never written (a crash, a full
disk, a file that was lost) is counted from the store's records when it can be. A store that was put back gives numbers
again, for other records: so the file keeps the lineage of the start that has counted, too, and an account of a history
that the store has not is begun anew (docs/design/lineages.md).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from ..ports import RecordStore, StoredRecord
from ..state.attempts import Rank
from ..state.ids import JobId
from ..state.jobs import Job
from ..state.records import AttemptEnded, ItemsFinished, JobFinished, Record
from ..state.state import State
from ..state.units import Instant, Span
from ..state.used import RankUse
from .accounts import FAILURES, AccountedHold, hold_of_none, holds_of
from .file import Accounted
from .history_file import BegunAnew, HistoryFile

T = TypeVar("T")
log = logging.getLogger(__name__)
KINDS = ("AttemptEnded", "ItemsFinished", "JobFinished")
FIRST_KINDS = ("TokenCreated",)
"""The first record of every store; it goes when the first others do."""
RECORDS_AT_ONCE = 500
"""Records that are read of the store at once while the account is behind."""
PAUSE_SECONDS = 0.02
"""Between two such reads, so that nobody else waits for the processor."""
HOLDS_WAITING_MAX = 200_000
"""Holds that may wait to be written; beyond them they are counted from the store's records later."""


class OnThread(Protocol):
    """Does something on the file's thread, when what was asked before is done."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]:
        """What the call answers."""
        ...


@dataclass(eq=False)
class Ledger:
    """What waits to be counted, and up to where all is. `kept` is how long records of jobs are kept."""

    _file: HistoryFile
    _view: State
    _store: RecordStore
    _now: Callable[[], Instant]
    _kept: Callable[[], Span]
    _accounted: Accounted | None = field(default=None, init=False)
    _newest: int = field(default=0, init=False)
    _given_up: int = field(default=0, init=False)
    is_complete: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Whether every record is counted, or waits to be."""
    waiting: list[tuple[int, AccountedHold]] = field(default_factory=list, init=False)
    """Not stored yet, each with the number of the record that says so."""

    def take(self, number: int, record: Record, job: Job) -> None:
        """Take note of a record of these kinds, as it is committed."""
        self._newest = number
        self.waiting.extend((number, hold) for hold in holds_of_record(record, job))
        if len(self.waiting) >= HOLDS_WAITING_MAX:
            self.waiting.clear()
            self._given_up += 1
            self.is_complete.clear()

    async def write(self, on_thread: OnThread) -> None:
        """Store what waits. Errors: those of the file and of the store; then it goes on waiting."""
        if not self.is_complete.is_set():
            await self._catch_up(on_thread)
        entries = self.entries()
        if entries is None or not entries[0]:
            return
        try:
            await on_thread(partial(self._file.write_holds, *entries))
        except BegunAnew:
            self.is_complete.clear()
            await self._catch_up(on_thread)
        else:
            self._stored(entries[1])

    @property
    def stored(self) -> int:
        """The number of the record up to which all is stored, as far as is known here."""
        return 0 if self._accounted is None else self._accounted.sequence

    def entries(self) -> tuple[list[tuple[int, AccountedHold]], Accounted, int] | None:
        """What is to be stored, up to where all is counted with it and without it; None while it is behind."""
        if not self.is_complete.is_set() or self._accounted is None:
            return None
        newest = max(self._accounted.sequence, self._newest)
        accounted = Accounted(newest, self._accounted.known_since, self._store.lineage)
        return self.waiting[:], accounted, self._accounted.sequence

    def _stored(self, accounted: Accounted) -> None:
        self._accounted = accounted
        self.waiting = [each for each in self.waiting if each[0] > accounted.sequence]

    async def _catch_up(self, on_thread: OnThread) -> None:
        """Count the store's records from where the file knows of; a file of another history is begun anew."""
        accounted = await on_thread(self._file.accounted)
        if accounted is not None and not accounted.is_of(self._store):
            log.warning("what was held is counted anew: the store has not the history that was counted")
            await on_thread(self._file.forget_holds)
            accounted = None
        while True:
            given_up = self._given_up
            after = 0 if accounted is None else accounted.sequence
            page = await on_thread(partial(self._store.records_from, KINDS, after, RECORDS_AT_ONCE))
            if accounted is None:
                first = await on_thread(partial(self._store.records_from, FIRST_KINDS, 0, 1))
                accounted = Accounted(0, known_since(first, page, self._now(), self._kept()), self._store.lineage)
            holds = await self._holds_of(page, on_thread)
            accounted = Accounted(page[-1].sequence if page else after, accounted.known_since, self._store.lineage)
            await on_thread(partial(self._file.write_holds, holds, accounted, after))
            if len(page) < RECORDS_AT_ONCE and given_up == self._given_up:
                break
            await asyncio.sleep(PAUSE_SECONDS)
        self.is_complete.set()
        self._stored(accounted)

    async def _holds_of(self, page: Sequence[StoredRecord], on_thread: OnThread) -> list[tuple[int, AccountedHold]]:
        jobs: dict[JobId, Job | None] = {}
        for each in page:
            job_id = _job_of(each.record)
            jobs[job_id] = self._view.durable.jobs.get(job_id)
        missing = [job_id for job_id, job in jobs.items() if job is None]
        found = await on_thread(lambda: [self._store.finished_job(job_id) for job_id in missing])
        jobs.update(zip(missing, found, strict=True))
        return [
            (each.sequence, hold)
            for each in page
            for job in (jobs[_job_of(each.record)],)
            if job is not None
            for hold in holds_of_record(each.record, job)
        ]


def known_since(first: Sequence[StoredRecord], page: Sequence[StoredRecord], now: Instant, kept: Span) -> Instant:
    """Since when the store tells of all that its records of a kind do: since ever, while its `first` one is there.

    `page` are the first records of the kind, and `kept` is how long records are kept.
    """
    if first and first[0].sequence == 1:
        return Instant(0)
    return max(page[0].at if page else now, Instant(now - kept))


def _job_of(record: Record) -> JobId:
    match record:
        case AttemptEnded(job=job_id) | JobFinished(job=job_id) | ItemsFinished(array=job_id):
            return job_id
        case _:
            raise AssertionError(f"a {type(record).__name__} is not asked for")


def holds_of_record(record: Record, job: Job) -> Iterator[AccountedHold]:
    """What a record says was held, and which jobs ended. An array is none: its items are."""
    match record:
        case AttemptEnded(ended=ended):
            yield from holds_of(job, ended, uses_of(ended.ranks), until=ended.ended_at)
        case JobFinished(finished=end, ended=ended) if job.items is None:
            is_failed = end.outcome in FAILURES
            if ended is None:
                yield hold_of_none(job, 1, end.at, is_failed=is_failed)
            else:
                uses = uses_of(ended.ranks)
                yield from holds_of(job, ended, uses, until=ended.ended_at, is_last=True, is_failed=is_failed)
        case ItemsFinished(finished=end, spans=spans):
            count = sum(last - first for first, last in spans)
            yield hold_of_none(job, count, end.at, is_failed=end.outcome in FAILURES)
        case _:
            pass


def uses_of(ranks: Sequence[Rank]) -> dict[int, RankUse]:
    """What the ranks of an ended attempt used, by rank, where it is known."""
    ends = ((number, rank.exit) for number, rank in enumerate(ranks))
    return {number: exit_.use for number, exit_ in ends if exit_ is not None and exit_.use is not None}
