"""What jobs had printed when a backup was made, piece by piece: where it is and how long.

A line is [job, attempt, rank, lineage, stream, start, is_head, bytes, marks]: which piece of which stream, as an output
store names it, whether it is in files or in rows. Where the backup has the bytes, too (output_bytes.py), the first
piece of a stream has its marks of time, [instant, end] each.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpufleet.config.scheduler_settings import SchedulerSettings
from gpufleet.errors import GpufleetError, Reason

from ..outputs.layout import Segment
from ..outputs.opening import FOLDER, open_shelf
from ..outputs.segment_store import SegmentKey, SegmentStore, StreamKey
from ..ports import Mark
from ..state.attempts import OutputStream
from ..state.ids import JobId, RankKey
from ..state.units import Instant
from ..store.opening import parse_url
from ..verifying import store_url
from . import parts
from .archive import Archive

PREFIX = "outputs"
IS_LINEAGE = re.compile(r"(?:[0-9a-f]{16})?")
KINDS = (int, int, int, str, str, int, bool, int, list)

Take = Callable[[SegmentStore, SegmentKey, int], int]
"""Copies the bytes of a piece, up to a size, and says how many there were."""


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """A piece of output: its bytes, and the marks of its stream where it is the first."""

    segment: SegmentKey
    bytes: int
    marks: Sequence[Mark]


class Listed:
    """Counts what is listed. With `take` it is copied, too."""

    def __init__(self, take: Take | None = None) -> None:
        self.pieces = 0
        self.bytes = 0
        self._take = take

    def lines(self, settings: SchedulerSettings) -> Iterator[list[Any]]:
        """A line for each piece, job by job. Errors: OutputStoreUnavailable."""
        shelf = shelf_to_read(settings)
        if shelf is None:
            return
        try:
            for job in sorted(each.job for each in shelf.inventory()):
                seen: set[StreamKey] = set()
                for (key, stream), segment in sorted(shelf.find(job), key=lambda each: each[1].start):
                    size, marks = segment.size, list[list[int]]()
                    if self._take is not None:
                        size = self._take(shelf, SegmentKey(key, stream, segment.start, segment.is_head), size)
                        if (key, stream) not in seen:
                            marks = [[mark.at, mark.end] for mark in shelf.marks((key, stream))]
                    seen.add((key, stream))
                    self.pieces += 1
                    self.bytes += size
                    of = [job, key.attempt, key.rank, key.lineage, stream.name.lower()]
                    yield [*of, segment.start, segment.is_head, size, marks]
        finally:
            shelf.close()


def shelf_to_read(settings: SchedulerSettings) -> SegmentStore | None:
    """Where output is, of a scheduler that may run; None where there is none, and no folder is made for it."""
    is_in_files = parse_url(store_url(settings)).get_backend_name() == "sqlite"
    if is_in_files and not (settings.data / FOLDER).is_dir():
        return None
    return open_shelf(settings.store, 0, settings.data / FOLDER)


def listed_in(archive: Archive) -> Iterator[OutputPiece]:
    """Each piece that a backup lists. Errors: BACKUP_INVALID."""
    for lines in parts.lines_of(archive, PREFIX):
        for line in lines:
            if tuple(map(type, line)) != KINDS:
                raise GpufleetError(Reason.BACKUP_INVALID, f"{archive.path}: {line!r} is no piece of output")
            job, attempt, rank, lineage, stream, start, is_head, size, times = line
            if min(job, attempt, rank, start, size) < 0 or IS_LINEAGE.fullmatch(lineage) is None:
                raise GpufleetError(Reason.BACKUP_INVALID, f"{archive.path}: {line!r} is no piece of output")
            if any(type(each) is not list or list(map(type, each)) != [int, int] for each in times):
                raise GpufleetError(Reason.BACKUP_INVALID, f"{archive.path}: a mark of job {job} is none")
            if stream not in ("stdout", "stderr"):
                raise GpufleetError(Reason.BACKUP_INVALID, f"{archive.path}: no stream is called {stream!r}")
            key = RankKey(JobId(job), attempt, rank, lineage)
            segment = SegmentKey(key, OutputStream[stream.upper()], start, is_head)
            yield OutputPiece(segment, size, [Mark(Instant(at), end) for at, end in times])


def sizes_on(shelf: SegmentStore | None, job: JobId) -> dict[SegmentKey, Segment]:
    """The pieces that are there of a job. Errors: OutputStoreUnavailable."""
    found = () if shelf is None else shelf.find(job)
    return {SegmentKey(key, stream, each.start, each.is_head): each for (key, stream), each in found}
