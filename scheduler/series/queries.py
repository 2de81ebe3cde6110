"""Answers what people ask of histories: takes what is in memory, and has the rest read on a thread."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from gpufleet.errors import GpufleetError, Reason

from ..clock import is_set_within
from ..state.ids import DeviceUuid, NodeName
from ..state.specs import Band
from ..state.units import SECOND, Instant, Span
from .accounts import AccountedHold, UsageSpan
from .held import UsageTotals
from .history_file import BAND_NODE, CourseFacts, CourseKey, HistoryFile
from .points import Steps
from .reading import ANSWER_POINTS_MAX, InMemory, Readings, Retention, by_node, least_level, read, steps_for, steps_from
from .recorder import Recorder

T = TypeVar("T")

READS_MAX = 32
"""Reads that are under way or wait for their turn; more are refused."""
COPIED_AT_ONCE = 64
"""Devices whose newest points are copied in one hold of the event loop."""
COMPLETE_SECONDS_MAX = 10.0
"""How long somebody waits for the account to be complete, after a start or a full disk."""
JOB_POINTS_MAX = 600
"""Points of the course of a job that runs: as many as those of one that has ended."""


@dataclass(frozen=True, slots=True)
class History:
    """A history: when its first step begins, how long each is, and what each course did."""

    begin: Instant
    step: Span
    told: Sequence[tuple[CourseFacts, Readings]]


class HistoryQueries:
    """Reads for people. Trouble with the file leaves what is in memory."""

    def __init__(self, recorder: Recorder, folder: Path, kept: Callable[[], Retention]) -> None:
        self._recorder = recorder
        self._kept = kept
        self._reads = 0
        self._file = HistoryFile(folder, is_reader=True)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="history-reads")

    async def devices(
        self, node: NodeName, index: int | None, begin: Instant, end: Instant, points: int, *, by_node: bool
    ) -> History:
        """What the devices of a node, or of all, did."""
        recorder = self._recorder
        stored = await self._of_file(lambda: self._file.courses(node, index)) or []
        known = {facts.key: facts for facts in stored} | {
            key: facts
            for key, facts in recorder.facts.items()
            if key.node != BAND_NODE and node in ("", key.node) and index in (None, facts.index)
        }
        facts = sorted(known.values(), key=lambda each: (each.key.node, each.index, each.key.uuid))
        return await self._read(facts, self._steps(begin, end, points, len(facts)), together=by_node)

    async def since(self, asked: Sequence[CourseFacts], begin: Instant, until: Instant | None = None) -> History:
        """What some devices have done since an instant, from that second on, to now or to another one."""
        now = self._recorder.now()
        end = now if until is None else until
        steps = steps_from(
            begin // SECOND, max(-(-end // SECOND), begin // SECOND + 1), JOB_POINTS_MAX, now // SECOND, self._kept()
        )
        return await self._read(asked, steps)

    async def bands(self, begin: Instant, end: Instant, points: int) -> History:
        """What the queue was like, band by band."""
        keys = ((band, CourseKey(node=BAND_NODE, uuid=DeviceUuid(band.name))) for band in Band)
        facts = [CourseFacts(key=key, index=int(band), name=band.name.lower(), memory_bytes=0) for band, key in keys]
        found = await self._read(facts, self._steps(begin, end, points, len(facts)))
        told = [each for each in found.told if any(step is not None for step in each[1])]
        return History(found.begin, found.step, told)

    def _steps(self, begin: Instant, end: Instant, points: int, courses: int) -> Steps:
        points = max(1, min(points, ANSWER_POINTS_MAX // max(1, courses)))
        return steps_for(begin // SECOND, -(-end // SECOND), points, self._recorder.now() // SECOND, self._kept())

    async def _read(self, facts: Sequence[CourseFacts], steps: Steps, *, together: bool = False) -> History:
        recorder = self._recorder
        least = least_level(steps)
        asked: list[InMemory] = []
        for number, each in enumerate(facts, 1):
            asked.append(InMemory.of(each, recorder.courses.get(each.key), least))
            if number % COPIED_AT_ONCE == 0:
                await asyncio.sleep(0)  # others have their turn

        def answer(file: HistoryFile | None) -> list[tuple[CourseFacts, Readings]]:
            found = read(file, asked, steps)
            return _of_whole_nodes(found) if together else found

        told = await self._of_file(partial(answer, self._file))
        if told is None:
            told = await self._of_file(partial(answer, None)) or []
        return History(Instant(steps.begin * SECOND), Span(steps.length * SECOND), told)

    async def usage(
        self, open_holds: Callable[[], Callable[[], list[AccountedHold]]], span: UsageSpan, group: str, user: str
    ) -> tuple[dict[str, UsageTotals], Instant]:
        """What was held in a span, with what is held now."""
        recorder = self._recorder
        ledger = recorder.ledger
        if not await is_set_within(ledger.is_complete, COMPLETE_SECONDS_MAX):
            raise unavailable("what was used is still being counted from the store's records")
        # Taken together with what waits: what ends behind this moment is in neither a second time.
        now, waiting, still_open = recorder.now(), ledger.waiting[:], open_holds()
        stored = ledger.stored

        def answer() -> tuple[dict[str, UsageTotals], Instant]:
            accounted = recorder.file.accounted()
            known = 0 if accounted is None else accounted.sequence
            if known < stored:
                raise sqlite3.DatabaseError("its file was lost, and is filled anew from the store's records")
            more = [hold for number, hold in waiting if number > known] + still_open()
            found = recorder.file.usage(more, span, group, user)
            return found, now if accounted is None else accounted.known_since

        try:
            return await recorder.on_thread(answer)
        except (sqlite3.Error, OSError) as error:
            raise unavailable(f"what was used cannot be read: {error}") from None

    async def _of_file(self, call: Callable[[], T]) -> T | None:
        """What a read of the file answers; None where the file is in trouble."""
        try:
            return await self.on_thread(call)
        except (sqlite3.Error, OSError):
            self._thread.submit(self._file.close)
            return None

    async def on_thread(self, call: Callable[[], T]) -> T:
        """Do what takes long beside the event loop. Errors: HISTORY_UNAVAILABLE where too many ask, and the call's."""
        if self._reads >= READS_MAX:
            raise unavailable(f"{self._reads} others ask for histories at this moment")
        self._reads += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        finally:
            self._reads -= 1

    def close(self) -> None:
        """Let go of the file. Blocks."""
        self._thread.submit(self._file.close)
        self._thread.shutdown(wait=True)


def _of_whole_nodes(found: list[tuple[CourseFacts, Readings]]) -> list[tuple[CourseFacts, Readings]]:
    return [
        (CourseFacts(key=CourseKey(node=node, uuid=DeviceUuid("")), index=0, name="", memory_bytes=size), told)
        for node, size, told in by_node(found)
    ]


def unavailable(why: str) -> GpufleetError:
    """Why nothing can be told now."""
    return GpufleetError(Reason.HISTORY_UNAVAILABLE, why, retry_after_s=5.0)
