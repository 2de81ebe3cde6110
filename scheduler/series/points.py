"""Points of a history: what counters did in a span, packed to a few bytes, and summed up to coarser ones. Pure.

A point says of each counter its smallest, largest and mean value. It is kept as whole numbers of the counter's own
finest unit, so that a day of a device is some hundred kilobytes, and every entry of one kind is equally long.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

MISSING = -1.0
"""Stands for a value where nothing was read."""
SPAN_SECONDS_MAX = 32_767
"""The longest span of one point: what is longer is told of its end."""
PAIR = 32_768
"""Beside the length of an entry: it is two readings, the smallest and the largest, and its mean is the second one."""

Reading = tuple[float, float, float]
"""Smallest, largest and mean value of a counter in a span; MISSING three times where it was not read."""

NOT_READ: Reading = (MISSING, MISSING, MISSING)


@dataclass(frozen=True, slots=True)
class Counter:
    """What is kept of a counter: in units of 1 / `scale`, as a number of the struct module's `code`."""

    name: str
    scale: int
    code: str

    @property
    def largest(self) -> int:
        """The largest number that fits; it stands for what was not read."""
        return int(256 ** struct.calcsize("<" + self.code)) - 1


class Point(NamedTuple):
    """What counters did from one second to another, in seconds since 1970. One reading for each counter."""

    begin: int
    end: int
    readings: tuple[Reading, ...]


class Kind:
    """Counters that are kept together, and how an entry of them is packed: end, length, and each counter."""

    def __init__(self, name: str, counters: Sequence[Counter]) -> None:
        self.name = name
        self.counters = tuple(counters)
        self._struct = struct.Struct("<IH" + "".join(3 * counter.code for counter in counters))
        self._limits = tuple((counter.scale, counter.largest) for counter in counters)
        self.entry_bytes = self._struct.size

    def pack(self, point: Point) -> bytes:
        """A point as an entry; values beyond what fits are cut to it."""
        means = [mean for _, _, mean in point.readings]
        return self._packed(point.end, point.end - point.begin, point.readings, means)

    def _packed(self, end: int, length: int, readings: Sequence[Reading], means: Sequence[float]) -> bytes:
        numbers = [end, length]
        for (scale, largest), (low, high, _), mean in zip(self._limits, readings, means, strict=True):
            if low >= 0:
                numbers += (int(low * scale + 0.5), int(high * scale + 0.5), int(mean * scale + 0.5))
            else:
                numbers += (largest, largest, largest)
        try:
            return self._struct.pack(*numbers)
        except struct.error:
            return self._struct.pack(*self._cut(numbers))

    def pack_pair(self, point: Point, last: Sequence[float]) -> bytes:
        """Two readings, a second each, as one entry: `last` is the second one, and the other is what it is not."""
        return self._packed(point.end, 2 + PAIR, point.readings, last)

    def _cut(self, numbers: list[int]) -> Iterator[int]:
        """The same with each number in what fits; the largest one says that nothing was read."""
        yield numbers[0]
        yield max(0, min(numbers[1], SPAN_SECONDS_MAX)) if numbers[1] != 2 + PAIR else numbers[1]
        for at, number in enumerate(numbers[2:]):
            largest = self._limits[at // 3][1]
            yield number if number == largest else min(number, largest - 1)

    def unpack(self, entries: bytes | bytearray) -> Iterator[Point]:
        """The points of entries in a row, two of a pair; what is left over at the end is left out."""
        whole = len(entries) // self.entry_bytes * self.entry_bytes
        for numbers in self._struct.iter_unpack(memoryview(entries)[:whole]):
            end, length = numbers[0], numbers[1]
            if length < PAIR:
                yield Point(end - length, end, tuple(self._readings(numbers)))
                continue
            pairs = tuple(self._readings(numbers))
            yield Point(end - 2, end - 1, tuple(_same(high if last == low else low) for low, high, last in pairs))
            yield Point(end - 1, end, tuple(_same(last) for _, _, last in pairs))

    def _readings(self, numbers: tuple[int, ...]) -> Iterator[Reading]:
        at = 2
        for scale, largest in self._limits:
            low, high, mean = numbers[at : at + 3]
            yield NOT_READ if mean == largest else (low / scale, high / scale, mean / scale)
            at += 3

    def end_of(self, entries: bytes | bytearray, number: int = 0) -> int:
        """When the entry of this number ends."""
        return int.from_bytes(entries[number * self.entry_bytes : number * self.entry_bytes + 4], "little")


def _same(value: float) -> Reading:
    return (value, value, value)


DEVICE = Kind(
    "device",
    (
        Counter("utilization_percent", 10, "H"),
        Counter("memory_used_mb", 1, "I"),
        Counter("power_draw_w", 10, "H"),
        Counter("temperature_c", 1, "B"),
    ),
)
BAND = Kind(
    "band",
    (
        Counter("queued", 1, "I"),
        Counter("running", 1, "I"),
        Counter("wait_seconds", 100, "I"),
    ),
)


class Sums:
    """Readings summed up over one span. Means weigh as long as their points are."""

    __slots__ = ("_high", "_low", "_mean", "_weight", "begin", "end")

    def __init__(self, counters: int, begin: int, end: int) -> None:
        self.begin = begin
        self.end = end
        self._low = [MISSING] * counters
        self._high = [MISSING] * counters
        self._mean = [0.0] * counters
        self._weight = [0.0] * counters

    def add(self, readings: Iterable[Reading], weight: float) -> None:
        """Count readings that lasted so many seconds in this span."""
        lows, highs, means, weights = self._low, self._high, self._mean, self._weight
        for at, (low, high, mean) in enumerate(readings):
            if low < 0:
                continue
            if weights[at]:
                if low < lows[at]:
                    lows[at] = low
                if high > highs[at]:
                    highs[at] = high
            else:
                lows[at], highs[at] = low, high
            means[at] += mean * weight
            weights[at] += weight

    @property
    def is_empty(self) -> bool:
        """Whether nothing was counted."""
        return not any(self._weight)

    def readings(self) -> tuple[Reading, ...]:
        """What they come to."""
        return tuple(
            (low, high, mean / weight) if weight else NOT_READ
            for low, high, mean, weight in zip(self._low, self._high, self._mean, self._weight, strict=True)
        )

    def point(self) -> Point:
        """The span as one point."""
        return Point(self.begin, self.end, self.readings())


@dataclass(frozen=True, slots=True)
class Steps:
    """Equal steps that a history is told in: `count` of them, `length` seconds each, from `begin` on."""

    begin: int
    length: int
    count: int

    @property
    def end(self) -> int:
        """Where the last one ends."""
        return self.begin + self.length * self.count

    def sum_up(self, points: Iterable[Point], counters: int) -> list[tuple[Reading, ...] | None]:
        """What the points come to in each step; None where there are none. A long point counts for all of its steps."""
        sums: list[Sums | None] = [None] * self.count
        for point in points:
            # A point of no length stands at its end, for the step that it closes.
            begin = min(point.begin, point.end - 1)
            first = max(0, (begin - self.begin) // self.length)
            last = min(self.count - 1, (point.end - 1 - self.begin) // self.length)
            for number in range(first, last + 1):
                at = self.begin + number * self.length
                overlap = min(point.end, at + self.length) - max(begin, at)
                found = sums[number]
                if found is None:
                    found = sums[number] = Sums(counters, at, at + self.length)
                found.add(point.readings, max(overlap, 1))
        return [None if each is None or each.is_empty else each.readings() for each in sums]
