"""Records what goes on: devices as their nodes tell it, the queue once a second, what attempts held when they end.

Everything here runs on the event loop and takes microseconds; the file is written on a thread, a few seconds later.
Nothing waits for that. When it cannot be written, points are given up, the oldest first; what was held is not: it is
counted from the store's own records as soon as the file can be written again.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpufleet.logs import fields

from ..ports import Commit
from ..state.ids import DeviceUuid, JobId, NodeName, RankKey
from ..state.jobs import Band, Job, Rank
from ..state.nodes import Node
from ..state.records import AttemptEnded, AttemptStarted, ItemsFinished, JobFinished, Record
from ..state.state import State
from ..state.units import SECOND, Instant
from ..state.used import RankUse
from .accounts import FAILURES, Hold, hold_without_attempt, holds_of, wait_of
from .courses import Course, Row
from .history_file import (
    BAND_NODE,
    Accounted,
    Batch,
    CourseFacts,
    CourseKey,
    HistoryFile,
    TellsOnce,
    kind_of,
)
from .points import NOT_READ, Reading

log = logging.getLogger(__name__)

COURSES_MAX = 20_000
"""Devices whose history is kept; of others none is."""
ROWS_WAITING_MAX = 50_000
"""Rows of points that may wait to be written; beyond them the oldest are given up."""
HOLDS_WAITING_MAX = 200_000
"""Holds that may wait to be written; beyond them they are counted from the store's records later."""
WRITE_SECONDS = 5.0
"""How long what is recorded waits, at most, before it is written."""


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """What a device did from one second to another, in the order of its counters."""

    uuid: DeviceUuid
    begin: int
    end: int
    readings: tuple[Reading, ...]


class Recorder:
    """Owns the newest points of every device and band, and the file."""

    def __init__(self, view: State, now: Callable[[], Instant], folder: Path) -> None:
        self._view = view
        self.now = now
        self.file = HistoryFile(folder)
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="history")
        self.courses: dict[CourseKey, Course] = {}
        self.facts: dict[CourseKey, CourseFacts] = {}
        self.holds: list[tuple[int, Hold]] = []
        """What was held and is not stored yet, each with the number of the record that says so."""
        self._rows: dict[tuple[CourseKey, int, int], tuple[CourseFacts, Row]] = {}
        self._sequence = 0
        self._running: dict[JobId, Band] = {}
        self._waits: dict[Band, list[float]] = {}
        self._nodes: dict[NodeName, tuple[Node, dict[DeviceUuid, CourseFacts]]] = {}
        self._tells = TellsOnce(self.file.path)
        self._is_full = False
        for job in map(view.durable.jobs.get, list(view.durable.active)):
            if job is not None:
                self._running[job.id] = job.band

    # --- what devices do

    def take_beat(self, node: NodeName, readings: Iterable[DeviceReading]) -> None:
        """Take in what a node read of its devices since the beat before."""
        known = self._facts_of(node)
        for reading in readings:
            facts = known.get(reading.uuid)
            if facts is not None:
                self._add(facts, reading.begin, reading.end, reading.readings)

    def _facts_of(self, name: NodeName) -> dict[DeviceUuid, CourseFacts]:
        node = self._view.durable.nodes.get(name)
        if node is None:
            return {}
        known = self._nodes.get(name)
        if known is None or known[0] is not node:
            facts = {
                device.uuid: CourseFacts(
                    key=CourseKey(node=name, uuid=device.uuid),
                    index=device.index,
                    name=device.name,
                    memory_bytes=device.memory_bytes,
                )
                for device in node.info.devices
            }
            known = self._nodes[name] = (node, facts)
        return known[1]

    def _add(self, facts: CourseFacts, begin: int, end: int, readings: tuple[Reading, ...]) -> None:
        course = self.courses.get(facts.key)
        if course is None:
            if len(self.courses) >= COURSES_MAX:
                if not self._is_full:
                    self._is_full = True
                    log.warning("no more histories of devices are kept", extra=fields(devices=COURSES_MAX))
                return
            course = self.courses[facts.key] = Course(kind_of(facts.key))
        self.facts[facts.key] = facts
        for row in course.add(begin, end, readings):
            self._put(facts, row)

    def _put(self, facts: CourseFacts, row: Row) -> None:
        self._rows[facts.key, row.level, row.begin] = (facts, row)
        if len(self._rows) > ROWS_WAITING_MAX:
            self._rows.pop(next(iter(self._rows)))
            self._tells.failed("more points wait than may")

    # --- what jobs do

    def take_commit(self, commit: Commit, sequence: int) -> None:
        """Take note of what was committed, when it is shown in the view; `sequence` is that of its last record."""
        view = self._view.durable
        finished = {job.id: job for job in commit.finished}
        for entity in commit.upserts:
            if isinstance(entity, Job):
                if entity.attempt is None:
                    self._running.pop(entity.id, None)
                else:
                    self._running[entity.id] = entity.band
        for job_id in finished:
            self._running.pop(job_id, None)
        for record in commit.records:
            match record:
                case AttemptStarted(key=RankKey(rank=0) as key, started_at=started_at):
                    job = view.jobs.get(key.job) or finished.get(key.job)
                    if job is not None:
                        waited = wait_of(job, key.attempt, started_at)
                        self._waits.setdefault(job.band, []).append(waited / SECOND)
                case AttemptEnded(job=job_id) | JobFinished(job=job_id) | ItemsFinished(array=job_id):
                    job = finished.get(job_id) or view.jobs.get(job_id)
                    if job is not None:
                        self.holds.extend((sequence, hold) for hold in holds_of_record(record, job))
                case _:
                    pass
        self._sequence = sequence

    # --- once a second

    async def run(self) -> None:
        """Look at the queue, and write, until cancelled."""
        waited = 0.0
        while True:
            await asyncio.sleep(1.0)
            self._look_at_queue(self.now() // SECOND)
            waited += 1.0
            if waited >= WRITE_SECONDS:
                waited = 0.0
                await self.write()

    def _look_at_queue(self, now: int) -> None:
        waits, self._waits = self._waits, {}
        running = dict.fromkeys(Band, 0)
        for band in self._running.values():
            running[band] += 1
        for band, lines in self._view.durable.lines.of_band.items():
            queued = sum(len(line) for of_user in lines.values() for line in of_user.values())
            key = CourseKey(node=BAND_NODE, uuid=DeviceUuid(band.name))
            if not (queued or running[band] or band in waits or key in self.courses):
                continue
            facts = CourseFacts(key=key, index=int(band), name=band.name.lower(), memory_bytes=0)
            self._add(facts, now - 1, now, (_gauge(queued), _gauge(running[band]), _spread_of(waits.get(band, ()))))

    async def write(self) -> None:
        """Write what waits; what cannot be written goes on waiting."""
        rows, holds = self._rows, self.holds[:]
        batch = Batch(rows=tuple(rows.values()), holds=holds, accounted=Accounted(self._sequence, Instant(0)))
        if not rows and not holds:
            return
        self._rows = {}
        try:
            await asyncio.get_running_loop().run_in_executor(self.thread, self.file.write, batch)
        except (sqlite3.Error, OSError) as error:
            self._rows = {**rows, **self._rows}
            self._tells.failed(str(error))
        else:
            del self.holds[: len(holds)]
            self._tells.worked()

    def close(self) -> None:
        """Write all there is, and let go of the file. Blocks."""
        for key, course in self.courses.items():
            for row in course.last_rows():
                self._rows[key, row.level, row.begin] = (self.facts[key], row)
        batch = Batch(
            rows=tuple(self._rows.values()), holds=self.holds, accounted=Accounted(self._sequence, Instant(0))
        )

        def write_and_close() -> None:
            with suppress(sqlite3.Error, OSError):
                self.file.write(batch)
            self.file.close()

        self.thread.submit(write_and_close)
        self.thread.shutdown(wait=True)


def holds_of_record(record: Record, job: Job) -> Iterator[Hold]:
    """What a record says was held, and which jobs ended. An array is none: its items are."""
    match record:
        case AttemptEnded(ended=ended):
            yield from holds_of(job, ended, uses_of(ended.ranks), until=ended.ended_at)
        case JobFinished(finished=end, ended=ended) if job.items is None:
            is_failed = end.outcome in FAILURES
            if ended is None:
                yield from hold_without_attempt(job, 1, end.at, is_failed=is_failed)
            else:
                uses = uses_of(ended.ranks)
                yield from holds_of(job, ended, uses, until=ended.ended_at, is_last=True, is_failed=is_failed)
        case ItemsFinished(finished=end, spans=spans):
            count = sum(last - first for first, last in spans)
            yield from hold_without_attempt(job, count, end.at, is_failed=end.outcome in FAILURES)
        case _:
            pass


def uses_of(ranks: Sequence[Rank]) -> dict[int, RankUse]:
    """What the ranks of an ended attempt used, by rank, where it is known."""
    ends = ((number, rank.exit) for number, rank in enumerate(ranks))
    return {number: exit_.use for number, exit_ in ends if exit_ is not None and exit_.use is not None}


def _gauge(value: int) -> Reading:
    return (value, value, value)


def _spread_of(values: Sequence[float]) -> Reading:
    return (min(values), max(values), sum(values) / len(values)) if values else NOT_READ
