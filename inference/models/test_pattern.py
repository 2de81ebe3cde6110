"""A picture without compute, for measuring: it shows numbers, so that what is seen says what was sent.

Colour bars; below them the number of the newest input, the number of the step, and how many clicks there were; a
cross where the pointer is. `sleep_ms` stands for a model that computes for so long.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpufleet.model import Inputs, Pointer, Session

_DIGITS = [
    "111101101101111",
    "010110010010111",
    "111001111100111",
    "111001111001111",
    "101101111001001",
    "111100111001111",
    "111100111101111",
    "111001010010010",
    "111101111101111",
    "111101111001111",
]
"""Ten digits of 3 × 5 points."""

_BARS = ((235, 235, 235), (235, 235, 16), (16, 235, 235), (16, 235, 16), (235, 16, 235), (235, 16, 16), (16, 16, 235))
DIGITS_SHOWN = 9
CROSS = (255, 255, 255)
SEATS = 64


@dataclass(slots=True)
class Pattern:
    """One session: how far it is."""

    steps: int = 0
    clicks: int = 0
    pointer: Pointer | None = None


class TestPattern:
    """`width` and `height` in pixels; `rate` ticks a second, 0 for none; `sleep_ms` for each step; `seats`."""

    __test__ = False  # pytest would take it for a test by its name

    title = "Test pattern"
    about = "Colour bars and numbers, without any compute: what is seen says what was sent."
    controls = "Point and click: the cross follows, and the numbers count inputs, steps and clicks."
    picture = "test_pattern.png"

    def __init__(
        self, *, width: int = 512, height: int = 384, rate: float = 0.0, sleep_ms: float = 0.0, seats: int = SEATS
    ) -> None:
        if width < 48 or height < 32:
            raise ValueError(f"{width}×{height} is too small: the numbers need 48×32 pixels")
        self.width, self.height, self.seats, self.ticks_per_second = width, height, seats, rate
        self._sleep_s = sleep_ms / 1e3
        self._scale = max(1, min(width // (4 * DIGITS_SHOWN), height // 24))
        self._ground = self._bars()
        self._glyphs = [self._glyph(digit) for digit in _DIGITS]

    def open(self, session: Session) -> Pattern:
        """Nothing is shown yet."""
        return Pattern()

    def step(self, state: Pattern, inputs: Inputs) -> NDArray[np.uint8]:
        """Count, and show the counts."""
        if self._sleep_s:
            time.sleep(self._sleep_s)
        state.steps += 1
        state.pointer = inputs.pointer
        for event in inputs.events:
            state.clicks += isinstance(event, Pointer) and event.buttons > 0
        frame = self._ground.copy()
        line = 6 * self._scale
        for row, number in enumerate((inputs.newest, state.steps, state.clicks)):
            self._write(frame, self.height - (3 - row) * line, number)
        if inputs.pointer is not None:
            x = round(inputs.pointer.x * (self.width - 1))
            y = round(inputs.pointer.y * (self.height - 1))
            frame[y, max(0, x - 8) : x + 9] = CROSS
            frame[max(0, y - 8) : y + 9, x] = CROSS
        return frame

    def close(self, state: Pattern) -> None:
        """Nothing to free."""

    def read(self, picture: Any, row: int) -> int:
        """The number that a picture shows in a row, 0 to 2; for tests, and for measuring without trust."""
        line = 6 * self._scale
        top, number = self.height - (3 - row) * line, 0
        for place in range(DIGITS_SHOWN):
            left = place * 4 * self._scale
            box = np.asarray(picture)[top : top + 5 * self._scale, left : left + 3 * self._scale, 1].astype(float)
            misses = [float(np.abs(box - glyph[:, :, 1]).mean()) for glyph in self._glyphs]
            number = number * 10 + misses.index(min(misses))
        return number

    def _write(self, frame: NDArray[np.uint8], top: int, number: int) -> None:
        for place, digit in enumerate(f"{number % 10**DIGITS_SHOWN:0{DIGITS_SHOWN}d}"):
            left = place * 4 * self._scale
            frame[top : top + 5 * self._scale, left : left + 3 * self._scale] = self._glyphs[int(digit)]

    def _bars(self) -> NDArray[np.uint8]:
        bars = np.array(_BARS, np.uint8)[np.arange(self.width) * len(_BARS) // self.width]
        ground = np.repeat(bars[None], self.height, axis=0)
        ground[self.height - 18 * self._scale - 2 :] = 16
        return ground

    def _glyph(self, points: str) -> NDArray[np.uint8]:
        bits = np.array([int(each) for each in points], np.uint8).reshape(5, 3)
        large = np.kron(bits, np.ones((self._scale, self._scale), np.uint8))
        return np.repeat((16 + 219 * large)[:, :, None], 3, axis=2).astype(np.uint8)
