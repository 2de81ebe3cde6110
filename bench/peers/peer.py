"""What is asked of each program that runs jobs."""

from pathlib import Path
from typing import Protocol


class NotHere(Exception):
    """A program that is not installed on this machine; the sentence says how to have it."""


class Peer(Protocol):
    """One program with its servers running, and nothing to do."""

    @property
    def name(self) -> str:
        """As the table calls it."""
        ...

    def starts_ms(self, stamp: Path, count: int, pause_s: float) -> list[float]:
        """From asking for a job to its first instruction, in milliseconds, one job after the other, that far apart.

        `stamp` is a program that prints CLOCK_BOOTTIME in nanoseconds.
        """
        ...

    def jobs_per_second(self, count: int) -> float:
        """So many jobs of /bin/true, asked for in the cheapest way that there is, from then to the last one's end."""
        ...

    def submits_per_second(self, count: int) -> float:
        """So many jobs of /bin/true, asked for one by one; returns once they have ended, which is not counted."""
        ...
