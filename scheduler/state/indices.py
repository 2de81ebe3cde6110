"""The indices of an array's items: rising numbers, kept as runs of equal steps, so that many cost what few do."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

Run = tuple[int, int, int]
"""(position, index, step): from this position on the indices rise by `step`, until the next run begins."""

_BEYOND = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class Indices:
    """`count` indices in rising order; position 0 is the lowest."""

    count: int
    runs: tuple[Run, ...]

    @classmethod
    def of_ranges(cls, ranges: Sequence[range]) -> "Indices":
        """The indices of ranges that rise and do not overlap. Errors: ValueError, where two name the same index."""
        parts = sorted((part for part in ranges if len(part)), key=lambda part: part[0])
        if any(later[0] <= earlier[-1] for earlier, later in pairwise(parts)):
            numbers = sorted(number for part in parts for number in part)
            twice = next((number for number, other in pairwise(numbers) if number == other), None)
            if twice is not None:
                raise ValueError(f"index {twice} is named twice")
            return cls.of_numbers(numbers)
        runs: list[Run] = []
        count = 0
        for part in parts:
            runs.append((count, part[0], part.step if len(part) > 1 else 1))
            count += len(part)
        return cls(count=count, runs=tuple(runs))

    @classmethod
    def of_numbers(cls, numbers: Sequence[int]) -> "Indices":
        """The indices that are these rising numbers."""
        runs: list[Run] = []
        for position, number in enumerate(numbers):
            if runs:
                begin, first, step = runs[-1]
                if position - begin == 1 and number - first > 0:
                    runs[-1] = (begin, first, number - first)
                    continue
                if number == first + (position - begin) * step:
                    continue
                if position - begin == 2 and step != 1:
                    # Two numbers far apart are no run: the second may begin one.
                    second = first + step
                    runs[-1] = (begin, first, 1)
                    runs.append((position - 1, second, number - second))
                    continue
            runs.append((position, number, 1))
        return cls(count=len(numbers), runs=tuple(runs))

    def at(self, position: int) -> int:
        """The index at a position, from 0."""
        assert 0 <= position < self.count, f"position {position} of {self.count}"
        begin, first, step = self.runs[bisect_right(self.runs, (position, _BEYOND, 0)) - 1]
        return first + (position - begin) * step

    def position(self, index: int) -> int | None:
        """The position of an index; None for one that is not among them."""
        at = self.first_from(index)
        return at if at < self.count and self.at(at) == index else None

    def first_from(self, index: int) -> int:
        """The position of the lowest index that is not below this one; `count` without any."""
        return bisect_left(range(self.count), index, key=self.at)

    def parts(self) -> Iterator[range]:
        """The indices as ranges, in their order."""
        for number, (begin, first, step) in enumerate(self.runs):
            end = self.runs[number + 1][0] if number + 1 < len(self.runs) else self.count
            yield range(first, first + (end - begin - 1) * step + 1, step)

    def __str__(self) -> str:
        """As a person writes them: 1-100, 1,3,5-9 or 0-30:10."""
        return ",".join(map(_range_text, self.parts()))


def _range_text(part: range) -> str:
    if len(part) == 1 or (len(part) == 2 and part.step != 1):
        return ",".join(map(str, part))
    return f"{part[0]}-{part[-1]}" + (f":{part.step}" if part.step != 1 else "")
