"""The control groups of a keeper's attempts, and what a keeper that was killed has left of them.

    MADE IN/gpufleet-KEEPER/job.attempt.rank.lineage

A keeper writes down where it makes its own before it makes it: FOLDER/control-groups, a folder a line.
"""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from gpufleet.jobs.runs import RankKey

from ..core.launch import ControlGroup
from .files import V2, write
from .group import Group, make, members, remove

RECORD = "control-groups"

REMOVE_AGAIN_US = 50_000
"""The kernel needs a moment for processes that have just ended."""

LEAVE_PAUSE_S, LEAVE_TRIES = 0.01, 100
"""So long, and so often, whoever leaves waits: the kernel counts a group as there for a moment after its removal, and
removes none that has another in it."""

REMOVALS_MAX = 100
"""So often a group is tried to be removed; then it stays until the keeper leaves."""


class KeptGroups:
    """Makes and removes groups for one keeper. `folder` is the keeper's own; `call_at` calls back at a later instant.

    `now_us` is the clock of these instants.
    """

    def __init__(
        self,
        folder: Path,
        keeper_id: str,
        call_at: Callable[[Callable[[], None], int], None],
        now_us: Callable[[], int],
    ) -> None:
        self._record = folder / RECORD
        self._name = f"gpufleet-{keeper_id}"
        self._call_at = call_at
        self._now_us = now_us
        self._made: set[str] = set()
        self._left: dict[Group, int] = {}

    def make(self, key: RankKey, asked: ControlGroup) -> Group:
        """Make the group of an attempt. OSError where that is not possible; nothing of it is there then."""
        parents = {controller: f"{folder}/{self._name}" for controller, folder in asked.folders.items()}
        for parent in dict.fromkeys(parents.values()):
            if parent not in self._made:
                self._begin(parent, asked.version)
        return make(asked, parents, key.name)

    def remove(self, group: Group) -> None:
        """Remove the group of an attempt of which nothing is left, at once or a moment later."""
        if not remove(group.places):
            self._left[group] = 1
            self._call_at(self._remove_left, self._now_us() + REMOVE_AGAIN_US)

    def close(self) -> None:
        """Remove what is the keeper's own; what still has something in it stays."""
        remove_left(tuple(self._made))

    def _begin(self, parent: str, version: int) -> None:
        with self._record.open("a") as file:
            file.write(f"{parent}\n")
        with contextlib.suppress(FileExistsError):
            os.mkdir(parent, 0o755)  # noqa: PTH102
        if version == V2:
            for name in Path(parent, "cgroup.controllers").read_text().split():
                write(f"{parent}/cgroup.subtree_control", f"+{name}")
        self._made.add(parent)

    def _remove_left(self) -> None:
        for group, count in tuple(self._left.items()):
            if remove(group.places) or count >= REMOVALS_MAX:
                del self._left[group]
            else:
                self._left[group] = count + 1
        if self._left:
            self._call_at(self._remove_left, self._now_us() + REMOVE_AGAIN_US)


def left_by(folder: Path) -> tuple[str, ...]:
    """The groups that the keeper of this folder has, or had, made its own in."""
    try:
        return tuple((folder / RECORD).read_text().split("\n")[:-1])
    except OSError:
        return ()


def let_nothing_begin(parents: tuple[str, ...]) -> None:
    """Have no process begin in the groups of a keeper that is gone: each has the file of its version, or neither."""
    for parent in parents:
        for file, text in (("cgroup.kill", "1"), ("pids.max", "0")):
            with contextlib.suppress(OSError):
                write(f"{parent}/{file}", text)
                break


def members_left(parents: tuple[str, ...]) -> set[int]:
    """The processes in the groups of a keeper that is gone."""
    return members(parents)


def remove_left(parents: tuple[str, ...]) -> None:
    """Remove the groups of a keeper that is gone, with all that are in them."""
    for _ in range(LEAVE_TRIES):
        if remove(parents):
            return
        time.sleep(LEAVE_PAUSE_S)
