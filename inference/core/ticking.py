"""When a model that animates steps next.

All sessions of a worker tick on one grid, so that they can be stepped together. A tick that was missed is left out: the
model is told how long it was, and a burst of steps would only be late again.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Ticker:
    """The grid of ticks; without a rate there are none."""

    ticks_per_second: float
    _next_us: int | None = None

    def next_us(self, now_us: int) -> int | None:
        """When the next tick is; None for a model that only answers inputs."""
        if self.ticks_per_second <= 0:
            return None
        if self._next_us is None:
            self._next_us = now_us
        return self._next_us

    def is_due(self, now_us: int) -> bool:
        """Whether a tick is due; if so, the next one is set."""
        due_us = self.next_us(now_us)
        if due_us is None or now_us < due_us:
            return False
        period_us = max(1, round(1e6 / self.ticks_per_second))
        self._next_us = due_us + period_us * ((now_us - due_us) // period_us + 1)
        return True

    def rest(self) -> None:
        """Nobody is there: the grid begins anew with the next session."""
        self._next_us = None
