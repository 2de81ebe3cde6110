"""What counts as real input, and for how long there was none. The worker is its only judge.

Real are a button, the wheel, text, a key that goes down and does not repeat itself, a move that is more than a
trembling hand, and the answer to "still there?". The time without runs from the first frame, and rests while no
stream holds the turn or a step is late: neither is the person's doing.
"""

from __future__ import annotations

from dataclasses import dataclass

MOVE_MIN = 0.004
"""A move is real from this distance on, as a share of the picture: two pixels in 512."""


@dataclass(slots=True)
class Presence:
    """How long one session has been without real input."""

    _idle_us: int = 0
    _running_since_us: int | None = None
    _anchor: tuple[float, float] | None = None

    def run(self, at_us: int) -> None:
        """The time counts from now on."""
        if self._running_since_us is None:
            self._running_since_us = at_us

    def rest(self, at_us: int) -> None:
        """The time does not count for now."""
        if self._running_since_us is not None:
            self._idle_us += at_us - self._running_since_us
            self._running_since_us = None

    def real(self, at_us: int) -> None:
        """There was real input."""
        self._idle_us = 0
        if self._running_since_us is not None:
            self._running_since_us = at_us

    def moved(self, x: float, y: float, at_us: int) -> bool:
        """The pointer is there now; answers whether that was real input."""
        if self._anchor is not None:
            across, down = x - self._anchor[0], y - self._anchor[1]
            if across * across + down * down < MOVE_MIN * MOVE_MIN:
                return False
            self.real(at_us)
            self._anchor = (x, y)
            return True
        # The first position only tells where the pointer rests.
        self._anchor = (x, y)
        return False

    def idle_us(self, at_us: int) -> int:
        """The time without real input."""
        running_us = 0 if self._running_since_us is None else at_us - self._running_since_us
        return self._idle_us + running_us
