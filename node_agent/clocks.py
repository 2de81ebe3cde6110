"""The one clock of agent and keeper: it goes on while the machine sleeps, and nobody can set it."""

from __future__ import annotations

import time


def boottime_us() -> int:
    """Microseconds since the machine booted, time asleep included; equal for all processes of it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
