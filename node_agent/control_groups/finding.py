"""Where the agent of this machine can make control groups, looked for by making one; else why it cannot.

    version 1         a group in the agent's own of each controller
    version 2         groups beside the agent's own, below one that may give its controllers on and holds no process

Where systemd rules, what it has not delegated is its own, in both versions: it would move processes back, or end with
an error. A unit's agent has such a group with `Delegate=yes` and, in version 2, `DelegateSubgroup=`, which keeps what
systemd starts out of the group that gives its controllers on.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .files import CONTROLLERS, PROCESSES_FILE, V1, V2, folder_of, mounts_of, own_paths, processes_in, read, why, write

SUBGROUP = "gpufleet.agent"
"""The group of version 2 that the agent and its keepers move to, where nobody rules the one that they are in."""

MOVES_MAX = 100
"""So often processes that were forked meanwhile are moved, too."""

DELEGATED = ("user.delegate", "trusted.delegate")
"""By these attributes of its folder systemd says that a group is not its own."""

NOT_DELEGATED = (
    "systemd rules the control groups of this machine and has given none to the agent: its unit needs Delegate=yes and "
    "DelegateSubgroup=agent (systemd 254 or newer)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """What control groups the agent of this machine can make.

    `version`: 1 or 2 of Linux's control groups, 0 where it can make none. `folders`: for each controller ("memory",
    "cpu", "pids") the group to make others in. `why_not`: a sentence without its full stop; empty where all three are
    there.
    """

    version: int = 0
    folders: Mapping[str, str] = field(default_factory=dict)
    why_not: str = ""

    @property
    def controllers(self) -> tuple[str, ...]:
        """What can be bounded, in the kernel's words."""
        return tuple(each for each in CONTROLLERS if each in self.folders)

    @property
    def kind(self) -> str:
        """In words: `cgroup v2`, `cgroup v1`, `none`."""
        return f"cgroup v{self.version}" if self.version else "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where to look: the agent's own hierarchies, what is mounted, and whether systemd rules."""

    own: Path = Path("/proc/self/cgroup")
    mounts: Path = Path("/proc/self/mountinfo")
    systemd: Path = Path("/run/systemd/system")


def find_groups(places: Places = Places()) -> GroupFacts:
    """Look, and make ready: where version 2 wants it so, this process and those beside it move to a group of their own.

    To be called before a keeper is started, which is to be there, too.
    """
    try:
        paths = own_paths(places.own.read_text())
        mounts = list(mounts_of(places.mounts.read_text()))
    except OSError as error:
        return GroupFacts(why_not=f"this system has no control groups: {why(error)}")
    own: dict[str, str] = {}
    for place, root, names in mounts:
        for name in names & paths.keys():
            folder = folder_of(place, root, paths[name])
            if folder is not None:
                own.setdefault(name, folder)
    if not own:
        return GroupFacts(why_not="no control groups are mounted where the agent sees them")
    is_ruled = places.systemd.is_dir()
    if {*read(f"{own.get('', '')}/cgroup.controllers").split()} & {*CONTROLLERS}:
        return _of_version_2(own[""], is_ruled=is_ruled)
    return _of_version_1(own, is_ruled=is_ruled)


def _of_version_1(own: Mapping[str, str], *, is_ruled: bool) -> GroupFacts:
    ruled = own.get("name=systemd", "")
    if is_ruled and not (_is_delegated(ruled) or _is_delegated(os.path.dirname(ruled))):  # noqa: PTH120 - text
        return GroupFacts(why_not=NOT_DELEGATED)
    folders: dict[str, str] = {}
    problems: list[str] = []
    for name in CONTROLLERS:
        problem = _problem_of(own[name]) if name in own else "it is not mounted"
        if problem:
            problems.append(f"{name}: {problem}")
        else:
            folders[name] = own[name]
    lacks = f"of version 1, {'; '.join(problems)}" if problems else ""
    return GroupFacts(version=V1 if folders else 0, folders=folders, why_not=lacks)


def _of_version_2(own: str, *, is_ruled: bool) -> GroupFacts:
    above = os.path.dirname(own)  # noqa: PTH120 - text, as all names here
    if is_ruled:
        if not _is_delegated(above):
            return GroupFacts(why_not=NOT_DELEGATED)
        base = above
    else:
        base = above if own.endswith(f"/{SUBGROUP}") else own
    problem = _problem_of(base) or _give_on(base)
    if problem:
        return GroupFacts(why_not=f"{base}: {problem}")
    given = {*read(f"{base}/cgroup.subtree_control").split()}
    folders = {name: base for name in CONTROLLERS if name in given}
    missing = [name for name in CONTROLLERS if name not in given]
    lacks = f"{base} gives on no controller {' and no '.join(missing)}" if missing else ""
    return GroupFacts(version=V2 if folders else 0, folders=folders, why_not=lacks)


def _give_on(base: str) -> str:
    """Have the groups below have controllers; answers why that is not possible, or nothing."""
    wanted = [name for name in read(f"{base}/cgroup.controllers").split() if name in CONTROLLERS]
    asked = f"{base}/cgroup.subtree_control"
    for _ in range(MOVES_MAX):
        try:
            for name in wanted:
                write(asked, f"+{name}")
        except OSError as error:
            problem = why(error)
        else:
            return ""
        # Only the machine's first group may hold processes beside groups that have controllers.
        try:
            moved = _move_out(base)
        except OSError as error:
            return why(error)
        if not moved:
            return problem
    return "processes are started there faster than they are moved"


def _move_out(base: str) -> int:
    """Move what is in a group to one below it; answers how many there were."""
    processes = processes_in(base)
    if processes:
        Path(base, SUBGROUP).mkdir(exist_ok=True)
    for pid in processes:
        try:
            write(f"{base}/{SUBGROUP}/{PROCESSES_FILE}", f"{pid}")
        except ProcessLookupError:
            continue
    return len(processes)


def _problem_of(folder: str) -> str:
    """Say why no group can be made there, by making one; nothing where it can."""
    probe = f"{folder}/gpufleet-probe-{os.getpid()}"
    try:
        os.mkdir(probe)  # noqa: PTH102
        os.rmdir(probe)  # noqa: PTH106
    except OSError as error:
        return why(error)
    return ""


def _is_delegated(folder: str) -> bool:
    for name in DELEGATED:
        try:
            if os.getxattr(folder, name) == b"1":
                return True
        except OSError:
            continue
    return False
