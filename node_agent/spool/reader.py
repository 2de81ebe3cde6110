"""The agent's side: reads a spool at any offset, also while the keeper writes and also after it died."""

import os
from pathlib import Path

from ..core.offsets import Segment
from ..core.outcome import Offsets, Stream
from .layout import ends_on_disk, segment_path, segments_on_disk


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
