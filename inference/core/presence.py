"""What counts as real input, and for how long there was none. The worker is its only judge.

Real are a button, the wheel, text, a key that goes down and does not repeat itself, a move that is more than a
trembling hand, the first one of a turn, the answer to "still there?", and a stream that a person asked for. The time
without runs while three facts hold, in whichever order they come about: the model has answered the session once (with a
frame, or that it has none yet), a stream holds the turn, and no step is late. Nothing of that is the person's doing.
"""

from __future__ import annotations

from dataclasses import dataclass

MOVE_MIN = 0.004
"""A move is real from this distance on, as a share of the picture: two pixels in 512."""


@dataclass(slots=True)
class Presence:
    """How long one session has been without real input."""

    has_begun: bool = False
    """Whether the model has answered the session once."""

    has_stream: bool = False
    is_step_late: bool = False
    _idle_us: int = 0
    _counted_us: int = 0
    """Until when the time is counted."""

    _anchor: tuple[float, float] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the time without real input counts."""
        return self.has_begun and self.has_stream and not self.is_step_late

    def begin(self, at_us: int) -> None:
        """The model has answered the session for the first time."""
        self._count(at_us)
        self.has_begun = True

    def attach(self, at_us: int) -> None:
        """A stream holds the turn."""
        self._count(at_us)
        self.has_stream = True

    def detach(self, at_us: int) -> None:
        """No stream holds it any more."""
        self._count(at_us)
        self.has_stream = False

    def set_step_late(self, is_late: bool, at_us: int) -> None:
        """Whether the model takes too long, with whatever session."""
        self._count(at_us)
        self.is_step_late = is_late

    def real(self, at_us: int) -> None:
        """There was real input."""
        self._idle_us, self._counted_us = 0, at_us

    def moved(self, x: float, y: float, at_us: int) -> bool:
        """The pointer is there now; answers whether that was real input."""
        if self._anchor is not None:
            across, down = x - self._anchor[0], y - self._anchor[1]
            if across * across + down * down < MOVE_MIN * MOVE_MIN:
                return False
        self.real(at_us)
        self._anchor = (x, y)
        return True

    def idle_us(self, at_us: int) -> int:
        """The time without real input."""
        return self._idle_us + (max(0, at_us - self._counted_us) if self.is_running else 0)

    def _count(self, at_us: int) -> None:
        self._idle_us, self._counted_us = self.idle_us(at_us), at_us
