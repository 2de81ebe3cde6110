"""The course of one device, or band: its newest points in three levels of detail, and what of them is to be stored.

1 s for 10 minutes lives in memory alone. 10 s for a day and 5 min for long are handed over row by row; the newest rows
stay in memory, too, so that a reader need not wait for a writer.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .points import Kind, Point, Reading, Sums

DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class Level:
    """One level of detail: how long a point is, and how many there are in a stored row."""

    number: int
    step_seconds: int
    row_entries: int
    is_rewritten: bool = False
    """Whether a row is stored at each of its points, and not only when it is whole."""


SECONDS = Level(0, 1, 0)
TENS = Level(1, 10, 30)
FIVES = Level(2, 300, 36, is_rewritten=True)
SECONDS_KEPT = 600
"""How long points of 1 s stay in memory. (How long the others are kept is a setting.)"""
SECONDS_DROPPED = 16
"""How many new points come before it is seen which are too old."""
LEVELS = (SECONDS, TENS, FIVES)
LATE_SECONDS_MAX = 10
"""A point that ends earlier than this before the newest one is left out: a clock went back, or it was told twice."""


@dataclass(frozen=True, slots=True)
class StoredRow:
    """Entries to be stored: of this level, the first of them beginning then. It takes the place of an older one."""

    level: int
    begin: int
    entries: bytes


class Track:
    """The points of one level that are not coarse enough to be dropped from memory yet."""

    __slots__ = ("_kind", "_level", "_open", "_row_at", "entries")

    def __init__(self, kind: Kind, level: Level) -> None:
        self._kind = kind
        self._level = level
        self._open: Sums | None = None
        self.entries = bytearray()
        """Of the row before and of the present one."""
        self._row_at = 0
        """Where in `entries` the present row begins."""

    def add(self, point: Point, weight: float) -> Sequence[Point]:
        """Count a point; answers those of this level that are complete with it, mostly none."""
        step, sums = self._level.step_seconds, self._open
        complete: Sequence[Point] = ()
        if sums is not None and point.end > sums.end:
            complete, sums = (self._close(),), None
        if point.end - point.begin >= 2 * step:
            return (*complete, self._keep(point))  # it says the same of several steps
        if sums is None:
            begin = (point.end - 1) // step * step
            sums = self._open = Sums(len(self._kind.counters), begin, begin + step)
        sums.add(point.readings, weight)
        return complete

    def _close(self) -> Point:
        assert self._open is not None
        point, self._open = self._open.point(), None
        return self._keep(point)

    def _keep(self, point: Point) -> Point:
        self.entries += self._kind.pack(point)
        return point

    def rows(self, *, is_last: bool = False) -> Iterator[StoredRow]:
        """What is to be stored now; at the end, all that is not."""
        if is_last and self._open is not None:
            self._close()
        size = self._kind.entry_bytes
        begun = (len(self.entries) - self._row_at) // size
        if begun and (is_last or self._level.is_rewritten or begun >= self._level.row_entries):
            entries = bytes(self.entries[self._row_at :])
            yield StoredRow(self._level.number, next(self._kind.unpack(entries)).begin, entries)
        if begun >= self._level.row_entries:
            del self.entries[: self._row_at]
            self._row_at = len(self.entries)

    def points(self) -> list[Point]:
        """Those in memory, with the one that is not complete."""
        found = list(self._kind.unpack(bytes(self.entries)))
        return found if self._open is None else [*found, self._open.point()]

    def snapshot(self) -> tuple[bytes, Point | None]:
        """What `points` is made of, to be made elsewhere."""
        return bytes(self.entries), None if self._open is None else self._open.point()


class Course:
    """All levels of one device or band."""

    __slots__ = ("_kind", "_newest", "fives", "seconds", "tens")

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._newest = 0
        self.seconds = bytearray()
        self.tens = Track(kind, TENS)
        self.fives = Track(kind, FIVES)

    def add(
        self, begin: int, end: int, readings: Iterable[Reading], last: Sequence[float] | None = None
    ) -> Iterator[StoredRow]:
        """Take in what was read from one second to another; yields the rows that are to be stored.

        With `last` it is two readings, a second each, and this is the second one.
        """
        if end < self._newest - LATE_SECONDS_MAX:
            return
        end = max(end, self._newest)
        point = Point(min(begin, end - 1), end, tuple(readings))
        self._note_second(point, last)
        tens = self.tens.add(point, point.end - point.begin)
        if not tens:
            return
        fives = [five for ten in tens for five in self.fives.add(ten, ten.end - ten.begin)]
        yield from self.tens.rows()
        if fives:
            yield from self.fives.rows()

    def _note_second(self, point: Point, last: Sequence[float] | None) -> None:
        size, kept = self._kind.entry_bytes, self.seconds
        if point.end == self._newest and kept:
            before = list(self._kind.unpack(kept[-size:]))
            sums = Sums(len(self._kind.counters), before[0].begin, point.end)
            for each in (*before, point):
                sums.add(each.readings, each.end - each.begin)
            kept[-size:] = self._kind.pack(sums.point())
        else:
            kept += self._kind.pack(point) if last is None else self._kind.pack_pair(point, last)
        self._newest = point.end
        if len(kept) % (SECONDS_DROPPED * size) == 0:
            too_old = 0
            while self._kind.end_of(kept, too_old) <= point.end - SECONDS_KEPT:
                too_old += 1
            del kept[: too_old * size]

    def last_rows(self) -> Iterator[StoredRow]:
        """All that is not stored, when there will be no more."""
        for ten in self._last_tens():
            self.fives.add(ten, ten.end - ten.begin)
        yield from self.tens.rows(is_last=True)
        yield from self.fives.rows(is_last=True)

    def _last_tens(self) -> Iterator[Point]:
        _, unfinished = self.tens.snapshot()
        if unfinished is not None:
            yield unfinished
