"""What jobs had printed when a backup was made, piece by piece: where it is and how long, not the bytes.

A line is [job, attempt, rank, lineage, stream, start, is_head, bytes]: which piece of which stream, as an output store
names it, whether it is in files or in rows.
"""

from collections.abc import Iterator
from typing import Any

from gpufleet.config.scheduler_settings import SchedulerSettings
from gpufleet.errors import GpufleetError, Reason

from ..outputs.layout import Segment
from ..outputs.opening import FOLDER, open_shelf
from ..outputs.segment_store import SegmentKey, SegmentStore
from ..state.attempts import OutputStream
from ..state.ids import JobId, RankKey
from ..store.opening import parse_url
from ..verifying import store_url
from . import parts
from .archive import Archive

PREFIX = "outputs"
KINDS = (int, int, int, str, str, int, bool, int)


class Listed:
    """Counts what is listed."""

    def __init__(self) -> None:
        self.pieces = 0
        self.bytes = 0

    def lines(self, settings: SchedulerSettings) -> Iterator[list[Any]]:
        """A line for each piece, job by job. Errors: OutputStoreUnavailable."""
        shelf = shelf_to_read(settings)
        if shelf is None:
            return
        try:
            for job in sorted(each.job for each in shelf.inventory()):
                for (key, stream), segment in shelf.find(job):
                    self.pieces += 1
                    self.bytes += segment.size
                    of = [job, key.attempt, key.rank, key.lineage, stream.name.lower()]
                    yield [*of, segment.start, segment.is_head, segment.size]
        finally:
            shelf.close()


def shelf_to_read(settings: SchedulerSettings) -> SegmentStore | None:
    """Where output is, of a scheduler that may run; None where there is none, and no folder is made for it."""
    is_in_files = parse_url(store_url(settings)).get_backend_name() == "sqlite"
    if is_in_files and not (settings.data / FOLDER).is_dir():
        return None
    return open_shelf(settings.store, 0, settings.data / FOLDER)


def listed_in(archive: Archive) -> Iterator[tuple[SegmentKey, int]]:
    """Each piece that a backup lists, and its bytes. Errors: BACKUP_INVALID."""
    for lines in parts.lines_of(archive, PREFIX):
        for line in lines:
            if tuple(map(type, line)) != KINDS:
                raise GpufleetError(Reason.BACKUP_INVALID, f"{archive.path}: {line!r} is no piece of output")
            job, attempt, rank, lineage, stream, start, is_head, size = line
            if stream not in ("stdout", "stderr"):
                raise GpufleetError(Reason.BACKUP_INVALID, f"{archive.path}: no stream is called {stream!r}")
            key = RankKey(JobId(job), attempt, rank, lineage)
            yield SegmentKey(key, OutputStream[stream.upper()], start, is_head), size


def sizes_on(shelf: SegmentStore | None, job: JobId) -> dict[SegmentKey, Segment]:
    """The pieces that are there of a job. Errors: OutputStoreUnavailable."""
    found = () if shelf is None else shelf.find(job)
    return {SegmentKey(key, stream, each.start, each.is_head): each for (key, stream), each in found}
