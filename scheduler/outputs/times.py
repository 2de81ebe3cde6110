"""When output arrived: marks that each say how long a stream was at a moment. Pure.

A mark is made at each sync, so it tells times to within a sync, and wherever another stream of the attempt goes on, so
that both are read in the order in which they arrived. A stream has MARKS_MAX of them at most. When it has more, marks
that lie close together for their age are dropped: what is newest stays exact, and what is old is known to within about
two hundredths of its age. A mark that is missing, dropped or lost in a crash, only makes a reader begin
earlier than it could, never later.
"""

import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..ports import Mark
from ..state.units import Instant

MARKS_MAX = 4096
"""Marks that are stored of a stream; with more they are thinned to half as many, or fewer."""

TURNS_MAX = 256
"""Marks of a stream between two syncs; with more the newest one gives way, and the order within is that of the next."""

FINEST_SHARE = 1 / 256
"""Thinning begins by dropping marks that are closer to the next one than this share of their age, then twice it."""

_FIELDS = struct.Struct(">qq")
ENTRY_BYTES = _FIELDS.size + 4
"""A mark as bytes: its instant, its end, and a checksum of the two."""


@dataclass(frozen=True, slots=True)
class Marked:
    """What a writer must know of a stream's marks: how many there are, and the newest."""

    count: int = 0
    newest: Mark | None = None

    @classmethod
    def of(cls, marks: Sequence[Mark]) -> "Marked":
        """That of stored marks."""
        return cls(len(marks), marks[-1] if marks else None)

    def next(self, now: Instant, end: int) -> Mark | None:
        """The mark for a stream that is `end` long now; None when the newest one says so already.

        Marks rise in time even where the wall clock goes back.
        """
        if self.newest is None:
            return Mark(now, end) if end else None
        return Mark(Instant(max(now, self.newest.at + 1)), end) if end > self.newest.end else None

    def grown(self, mark: Mark) -> "Marked":
        """With one more."""
        return Marked(self.count + 1, mark)

    def following(self, seen: Iterable[Mark]) -> list[Mark]:
        """Of moments, oldest first, the marks that say more than is known."""
        marked, marks = self, list[Mark]()
        for each in seen:
            if (mark := marked.next(each.at, each.end)) is not None:
                marks.append(mark)
                marked = marked.grown(mark)
        return marks


def arrived_before(marks: Iterable[Mark], at: Instant) -> int:
    """The offset below which every byte is known to have arrived before an instant; 0 when none is known to."""
    return max((mark.end for mark in marks if mark.at < at), default=0)


def thinned(marks: Sequence[Mark]) -> list[Mark]:
    """At most half of MARKS_MAX of these marks, the newest among them."""
    kept, share = list(marks), FINEST_SHARE
    while len(kept) > MARKS_MAX // 2:
        kept, share = _sparser(kept, share), 2 * share
    return kept


def _sparser(marks: Sequence[Mark], share: float) -> list[Mark]:
    """From the newest back, so that of a burst its end stays: what follows is silence, and begins there."""
    newest = marks[-1]
    kept = [newest]
    for mark in reversed(marks[:-1]):
        if kept[-1].at - mark.at > share * (newest.at - mark.at):
            kept.append(mark)
    return kept[::-1]


def packed(marks: Iterable[Mark]) -> bytes:
    """The marks as bytes, ENTRY_BYTES each."""
    fields = (_FIELDS.pack(mark.at, mark.end) for mark in marks)
    return b"".join(each + zlib.crc32(each).to_bytes(4) for each in fields)


def unpacked(data: bytes) -> list[Mark]:
    """The marks that the bytes hold, without what is none: a crash may leave zeros or half an entry."""
    marks: list[Mark] = []
    for start in range(0, len(data) - ENTRY_BYTES + 1, ENTRY_BYTES):
        fields, check = data[start : start + _FIELDS.size], data[start + _FIELDS.size : start + ENTRY_BYTES]
        at, end = _FIELDS.unpack(fields)
        is_whole = zlib.crc32(fields) == int.from_bytes(check)
        if is_whole and end > 0 and (not marks or (marks[-1].at < at and marks[-1].end < end)):
            marks.append(Mark(Instant(at), end))
    return marks
