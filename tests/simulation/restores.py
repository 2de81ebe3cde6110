"""Stores that are put back: a copy is taken while all goes on, and some time later it is all that the scheduler has.

Its data folder, its output and the nodes remember what came since; a person accepts that the store does not. Of half of
them a node is cut off, and tells late what it runs.
"""

from __future__ import annotations

from collections.abc import Collection

from tests.simulation.disks import SimulatedStore, StoreCopy
from tests.simulation.faults import Troubles
from tests.simulation.users import Users
from tests.simulation.world import World

RESTORED_PROBABILITY = 0.4
"""Of so many runs the store is put back, now and then twice."""

FIRST_SECONDS = 8.0
GAP_SECONDS = (0.3, 4.0, 15.0, 50.0)


class Restores:
    """The plan of one run, drawn from chance of its own."""

    def __init__(
        self,
        world: World,
        store: SimulatedStore,
        machines: Collection[str],
        users: Users,
        troubles: Troubles,
        seconds: float,
    ) -> None:
        self._world = world
        self._store = store
        self._users = users
        self._troubles = troubles
        self._machines = sorted(machines)
        rng = self._rng = world.rng("restores")
        if rng.random() < RESTORED_PROBABILITY:
            for _ in range(rng.choice((1, 1, 2))):
                gap_seconds = rng.choice(GAP_SECONDS) * rng.uniform(0.5, 1.5)
                world.after(rng.uniform(FIRST_SECONDS, seconds - 2.0 - gap_seconds), self._copy, gap_seconds)

    def _copy(self, gap_seconds: float) -> None:
        self._world.note("store: a copy is taken")
        self._world.after(gap_seconds, self._put_back, self._store.copy())

    def _put_back(self, copy: StoreCopy) -> None:
        if self._world.scheduler is not None:
            self._world.scheduler.crash()
        self._world.note("store: a copy with {} of {} records is put back", len(copy.story), len(self._store.story))
        self._store.put_back(copy)
        self._world.checks.put_back()
        self._users.put_back()
        self._troubles.put_back()
        if self._rng.random() < 0.5:
            name, seconds = self._rng.choice(self._machines), self._rng.choice((20.0, 50.0, 90.0))
            self._world.note("network: {} is cut off for {} s", name, seconds)
            self._world.network.cut_off_node(name, seconds)
