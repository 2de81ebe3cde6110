"""Where a node's keepers put things, and the locks that say which of them live.

active.lock                 held by the one keeper that takes launches
keepers/<keeper id>/        lock (held while that keeper lives), socket
keeper.log                  what they all say about themselves
attempts/<key>   record, and the spool's segments; there until the attempt is forgotten
ended/<key>      the record of a forgotten attempt: a tombstone
spaces/<key>     home and /tmp of an isolated attempt; there until it has ended

A key is called job.attempt.rank.lineage here (RankKey.name), so that an attempt of another lineage is another one.
"""

import fcntl
import os
import shutil
from collections import deque
from pathlib import Path

from gpufleet.jobs.runs import RankKey

from .linux import boottime_us

TOMBSTONE_US = 24 * 3600 * 1_000_000
TOMBSTONES_MAX = 10_000
"""A forgotten attempt is remembered for a day, or until this many younger ones are."""


_UNBORN = ".unborn"


class StateDir:
    """The paths of one node's state."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).absolute()
        self.attempts = self.root / "attempts"
        self.ended = self.root / "ended"
        self.keepers = self.root / "keepers"
        self.spaces = self.root / "spaces"
        self.active_lock = self.root / "active.lock"

    def prepare(self) -> None:
        """Make what is missing, for the owner's eyes only."""
        for directory in (self.root, self.attempts, self.ended, self.keepers, self.spaces):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def attempt(self, key: RankKey) -> Path:
        """Answer the directory of an attempt."""
        return self.attempts / key.name

    def tombstone(self, key: RankKey) -> Path:
        """Answer the file that remembers a forgotten attempt."""
        return self.ended / key.name

    def space(self, key: RankKey) -> Path:
        """Answer the folder of what is an isolated attempt's own."""
        return self.spaces / key.name

    def keeper(self, keeper_id: str) -> Path:
        """Answer the directory of one keeper."""
        return self.keepers / keeper_id

    def keeper_ids(self) -> list[str]:
        """List the keepers that have a directory, living or dead."""
        return sorted(entry.name for entry in self.keepers.iterdir() if not entry.name.endswith(_UNBORN))

    def keeper_lock(self, keeper_id: str) -> Path:
        """Answer the lock that a keeper holds while it, or a child that has not reached its command, lives."""
        return self.keeper(keeper_id) / "lock"

    def make_keeper(self, keeper_id: str) -> int:
        """Make a keeper's directory with its lock already taken, and answer the lock.

        Only the holder of the active lock may: what another one left unfinished is nobody's then.
        """
        for left in self.keepers.glob(f"*{_UNBORN}"):
            shutil.rmtree(left, ignore_errors=True)
        unborn = self.keepers / f"{keeper_id}{_UNBORN}"
        unborn.mkdir(mode=0o700)
        lock_fd = try_lock(unborn / "lock", create=True)
        assert lock_fd is not None, "nobody else knows this directory"
        unborn.rename(self.keeper(keeper_id))
        return lock_fd


def try_lock(path: Path, *, create: bool = False) -> int | None:
    """Take a lock that ends with the process (or with the descriptor); None when somebody holds it.

    FileNotFoundError when there is no such lock and none is to be created.
    """
    fd = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def socket_address(directory_fd: int) -> str:
    """Name the socket in an open directory; a plain path may be longer than a socket's 107 bytes."""
    return f"/proc/self/fd/{directory_fd}/socket"


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
