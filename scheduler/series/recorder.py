"""Records what goes on: devices as their nodes tell it, the queue once a second, what attempts held when they end.

Everything here runs on the event loop and takes microseconds; the file is written on a thread, a few seconds later.
Nothing waits for that. When it cannot be written, points are given up, the oldest first; what was held is not: it is
counted from the store's own records as soon as the file can be written again.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from gpufleet.telemetry.logs import fields

from ..ports import Commit, RecordStore
from ..state.ids import DeviceUuid, JobId, NodeName, RankKey
from ..state.jobs import Job
from ..state.nodes import Node
from ..state.records import AttemptEnded, AttemptStarted, ItemsFinished, JobFinished
from ..state.specs import Band
from ..state.state import State
from ..state.units import SECOND, Instant, Span
from ..store.errors import StoreError
from .accounts import wait_of
from .courses import FIVES, TENS, Course, StoredRow
from .history_file import BAND_NODE, BegunAnew, CourseFacts, CourseKey, HistoryFile, TellsOnce, kind_of
from .ledger import Ledger
from .points import NOT_READ, Reading

T = TypeVar("T")
log = logging.getLogger(__name__)

COURSES_MAX = 20_000
"""Devices whose history is kept; of others none is."""
ROWS_WAITING_MAX = 50_000
"""Rows of points that may wait to be written; beyond them the oldest are given up."""
WRITE_SECONDS = 5.0
"""How long what is recorded waits, at most, before it is written."""


class DeviceReading(NamedTuple):
    """What a device did from one second to another, in the order of its counters.

    With `last` it was read twice, a second apart, and these are the second values.
    """

    uuid: DeviceUuid
    begin: int
    end: int
    readings: tuple[Reading, ...]
    last: tuple[float, ...] | None = None


class Recorder:
    """Owns the newest points of every device and band, and the file."""

    def __init__(
        self, view: State, store: RecordStore, now: Callable[[], Instant], kept: Callable[[], Span], folder: Path
    ) -> None:
        self._view = view
        self.now = now
        self.file = HistoryFile(folder)
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="history")
        self.courses: dict[CourseKey, Course] = {}
        self.facts: dict[CourseKey, CourseFacts] = {}
        self.ledger = Ledger(self.file, view, store, now, kept)
        self._rows: dict[tuple[CourseKey, int, int], tuple[CourseFacts, StoredRow]] = {}
        self._running: dict[JobId, Band] = {}
        self._waits: dict[Band, list[float]] = {}
        self._nodes: dict[NodeName, tuple[Node, dict[DeviceUuid, tuple[CourseFacts, Course]]]] = {}
        self._tells = TellsOnce(self.file.path)
        self._is_full = False
        self._writing = asyncio.Lock()
        for job in map(view.durable.jobs.get, list(view.durable.active)):
            if job is not None:
                self._running[job.id] = job.band

    # --- what devices do

    def take_beat(self, node: NodeName, readings: Iterable[DeviceReading]) -> None:
        """Take in what a node read of its devices since the beat before."""
        known = self._courses_of(node)
        for uuid, begin, end, told, last in readings:
            found = known.get(uuid)
            if found is not None:
                facts, course = found
                for row in course.add(begin, end, told, last):
                    self._put(facts, row)

    def _courses_of(self, name: NodeName) -> dict[DeviceUuid, tuple[CourseFacts, Course]]:
        """The courses of a node's devices; they begin when the node is first heard."""
        node = self._view.durable.nodes.get(name)
        known = self._nodes.get(name)
        if known is not None and known[0] is node:
            return known[1]
        self._nodes.pop(name, None)
        if node is None:
            return {}
        courses: dict[DeviceUuid, tuple[CourseFacts, Course]] = {}
        for device in node.info.devices:
            key = CourseKey(node=name, uuid=device.uuid)
            facts = CourseFacts(key=key, index=device.index, name=device.name, memory_bytes=device.memory_bytes)
            course = self._course(facts)
            if course is not None:
                courses[device.uuid] = (facts, course)
        self._nodes[name] = (node, courses)
        return courses

    def _course(self, facts: CourseFacts) -> Course | None:
        """Whose facts these are; None when there are too many."""
        course = self.courses.get(facts.key)
        if course is None:
            if len(self.courses) >= COURSES_MAX:
                if not self._is_full:
                    self._is_full = True
                    log.warning("no more histories of devices are kept", extra=fields(devices=COURSES_MAX))
                return None
            course = self.courses[facts.key] = Course(kind_of(facts.key))
        self.facts[facts.key] = facts
        return course

    def _put(self, facts: CourseFacts, row: StoredRow) -> None:
        self._rows[facts.key, row.level, row.begin] = (facts, row)
        self._give_up_rows()

    def _give_up_rows(self) -> None:
        while len(self._rows) > ROWS_WAITING_MAX:
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
        for number, record in enumerate(commit.records, sequence - len(commit.records) + 1):
            match record:
                case AttemptStarted(key=RankKey(rank=0) as key, started_at=started_at):
                    job = view.jobs.get(key.job) or finished.get(key.job)
                    if job is not None:
                        waited = wait_of(job, key.attempt, started_at)
                        self._waits.setdefault(job.band, []).append(waited / SECOND)
                case AttemptEnded(job=job_id) | JobFinished(job=job_id) | ItemsFinished(array=job_id):
                    job = finished.get(job_id) or view.jobs.get(job_id)
                    if job is not None:
                        self.ledger.take(number, record, job)
                case _:
                    pass

    # --- once a second

    async def run(self) -> None:
        """Look at the queue, and write, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_every_second(), name="history-queue")
            group.create_task(self._write_for_ever(), name="history-writes")

    async def _look_every_second(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._look_at_queue(self.now() // SECOND)

    async def _write_for_ever(self) -> None:
        while True:
            await self.write()
            await asyncio.sleep(WRITE_SECONDS)

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
            course = self._course(facts)
            if course is not None:
                told = (_gauge(queued), _gauge(running[band]), _spread_of(waits.get(band, ())))
                for row in course.add(now - 1, now, told):
                    self._put(facts, row)

    async def write(self) -> None:
        """Write what waits; what cannot be written goes on waiting."""
        async with self._writing:
            rows, self._rows = self._rows, {}
            try:
                if rows:
                    await self.on_thread(partial(self.file.write_points, tuple(rows.values())))
                    rows = {}
                await self.ledger.write(self.on_thread)
            except (sqlite3.Error, OSError, StoreError, BegunAnew) as error:
                self._tells.failed(str(error))
            else:
                self._tells.worked()
            finally:
                self._rows = {**rows, **self._rows}  # a row that is written twice is the same row
                self._give_up_rows()

    async def on_thread(self, call: Callable[[], T]) -> T:
        """Do something with the file, when what was asked before is done."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, call)

    async def prune(self, tens_before: Instant, rest_before: Instant) -> int:
        """Drop points and holds from before these instants; how many rows. What the file refuses is tried later."""
        before = {TENS.number: tens_before // SECOND, FIVES.number: rest_before // SECOND}
        dropped = 0
        try:
            while found := await self.on_thread(lambda: self.file.prune(before, rest_before)):
                dropped += found
        except (sqlite3.Error, OSError) as error:
            self._tells.failed(str(error))
        there = {(node.name, device.uuid) for node in self._view.durable.nodes.values() for device in node.info.devices}
        gone = [key for key in self.courses if key.node != BAND_NODE and (key.node, key.uuid) not in there]
        for key in gone:
            self._let_go(key)
        return dropped

    def _let_go(self, key: CourseKey) -> None:
        """Store what is left of a course, and forget it: its device, or its node, is gone."""
        facts = self.facts.pop(key)
        self._nodes.pop(key.node, None)
        for row in self.courses.pop(key).last_rows():
            self._put(facts, row)

    def close(self) -> None:
        """Write all there is, and let go of the file. Blocks."""
        for key, course in self.courses.items():
            for row in course.last_rows():
                self._rows[key, row.level, row.begin] = (self.facts[key], row)
        rows, entries = tuple(self._rows.values()), self.ledger.entries()

        def write_and_close() -> None:
            try:
                self.file.write_points(rows)
                if entries is not None:
                    self.file.write_holds(*entries)
            except (sqlite3.Error, OSError, BegunAnew) as error:
                self._tells.failed(str(error))
            self.file.close()

        self.thread.submit(write_and_close)
        self.thread.shutdown(wait=True)


def _gauge(value: int) -> Reading:
    return (value, value, value)


def _spread_of(values: Sequence[float]) -> Reading:
    return (min(values), max(values), sum(values) / len(values)) if values else NOT_READ
