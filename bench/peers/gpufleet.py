"""gpufleet itself: the running fleet of the measurement, over a channel that is open, as a client in Python has it."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from .. import measures
from ..fleet import Fleet

IN_FLIGHT = 100


@dataclass(frozen=True, slots=True)
class Gpufleet:
    """A scheduler, an agent and its keeper."""

    fleet: Fleet
    name: str = "gpufleet"

    def starts_ms(self, stamp: Path, count: int, pause_s: float) -> list[float]:
        """See Peer."""
        return asyncio.run(measures.first_instruction_ms(self.fleet, stamp, count, pause_s))

    def jobs_per_second(self, count: int) -> float:
        """See Peer; one submit of jobs that are alike."""
        return asyncio.run(measures.jobs_per_second(self.fleet, count))

    def submits_per_second(self, count: int) -> float:
        """See Peer; with IN_FLIGHT calls under way."""
        return asyncio.run(measures.submits_per_second(self.fleet, count, IN_FLIGHT, is_launching=True))
