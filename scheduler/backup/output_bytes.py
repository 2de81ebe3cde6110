"""The bytes that jobs had printed, of a backup that has them: one piece behind the other, in the order of the list.

What is there already is never written again: a piece that is shorter gets the rest, and every other is left as it is.
So putting output back may be interrupted and done again, and goes on where it was.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import groupby

from gpufleet.config.scheduler_settings import SchedulerSettings
from gpufleet.errors import GpufleetError, Reason

from ..outputs.opening import FOLDER, open_shelf
from ..outputs.segment_store import SegmentKey, SegmentStore
from . import output_list, parts
from .archive import Archive
from .parts import PART_BYTES

PREFIX = "bytes"
READ_BYTES = 1024 * 1024
SYNCED_BYTES = 4 * 1024 * 1024
"""After so many bytes what was put back is made durable: rows wait in memory for that."""


class Packing:
    """Takes bytes, and makes a member of each PART_BYTES of them."""

    def __init__(self, add: Callable[[str, bytes, int], None]) -> None:
        self._add = add
        self._waiting = bytearray()
        self._number = 0

    def take(self, shelf: SegmentStore, segment: SegmentKey, size: int) -> int:
        """Read a piece up to a size; how much of it there is: its job may be dropped meanwhile."""
        position = 0
        while position < size and (data := shelf.read(segment, position, min(READ_BYTES, size - position))):
            position += len(data)
            self._waiting += data
            if len(self._waiting) >= PART_BYTES:
                self.finish()
        return position

    def finish(self) -> None:
        """Make a member of what waits. Errors: OSError."""
        if self._waiting:
            self._number += 1
            content = bytes(self._waiting)
            self._add(f"{PREFIX}/{self._number:06d}.gz", parts.packed(content), len(content))
            self._waiting.clear()


class Unpacking:
    """Gives back bytes as they were taken."""

    def __init__(self, archive: Archive) -> None:
        self._path = archive.path
        self._contents = (parts.content_of(archive, each) for each in parts.members_of(archive, PREFIX))
        self._content = memoryview(b"")

    def _next(self) -> bytes:
        return next(self._contents, b"")

    def chunks(self, size: int) -> Iterator[memoryview]:
        """The next bytes, some at a time. Errors: BACKUP_INVALID."""
        while size:
            if not self._content:
                self._content = memoryview(self._next())
            if not self._content:
                raise GpufleetError(Reason.BACKUP_INVALID, f"{self._path}: it has less output than it lists")
            chunk, self._content = self._content[:size], self._content[size:]
            size -= len(chunk)
            yield chunk

    def must_be_over(self) -> None:
        """Raise where there are more bytes. Errors: BACKUP_INVALID."""
        if self._content or self._next():
            raise GpufleetError(Reason.BACKUP_INVALID, f"{self._path}: it has more output than it lists")


def put(settings: SchedulerSettings, archive: Archive) -> int:
    """Put back what is missing of the output that a backup has, in files or in rows; how many bytes.

    The store must be in its place. Errors: BACKUP_INVALID, OutputStoreUnavailable.
    """
    written, source = 0, Unpacking(archive)
    with closing(open_shelf(settings.store, archive.manifest.term, settings.data / FOLDER)) as shelf:
        for job, pieces in groupby(output_list.listed_in(archive), key=lambda each: each.segment.key.job):
            there = output_list.sizes_on(shelf, job)
            for piece in pieces:
                stored = there[piece.segment].size if piece.segment in there else 0
                written += _put(shelf, piece, stored, source)
    source.must_be_over()
    return written


def _put(shelf: SegmentStore, piece: output_list.OutputPiece, stored: int, source: Unpacking) -> int:
    """Write what is missing of a piece."""
    position = waiting = 0
    for chunk in source.chunks(piece.bytes):
        missing = chunk[max(stored - position, 0) :]
        if missing:
            shelf.write(piece.segment, position + len(chunk) - len(missing), missing)
            waiting += len(missing)
        position += len(chunk)
        if waiting >= SYNCED_BYTES:
            shelf.sync([piece.segment], {})
            waiting = 0
    written = max(position - stored, 0)
    if written:
        shelf.sync([piece.segment], {})
        stream = piece.segment.key, piece.segment.stream
        if piece.marks and not shelf.marks(stream):
            shelf.replace_marks(stream, piece.marks)
    return written
