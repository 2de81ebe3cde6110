"""A circuit of one worker: closed it passes requests, open none, half open one at a time, to see whether it is well.

It opens when, of the requests that ended within the last `window_s`, at least `failures` failed, and at least
`requests_min` ended. With the defaults, 15 and 10, the first implies the second; the least number matters where fewer
failures are to open it. After `open_s` it lets single requests through; `successes` of them in a row close it, with an
empty window, and one failure opens it again.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum


class CircuitState(StrEnum):
    """What a circuit does with requests."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


OUTCOMES_MAX = 10_000
"""Requests that a window remembers at most; beyond these the oldest go first."""


class Circuit:
    """Times are in seconds, on any clock that only goes forward."""

    def __init__(self, *, failures: int, requests_min: int, window_s: float, open_s: float, successes: int) -> None:
        self._failures_to_open = failures
        self._requests_min = requests_min
        self._window_s = window_s
        self._open_s = open_s
        self._successes_to_close = successes
        self._ended: deque[tuple[float, bool]] = deque()
        self._failed = 0
        self._opened_at_s: float | None = None
        self._successes = 0
        self._probing = 0
        self.openings = 0
        """How often it has opened."""

    def state(self, now_s: float) -> CircuitState:
        """What it does now."""
        if self._opened_at_s is None:
            return CircuitState.CLOSED
        return CircuitState.HALF_OPEN if now_s >= self._opened_at_s + self._open_s else CircuitState.OPEN

    def allows(self, now_s: float) -> bool:
        """Whether a request may be sent."""
        state = self.state(now_s)
        return state is CircuitState.CLOSED or (state is CircuitState.HALF_OPEN and self._probing == 0)

    def probes_at_s(self, now_s: float) -> float | None:
        """When an open circuit lets a request through; None while it is not open."""
        if self._opened_at_s is None or self.state(now_s) is not CircuitState.OPEN:
            return None
        return self._opened_at_s + self._open_s

    def sent(self, now_s: float) -> bool:
        """A request was sent; whether it is a probe, which `ended` is to be told."""
        is_probe = self.state(now_s) is not CircuitState.CLOSED
        self._probing += is_probe
        return is_probe

    def ended(self, now_s: float, *, is_success: bool | None, was_probe: bool) -> None:
        """A request ended; `is_success` is None where it says nothing about the worker."""
        self._probing -= was_probe
        if is_success is None:
            return
        if self._opened_at_s is not None:
            if was_probe:
                self._probed(now_s, is_success=is_success)
            return
        self._ended.append((now_s, is_success))
        self._failed += not is_success
        self._forget_old(now_s)
        if self._failed >= self._failures_to_open and len(self._ended) >= self._requests_min:
            self._open(now_s)

    def _probed(self, now_s: float, *, is_success: bool) -> None:
        if not is_success:
            self._open(now_s)
            return
        self._successes += 1
        if self._successes >= self._successes_to_close:
            self._opened_at_s = None

    def _open(self, now_s: float) -> None:
        self.openings += 1
        self._opened_at_s = now_s
        self._successes = 0
        self._failed = 0
        self._ended.clear()

    def _forget_old(self, now_s: float) -> None:
        while self._ended and (self._ended[0][0] <= now_s - self._window_s or len(self._ended) > OUTCOMES_MAX):
            _, was_success = self._ended.popleft()
            self._failed -= not was_success
