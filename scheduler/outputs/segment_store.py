"""What holds the bytes of segments, and the marks of streams: files, or rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ..ports import Mark
from ..state.attempts import OutputStream
from ..state.ids import JobId, RankKey
from ..state.units import Instant
from .layout import Segment

StreamKey: TypeAlias = tuple[RankKey, OutputStream]


@dataclass(frozen=True, slots=True)
class SegmentKey:
    """The name of a segment on a shelf."""

    key: RankKey
    stream: OutputStream
    start: int
    is_head: bool


@dataclass(frozen=True, slots=True)
class StoredJob:
    """How much output of a job is stored, and when the last of it came."""

    job: JobId
    size_bytes: int
    written_at: Instant


class SegmentStore(Protocol):
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

    def sync(self, segments: Sequence[SegmentKey], marks: Mapping[StreamKey, Sequence[Mark]]) -> None:
        """Make all bytes of these segments durable, then add marks to these streams, oldest first.

        Marks that cannot be added are left out without a word. Errors: also UnsyncedBytesLost.
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
