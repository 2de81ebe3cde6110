"""A device's own count of the energy that it used, where the driver takes long to tell it.

On an H100 with driver 580 that one call costs 4.0 ms of processor time, of 4.4 ms for all counters of a device
(bench/results). There it is asked for every EVERY_S, and carried on by the power that is read each time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

EVERY_S = 10.0
COSTLY_S, COSTLY_CALLS = 0.001, 3
"""So many calls in a row that take so much processor time, or more, have it made every EVERY_S only; a cheaper one is
made at each reading. A busy machine makes one call dear now and then."""


class EnergyCount:
    """Of one device, in millijoules since its driver was loaded. It never falls, unless the device's own count does."""

    def __init__(
        self,
        now_s: Callable[[], float] = time.monotonic,
        used_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._now_s, self._used_s = now_s, used_s
        self._costly_calls = 0
        self._asked_at_s = -math.inf
        self._counted: int | None = None
        self._shown_mj = 0.0
        self._shown_at_s = 0.0

    def read(self, ask: Callable[[], int | None], power_mw: int | None) -> int | None:
        """The count now; None where `ask` knows none. `power_mw` is what the device draws at present."""
        now_s = self._now_s()
        if self._counted is None or power_mw is None or not self._is_costly() or now_s >= self._asked_at_s + EVERY_S:
            self._ask(ask, now_s)
        else:
            self._shown_mj += power_mw * max(0.0, now_s - self._shown_at_s)
        self._shown_at_s = now_s
        return None if self._counted is None else round(self._shown_mj)

    def _ask(self, ask: Callable[[], int | None], now_s: float) -> None:
        begin_s = self._used_s()
        count = ask()
        self._costly_calls = self._costly_calls + 1 if self._used_s() - begin_s >= COSTLY_S else 0
        self._asked_at_s = now_s
        has_begun_anew = count is None or self._counted is None or count < self._counted
        self._shown_mj = float(count or 0) if has_begun_anew else max(self._shown_mj, float(count or 0))
        self._counted = count

    def _is_costly(self) -> bool:
        return self._costly_calls >= COSTLY_CALLS
