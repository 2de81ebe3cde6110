"""How the files of a spool are named, and the agent's side: reading it while the keeper writes, or after it died."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..core.offsets import Segment
from ..core.outcome import Offsets, Stream
from .sums import BLOCK_BYTES, Sum, is_damaged, read_sums


def segment_path(directory: Path, stream: Stream, start: int) -> Path:
    """Answer the file that holds a stream's bytes from `start` on."""
    return directory / f"{stream.value}.{start:020d}"


def segments_on_disk(directory: Path, stream: Stream) -> list[Segment]:
    """List a stream's segments in order, as far as they follow each other without a hole; none when it is gone."""
    found = every_segment(directory, stream)
    for index in range(1, len(found)):
        if found[index].start != found[index - 1].end:
            return found[:index]
    return found


def every_segment(directory: Path, stream: Stream) -> list[Segment]:
    """List a stream's segments in order, whatever lies between them; none when it is gone."""
    prefix = f"{stream.value}."
    found: list[Segment] = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                suffix = entry.name.removeprefix(prefix)
                if suffix != entry.name and suffix.isdecimal():
                    start = int(suffix)
                    with contextlib.suppress(FileNotFoundError):  # the keeper deletes what is synced at any moment
                        found.append(Segment(start, start + entry.stat().st_size))
    except FileNotFoundError:
        return []
    found.sort(key=lambda segment: segment.start)
    return found


def starts_on_disk(directory: Path) -> Offsets:
    """Answer from where on both streams are on disk; 0 where nothing was ever written."""
    starts = [segments[0].start if segments else 0 for segments in (segments_on_disk(directory, s) for s in Stream)]
    return Offsets(*starts)


def ends_on_disk(directory: Path) -> Offsets:
    """Answer up to where both streams are on disk without a hole; 0 where there is nothing."""
    ends = [segments[-1].end if segments else 0 for segments in (segments_on_disk(directory, s) for s in Stream)]
    return Offsets(*ends)


class SpoolGap(Exception):
    """These bytes are not in the spool: they were synced and deleted, or never written."""


@dataclass(frozen=True, slots=True)
class Read:
    """Bytes of a stream; `is_damaged`: they are not those that the keeper wrote, by its checksums."""

    data: bytes
    is_damaged: bool = False


class SpoolReader:
    """One attempt's spool; holds no file open between calls."""

    def __init__(self, directory: Path | str) -> None:
        self._directory = Path(directory)
        self._last: dict[Stream, int] = {}

    def read(self, stream: Stream, offset: int, bytes_max: int) -> Read:
        """Read up to `bytes_max` bytes at `offset`; none at the end. May answer less: ask again from there on.

        All that it answers is damaged, or nothing of it. Raises SpoolGap below the first kept byte, and above the end.
        """
        start = self._segment_start(stream, offset)
        if start is None:
            return Read(b"")
        segment = segment_path(self._directory, stream, start)
        found = _read_checked(segment, offset - start, bytes_max)
        # A sum may just be being written, or the memory have erred and not the disk: only twice is it true.
        return _read_checked(segment, offset - start, bytes_max) if found.is_damaged else found

    def ends(self) -> Offsets:
        """Answer up to where both streams are on disk without a hole."""
        return ends_on_disk(self._directory)

    def _segment_start(self, stream: Stream, offset: int) -> int | None:
        """Find the segment that holds `offset`; None when the stream ends there."""
        last = self._last.get(stream)
        if last is not None and last <= offset < last + self._size(stream, last):
            return last
        segments = segments_on_disk(self._directory, stream)
        for segment in segments:
            if segment.start <= offset < segment.end:
                self._last[stream] = segment.start
                return segment.start
        if offset == (segments[-1].end if segments else 0):
            return None
        raise SpoolGap(_gap_sentence(stream, offset, segments))

    def _size(self, stream: Stream, start: int) -> int:
        try:
            return segment_path(self._directory, stream, start).stat().st_size
        except FileNotFoundError:
            return 0


def _read_checked(segment: Path, begin: int, bytes_max: int) -> Read:
    """Read a segment from `begin` on, as far as its blocks are all as they were written, or all are not."""
    sums = read_sums(segment)  # before the bytes: there is no sum of what is not there yet
    first = begin // BLOCK_BYTES * BLOCK_BYTES
    stop = begin + bytes_max if sums is None else -(-(begin + bytes_max) // BLOCK_BYTES) * BLOCK_BYTES
    fd = os.open(segment, os.O_RDONLY)
    try:
        if sums is None:
            return Read(os.pread(fd, bytes_max, begin))
        data = memoryview(os.pread(fd, stop - first, first))
    finally:
        os.close(fd)
    verdicts = _verdicts(data, sums[first // BLOCK_BYTES :])
    is_bad, end = next(verdicts, (False, 0))
    for is_bad_too, end_too in verdicts:
        if is_bad_too is not is_bad:
            break
        end = end_too
    return Read(bytes(data[begin - first : min(end, begin - first + bytes_max)]), is_damaged=is_bad)


def _verdicts(data: memoryview, sums: list[Sum]) -> Iterator[tuple[bool, int]]:
    """Of each block of `data` whether it is damaged, and where it ends."""
    for index, at in enumerate(range(0, len(data), BLOCK_BYTES)):
        block = data[at : at + BLOCK_BYTES]
        yield is_damaged(block, sums[index] if index < len(sums) else None), at + len(block)


def damaged_blocks(segment: Path) -> Iterator[Segment]:
    """The blocks of a segment that hold other bytes than were written, by their offsets in it. Errors: OSError."""
    size, at = segment.stat().st_size, 0
    while at < size:
        found = _read_checked(segment, at, BLOCK_BYTES - at % BLOCK_BYTES)
        if found.is_damaged and (found := _read_checked(segment, at, BLOCK_BYTES)).is_damaged:
            yield Segment(at, at + len(found.data))
        at += max(1, len(found.data))


def _gap_sentence(stream: Stream, offset: int, segments: list[Segment]) -> str:
    if not segments:
        return f"{stream.value} at {offset}: the spool holds nothing"
    return f"{stream.value} at {offset}: the spool holds {segments[0].start} to {segments[-1].end}"
