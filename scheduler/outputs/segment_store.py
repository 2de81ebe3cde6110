"""What holds the bytes of segments, and the marks of streams: files, or rows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class SegmentCheck:
    """What was found when a segment was read and compared with its checksums: in bytes, and sentences on what is wrong.

    `unchecked_bytes` have no checksum: they came behind the newest sync, or are of an earlier version.
    """

    stream: StreamKey
    checked_bytes: int = 0
    unchecked_bytes: int = 0
    problems: list[str] = field(default_factory=list)


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
        """Make all bytes of these segments durable, with checksums, then add marks to these streams, oldest first.

        Marks and checksums that cannot be added are left out without a word. Errors: also UnsyncedBytesLost, and
        SegmentsGone where somebody removed segments.
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

    def examine(self, job: JobId) -> Iterator[SegmentCheck]:
        """Read every segment of a job that nobody writes, and compare it with its checksums."""
        ...

    def inventory(self) -> list[StoredJob]:
        """Every job with stored output."""
        ...

    def close(self) -> None:
        """Release what is held open."""
        ...


def ends_on(shelf: SegmentStore, job: JobId) -> dict[StreamKey, int]:
    """How far each stream of a job is there. Errors: OutputStoreUnavailable."""
    ends: dict[StreamKey, int] = {}
    for each, segment in shelf.find(job):
        ends[each] = max(ends.get(each, 0), segment.end)
    return ends
