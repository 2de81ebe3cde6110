"""What people, gateways and workers of a simulation share."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from scheduler.state.sessions.session import EndReason, SessionLimits
from scheduler.state.units import SECOND
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.session_workers import Worker


class SessionWorld(World):
    """A world with models. `workers` are by their endpoint, each the newest start on its machine."""

    workers: dict[str, Worker]
    limits: dict[str, SessionLimits]
    chosen = tuple(each.name for each in fields(SessionLimits))
    """Each of the numbers was named when its model was served."""
    closed: set[str]
    """Sessions that a person of the team closed."""
    ended: dict[str, EndReason]
    """Sessions whose end is stored, and why."""

    end_decided_at: dict[str, float]
    """When the end of each of them was decided, by true time: it may have been stored long after that."""

    broken_steps: dict[str, float]
    """Sessions of which a gateway said that a step was under way as a stream broke, and when."""

    starts = 0
    """Workers that were started so far."""

    def next_worker(self) -> int:
        """A number for one more."""
        self.starts += 1
        return self.starts

    def idle_seconds(self, model: str) -> float:
        """After so long without input a turn ends."""
        return self.limits[model].idle / SECOND

    def idle_warned_seconds(self, model: str) -> float:
        """After so long without input a person is asked."""
        limits = self.limits[model]
        return (limits.idle - limits.idle_warning) / SECOND

    def was_closed(self, session: str) -> bool:
        """Whether a person of the team closed it."""
        return session in self.closed
