"""When a step begins: when a model that animates steps next, and whether an input about to come is worth a wait.

Where a model is about as fast as inputs come, its steps drift through the time between two of them: one that begins
just before an input leaves it waiting for a whole step more. Where inputs come in a rhythm, as moves do once a screen
refresh, such a step begins a little later, with the newest input there is; it pays that moment once, and the steps
behind it are in time for many more.
"""

from __future__ import annotations

from dataclasses import dataclass

WAIT_SHARE = 5
"""No step waits for longer than this part of what the step before took."""

GAP_US_MAX = 100_000
"""After a longer pause the rhythm is learnt anew: no display refreshes as seldom."""

GAPS_LEARNT = 8
"""Gaps that make a rhythm; each new one counts for one part in so many."""


@dataclass(slots=True)
class Rhythm:
    """When the inputs of one session came."""

    _last_us: int | None = None
    _gaps: int = 0
    _gap_us: int = 0
    _spread_us: int = 0
    """By how much a gap differs from the usual one, usually."""

    def note(self, at_us: int) -> None:
        """An input has come."""
        gap_us = GAP_US_MAX + 1 if self._last_us is None else at_us - self._last_us
        self._last_us = at_us
        if gap_us > GAP_US_MAX:
            self._gaps = 0
            return
        if self._gaps == 0:
            self._gap_us, self._spread_us = gap_us, 0
        self._gaps += 1
        self._spread_us += (abs(gap_us - self._gap_us) - self._spread_us) // GAPS_LEARNT
        self._gap_us += (gap_us - self._gap_us) // GAPS_LEARNT

    def better_at(self, at_us: int, step_us: int) -> int | None:
        """Until when a step that could begin now should wait for an input; None where it should begin.

        `step_us` is what a step takes. The wait is worth it where it is shorter than half of the newest input's age.
        """
        longest_us = step_us // WAIT_SHARE
        if self._last_us is None or self._gaps < GAPS_LEARNT or 2 * self._spread_us > longest_us:
            return None
        expected_us = self._last_us + self._gap_us + 2 * self._spread_us
        wait_us = expected_us - at_us
        is_worth_it = 2 * wait_us <= at_us - self._last_us
        return expected_us if 0 < wait_us <= longest_us and is_worth_it else None


@dataclass(slots=True)
class Ticker:
    """The grid of ticks of a model that animates; without a rate there are none.

    All sessions of a worker tick on one grid, so that they can be stepped together. A tick that was missed is left out:
    the model is told how long it was, and a burst of steps would only be late again.
    """

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
