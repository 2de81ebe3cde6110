"""The keeper's side: takes bytes from pipes into segment files and deletes what is synced."""

import errno
import os
import select
from enum import Enum, auto
from pathlib import Path
from typing import Protocol

from ..core.offsets import CHUNK_BYTES, Segment, room_bytes, segment_bytes_for, segments_to_delete
from ..core.outcome import FullReason, Offsets, Stream
from .layout import segment_path
from .sums import SumsWriter, sums_path


class ReadOutcome(Enum):
    """What came of taking from a pipe once."""

    SOME = auto()
    NOTHING = auto()
    """The pipe is empty at the moment."""
    END = auto()
    """Everybody has closed the pipe and it is empty."""
    FULL = auto()
    """There is no room: leave the pipe unread. `SpoolWriter.full` says why."""


class Copy(Protocol):
    """Where what is taken goes as well."""

    def write(self, data: memoryview) -> bytes:
        """Take it; answers what is to stand in the standard error, as a line that says why no more is taken."""
        ...

    def close(self) -> None:
        """No more comes."""
        ...


class SpoolWriter:
    """Both streams of one attempt, under one bound; deletes only whole segments below the synced offset.

    `buffer` may be shared by all writers of a single-threaded process. `copy` gets what is taken, too.
    """

    def __init__(
        self, directory: Path, bound_bytes: int, buffer: bytearray | None = None, copy: Copy | None = None
    ) -> None:
        self.full: FullReason | None = None
        self._bound_bytes = bound_bytes
        self._segment_bytes = segment_bytes_for(bound_bytes)
        self._buffer = memoryview(buffer if buffer is not None else bytearray(CHUNK_BYTES))
        self._streams = {stream: _StreamFiles(directory, stream) for stream in Stream}
        self._copy = copy

    @property
    def starts(self) -> Offsets:
        """Answer from where on each stream is still on disk."""
        return Offsets(*(self._streams[stream].start for stream in Stream))

    @property
    def ends(self) -> Offsets:
        """Answer up to where each stream is on disk."""
        return Offsets(*(self._streams[stream].end for stream in Stream))

    def take(self, stream: Stream, pipe_fd: int) -> ReadOutcome:
        """Move what a non-blocking pipe holds, up to one chunk, into the stream's open segment."""
        files = self._streams[stream]
        if not files.write_unwritten():
            return self._found_full(FullReason.DISK_FULL)
        files.seal_if_longer_than(self._segment_bytes - 1)
        held_bytes = sum(each.held_bytes for each in self._streams.values())
        room = room_bytes(self._bound_bytes, held_bytes, files.open_bytes, self._segment_bytes)
        if room == 0:
            return ReadOutcome.END if _is_at_end(pipe_fd) else self._found_full(FullReason.BOUND)
        self.full = None
        try:
            count = os.readv(pipe_fd, [self._buffer[:room]])
        except BlockingIOError:
            return ReadOutcome.NOTHING
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            count = 0  # a terminal's word for its end: no process has it open any more
        if count == 0:
            return ReadOutcome.END
        is_written = files.write(self._buffer[:count])
        if self._copy is not None and (said := self._copy.write(self._buffer[:count])):
            self._streams[Stream.STDERR].say(said)
        return ReadOutcome.SOME if is_written else self._found_full(FullReason.DISK_FULL)

    def delete_below(self, synced: Offsets) -> int:
        """Delete the older segments that are wholly synced, and answer how many bytes that freed."""
        return sum(files.delete_below(synced.of(stream)) for stream, files in self._streams.items())

    def seal(self) -> None:
        """Close the open segments; the attempt is over, or its pipe is."""
        for files in self._streams.values():
            files.seal_if_longer_than(0)
        if self._copy is not None:
            self._copy.close()

    def _found_full(self, reason: FullReason) -> ReadOutcome:
        self.full = reason
        return ReadOutcome.FULL


def _is_at_end(pipe_fd: int) -> bool:
    """Say whether a pipe is empty and closed, without taking anything from it."""
    poll = select.poll()
    poll.register(pipe_fd, select.POLLIN)
    return any(events & select.POLLHUP and not events & select.POLLIN for _, events in poll.poll(0))


class _StreamFiles:
    """One stream: its sealed segments, the open one, and bytes the disk had no room for."""

    def __init__(self, directory: Path, stream: Stream) -> None:
        self._directory = directory
        self._stream = stream
        self._sealed: list[Segment] = []
        self._open_fd: int | None = None
        self._sums: SumsWriter | None = None
        self._open_start = 0
        self._unwritten = b""
        self.end = 0

    @property
    def start(self) -> int:
        return self._sealed[0].start if self._sealed else self._open_start

    @property
    def open_bytes(self) -> int:
        return self.end - self._open_start

    @property
    def held_bytes(self) -> int:
        return self.end - self.start + len(self._unwritten)

    def write(self, data: memoryview) -> bool:
        """Append; when the disk refuses, remember the rest and answer False."""
        assert not self._unwritten, "bytes would change places"
        written = self._write_some(data)
        if written < len(data):
            self._unwritten = bytes(data[written:])
        return written == len(data)

    def say(self, line: bytes) -> None:
        """Append a line of the keeper's own, behind what waits for room."""
        if self.write_unwritten():
            self.write(memoryview(line))
        else:
            self._unwritten += line

    def write_unwritten(self) -> bool:
        """Try again what the disk refused; answer whether nothing is left of it."""
        if self._unwritten:
            written = self._write_some(memoryview(self._unwritten))
            self._unwritten = self._unwritten[written:]
        return not self._unwritten

    def _write_some(self, data: memoryview) -> int:
        """Any refusal of the disk (ENOSPC, EDQUOT, EIO) counts as full: it is retried, never dropped."""
        written = 0
        try:
            if self._open_fd is not None and os.fstat(self._open_fd).st_size < self.open_bytes:
                # Somebody has cut it off: what follows must not take the place of what is missing.
                self.seal_if_longer_than(0)
            if self._open_fd is None:
                path = segment_path(self._directory, self._stream, self._open_start)
                self._open_fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                self._sums = SumsWriter(path)
            while written < len(data):
                count = os.write(self._open_fd, data[written:])
                written += count
                self.end += count
        except OSError:
            pass
        if written and self._sums is not None:
            self._sums.add(data[:written])
            self._sums.save()
        return written

    def seal_if_longer_than(self, length: int) -> None:
        if self._open_fd is not None and self.open_bytes > length:
            os.close(self._open_fd)
            self._open_fd = None
            if self._sums is not None:
                self._sums.close()
                self._sums = None
            self._sealed.append(Segment(self._open_start, self.end))
            self._open_start = self.end

    def delete_below(self, synced: int) -> int:
        open_segment = [Segment(self._open_start, self.end)] if self._open_fd is not None else []
        deleted = segments_to_delete(self._sealed + open_segment, synced)
        for segment in deleted:
            path = segment_path(self._directory, self._stream, segment.start)
            path.unlink(missing_ok=True)
            sums_path(path).unlink(missing_ok=True)
        del self._sealed[: len(deleted)]
        return sum(segment.end - segment.start for segment in deleted)
