"""What holds the bytes of segments, and the marks of streams: files, or rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ..state.attempts import OutputStream
from ..state.ids import JobId, RankKey
from .layout import Segment
from .retention import StoredJob
from .times import Mark

StreamKey: TypeAlias = tuple[RankKey, OutputStream]


@dataclass(frozen=True, slots=True)
class SegmentKey:
    """The name of a segment on a shelf."""

    key: RankKey
    stream: OutputStream
    start: int
    is_head: bool


class Shelf(Protocol):
    """Holds segments of bytes. Errors of all methods: OutputStoreUnavailable."""

    def find(self, job: JobId) -> Iterable[tuple[StreamKey, Segment]]:
        """Every segment that is there of a job, in any order."""
        ...

    def write(self, segment: SegmentKey, position: int, data: memoryview) -> None:
        """Put bytes at a position that is the segment's size; all of them or, after an error, none."""
        ...

    def read(self, segment: SegmentKey, position: int, limit: int) -> bytes:
        """At most `limit` bytes from a position on; none only where the segment is gone or ends."""
        ...

    def sync(self, segments: Sequence[SegmentKey], marks: Mapping[StreamKey, Mark]) -> None:
        """Make all bytes of these segments durable, then add a mark to each of these streams.

        A mark that cannot be added is left out without a word. Errors: also UnsyncedBytesLost.
        """
        ...

    def marks(self, stream: StreamKey) -> list[Mark]:
        """The marks of a stream, oldest first."""
        ...

    def replace_marks(self, stream: StreamKey, marks: Sequence[Mark]) -> None:
        """Keep these in place of all marks of a stream."""
        ...

    def cut(self, segment: SegmentKey, size: int) -> None:
        """Shorten a segment whose later bytes are to be written again; it may be left longer."""
        ...

    def drop(self, segment: SegmentKey) -> None:
        """Remove a segment; after a crash it may be back."""
        ...

    def delete(self, job: JobId) -> None:
        """Remove everything of a job."""
        ...

    def inventory(self) -> list[StoredJob]:
        """Every job with stored output."""
        ...

    def close(self) -> None:
        """Release what is held open."""
        ...
