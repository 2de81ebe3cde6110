"""The control group of one attempt: made before its first instruction, and gone with its last process.

In version 1 it is a group in each hierarchy, of one name. The attempt's process enters it by descriptors that were
opened for it, so that it needs no path, and no right that it gives up.
"""

import contextlib
import errno
import os
from collections.abc import Iterable, Mapping

from ..core.launch import ControlGroup
from ..core.outcome import Shortage
from .files import CPU, MEMORY, PIDS, PROCESSES_FILE, V1, V2, count_in, limits_of, number_in, processes_in, write

PARENT_IS_TIGHTER = frozenset({errno.EINVAL, errno.ERANGE})
"""How the kernel refuses CPUs beyond those of the group above: that one holds in any case."""


class Group:
    """A group that is there. `folders`: its own, by controller."""

    def __init__(self, asked: ControlGroup, folders: Mapping[str, str]) -> None:
        self.folders = folders
        self._asked = asked

    @property
    def places(self) -> tuple[str, ...]:
        """Its folders, each once: in version 2 it is one."""
        return tuple(dict.fromkeys(self.folders.values()))

    def entrances(self) -> list[int]:
        """Open what a process writes "0" to, all of it, to be in the group. The caller's to close. OSError."""
        opened: list[int] = []
        try:
            for place in self.places:
                opened.append(os.open(f"{place}/{PROCESSES_FILE}", os.O_WRONLY | os.O_CLOEXEC))
        except OSError:
            for fd in opened:
                os.close(fd)
            raise
        return opened

    def end(self) -> None:
        """Have nothing more begin in it: what its processes leave is ended faster than they could fork."""
        with contextlib.suppress(OSError):
            if self._asked.version == V2:
                write(f"{self.places[0]}/cgroup.kill", "1")
            elif PIDS in self.folders:
                write(f"{self.folders[PIDS]}/pids.max", "0")

    def shortage(self) -> Shortage | None:
        """What it ran out of so far; None where of nothing."""
        oom_kills = peak = refused = 0
        if MEMORY in self.folders:
            place, is_old = self.folders[MEMORY], self._asked.version == V1
            oom_kills = count_in(f"{place}/{'memory.oom_control' if is_old else 'memory.events'}", "oom_kill")
            peak = number_in(f"{place}/{'memory.max_usage_in_bytes' if is_old else 'memory.peak'}") if oom_kills else 0
        if PIDS in self.folders:
            refused = count_in(f"{self.folders[PIDS]}/pids.events", "max")
        if not oom_kills and not refused:
            return None
        return Shortage(
            oom_kills=oom_kills,
            memory_bytes_peak=peak,
            memory_bytes_max=self._asked.memory_bytes,
            forks_refused=refused,
            processes_max=self._asked.processes,
        )


def make(asked: ControlGroup, parents: Mapping[str, str], name: str) -> Group:
    """Make a group of this name in these, by controller, with its limits. On an OSError nothing of it is there."""
    group = Group(asked, {controller: f"{parent}/{name}" for controller, parent in parents.items()})
    try:
        for place in group.places:
            os.mkdir(place, 0o755)  # noqa: PTH102 - text, as all names here: a launch has dozens of such calls
        for controller, value in ((MEMORY, asked.memory_bytes), (CPU, asked.cpus), (PIDS, asked.processes)):
            if controller in group.folders and value:
                _set(asked.version, controller, group.folders[controller], value)
    except OSError:
        remove(group.places)
        raise
    return group


def _set(version: int, controller: str, place: str, value: int) -> None:
    for file, text, may_lack in limits_of(version, controller, value):
        try:
            write(f"{place}/{file}", text)
        except OSError as error:
            is_held_above = controller == CPU and error.errno in PARENT_IS_TIGHTER
            if not is_held_above and not (may_lack and error.errno in (errno.ENOENT, errno.EOPNOTSUPP)):
                raise


def remove(places: Iterable[str]) -> bool:
    """Remove these groups with what an attempt made in them; False while something is in one of them."""
    is_gone = True
    for place in places:
        try:
            os.rmdir(place)  # noqa: PTH106
        except FileNotFoundError:
            continue
        except OSError:
            is_gone = _removed_with_inner(place) and is_gone
    return is_gone


def _removed_with_inner(place: str) -> bool:
    """The same where groups are in it: files of a group go with it, and only folders are groups."""
    for folder, _, _ in os.walk(place, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # noqa: PTH106
    return not os.path.isdir(place)  # noqa: PTH112


def members(places: Iterable[str]) -> set[int]:
    """The processes of these groups and of those in them, as this process numbers them."""
    found: set[int] = set()
    for place in places:
        for folder, _, _ in os.walk(place):
            found.update(processes_in(folder))
    return found
