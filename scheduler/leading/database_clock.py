"""The clock that all schedulers of one store count by: that of the database, on top of this machine's own count.

A standby whose wall clock is an hour off would end every wait and lease of an hour when it takes over. So the wall that
the scheduler's clock is nudged towards is the database's, as it was heard last, plus what this machine has counted
since.
"""

import threading
from collections.abc import Callable

from ..clock import boot_time_us

ROUND_TRIP_US_MAX = 250_000
"""An answer that took longer says too little of when the clock was read; until there is a better one it has to do."""

WORTH_GAIN = 1.1
"""A new answer is taken where it took no more than so many times as long as the best one."""


class DatabaseClock:
    """Answers the database's time without asking for it. Safe on any thread."""

    def __init__(self, boot_us: Callable[[], int] = boot_time_us) -> None:
        self._boot_us = boot_us
        self._lock = threading.Lock()
        self._offset_us: int | None = None
        self._best_us = ROUND_TRIP_US_MAX

    def heard(self, asked_us: int, answered_us: int, clock_us: int) -> None:
        """The clock was `clock_us` at a moment between two counts of this machine since its boot."""
        took_us = max(answered_us - asked_us, 1)
        with self._lock:
            if self._offset_us is not None and took_us > max(self._best_us * WORTH_GAIN, self._best_us + 1_000):
                self._best_us = min(int(self._best_us * WORTH_GAIN) + 1, ROUND_TRIP_US_MAX)  # what was good ages
                return
            self._offset_us = clock_us - (asked_us + answered_us) // 2
            self._best_us = took_us

    def count_us(self) -> int:
        """What this machine has counted since its boot."""
        return self._boot_us()

    def now_us(self) -> int:
        """The database's time now, in microseconds. It must have been heard once."""
        with self._lock:
            assert self._offset_us is not None, "nobody has asked the database yet"
            return self._boot_us() + self._offset_us
