"""Which forgotten attempts are still remembered; the oldest go first."""

import os
from collections import deque

from .linux import boottime_us
from .state_dir import TOMBSTONE_US, TOMBSTONES_MAX, StateDir


class Tombstones:
    """Bounds `ended/` by age and number. What earlier keepers left counts as made when it is first looked at.

    So no wall clock is asked, whose steps must not make anybody forget.
    """

    def __init__(self, state: StateDir) -> None:
        self._state = state
        self._oldest_first: deque[tuple[int, str]] | None = None

    def add(self, name: str) -> None:
        """Take in a tombstone that was just made, and delete those that are too old or too many."""
        now_us = boottime_us()
        if self._oldest_first is None:
            self._oldest_first = deque((now_us, name) for name in self._on_disk())
        else:
            self._oldest_first.append((now_us, name))
        while self._oldest_first and (
            len(self._oldest_first) > TOMBSTONES_MAX or self._oldest_first[0][0] < now_us - TOMBSTONE_US
        ):
            _, oldest = self._oldest_first.popleft()
            (self._state.ended / oldest).unlink(missing_ok=True)

    def _on_disk(self) -> list[str]:
        # By the change time: a record's own modification is its attempt's end, its renaming is the burial.
        with os.scandir(self._state.ended) as entries:
            return [name for _, name in sorted((entry.stat().st_ctime_ns, entry.name) for entry in entries)]
