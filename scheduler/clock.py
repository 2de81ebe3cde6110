"""The scheduler's clock: wall time at the start, then the machine's own count, nudged towards the wall by 1 % at most.

A wall clock that steps therefore expires nothing: it is noticed and reported.
"""

import asyncio
import time
from collections.abc import Callable

from .state.units import SECOND, Instant, Span

SLEW_SHARE = 100
"""The clock is nudged by one part in this many, at most."""
STEP_SPAN = Span(5 * SECOND)
"""A difference to the wall clock beyond this is a step: reported, and not followed."""


class SlewedClock:
    """Instants that never go back. `not_before` is the newest stored instant.

    `wall_us` and `boot_us` are the clocks that it is made of, in microseconds; by default those of this machine. Where
    several schedulers share a store the wall is the database's: leading/database_clock.py.
    """

    def __init__(
        self,
        not_before: Instant,
        wall_us: Callable[[], int] | None = None,
        boot_us: Callable[[], int] | None = None,
    ) -> None:
        self._wall_us = wall_us or _wall_time_us
        self._boot_us = boot_us or boot_time_us
        self._now = max(self._wall_us(), not_before + 1)
        self._counted = self._boot_us()
        self._kept = 0
        self.has_stepped = False

    def now(self) -> Instant:
        """The instant now, in microseconds."""
        counted = self._boot_us()
        elapsed = counted - self._counted
        self._counted = counted
        self._now += elapsed
        # What is too short for a whole microsecond is kept, so that a clock that is asked all the time is nudged, too.
        most, self._kept = divmod(self._kept + elapsed, SLEW_SHARE)
        off = self._wall_us() - self._now
        if abs(off) > STEP_SPAN:
            self.has_stepped = True
        else:
            self._now += max(-most, min(most, off))
        return Instant(self._now)


def wall_time() -> Instant:
    """The wall clock as it stands, steps and all: for times that people's own clocks are to agree with."""
    return Instant(_wall_time_us())


async def is_set_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Whether an event is set before so many seconds have passed; None waits as long as it takes."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


def boot_time_us() -> int:
    """What this machine has counted since its boot, in microseconds; it goes on while the machine sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def _wall_time_us() -> int:
    return time.time_ns() // 1000
