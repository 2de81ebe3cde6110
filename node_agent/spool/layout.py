"""How the files of a spool are named, and the agent's side: reading it while the keeper writes, or after it died."""

import contextlib
import os
from pathlib import Path

from ..core.offsets import Segment
from ..core.outcome import Offsets, Stream


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


class SpoolReader:
    """One attempt's spool; holds no file open between calls."""

    def __init__(self, directory: Path | str) -> None:
        self._directory = Path(directory)
        self._last: dict[Stream, int] = {}

    def read(self, stream: Stream, offset: int, bytes_max: int) -> bytes:
        """Read up to `bytes_max` bytes at `offset`; b"" at the end. May answer less: ask again from there on.

        Raises SpoolGap below the first kept byte, and above the end.
        """
        start = self._segment_start(stream, offset)
        if start is None:
            return b""
        fd = os.open(segment_path(self._directory, stream, start), os.O_RDONLY)
        try:
            return os.pread(fd, bytes_max, offset - start)
        finally:
            os.close(fd)

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


def _gap_sentence(stream: Stream, offset: int, segments: list[Segment]) -> str:
    if not segments:
        return f"{stream.value} at {offset}: the spool holds nothing"
    return f"{stream.value} at {offset}: the spool holds {segments[0].start} to {segments[-1].end}"
