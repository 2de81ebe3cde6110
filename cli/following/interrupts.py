"""What a Ctrl-C means to an attached job. Pure: time comes in as an argument."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

SECOND_WITHIN_S = 3.0
"""A second Ctrl-C within this, in seconds, cancels the job; a later one is a first one again."""


class Meaning(Enum):
    """What an interrupt asks for."""

    FORWARD = auto()
    """Send the job SIGINT, as the terminal would."""
    CANCEL = auto()
    """Cancel the job, and stay to see its end."""
    LEAVE = auto()
    """Leave at once."""


@dataclass(slots=True)
class Interrupts:
    """The interrupts of one attached session. Without a terminal the first one cancels: there is nobody to ask."""

    has_terminal: bool
    forwarded_at: float | None = None
    has_cancelled: bool = False

    def interrupted(self, now: float) -> Meaning:
        """Another interrupt came."""
        if self.has_cancelled:
            return Meaning.LEAVE
        is_second = self.forwarded_at is not None and now - self.forwarded_at <= SECOND_WITHIN_S
        if not self.has_terminal or is_second:
            self.has_cancelled = True
            return Meaning.CANCEL
        self.forwarded_at = now
        return Meaning.FORWARD
