"""How many items a batch is to hold: doubled while a model gains GROWTH_MIN by it, halved where memory is short."""

from __future__ import annotations

from dataclasses import dataclass

SIZE_FIRST = 16
SIZE_MAX = 1_024

GROWTH_MIN = 1.1
"""Twice the items are worth while from so many times the items a second on: each of them waits for all others."""


@dataclass(slots=True)
class SizeSearch:
    """Asks for measurements, one after the other: `size` is the next to be measured, None at the end.

    `best` is the size that was found, and `rate` its items a second; `best` is 1 while nothing was measured.
    """

    size: int | None = SIZE_FIRST
    best: int = 1
    rate: float = 0.0

    def measured(self, rate: float) -> None:
        """Batches of `size` give so many items a second."""
        size = self.size or 1
        is_faster = rate >= self.rate * GROWTH_MIN
        if is_faster:
            self.best, self.rate = size, rate
        self.size = size * 2 if is_faster and SIZE_FIRST <= size < SIZE_MAX else None

    def out_of_memory(self) -> None:
        """Batches of `size` do not fit: smaller ones are tried where none was measured."""
        size = self.size or 1
        self.size = size // 2 if not self.rate and size > 1 else None
