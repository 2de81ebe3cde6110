"""The files of control groups, in both of Linux's versions: where they are, their names, and what stands in them."""

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping

MEMORY, CPU, PIDS = "memory", "cpu", "pids"
CONTROLLERS = (MEMORY, CPU, PIDS)
"""What bounds an attempt, as the kernel calls it."""

V1, V2 = 1, 2

PROCESSES_FILE = "cgroup.procs"

CPU_PERIOD_US = 100_000
"""CPUs are counted in spans of this length, as everybody else has it."""

READ_BYTES_MAX = 1_048_576
"""Of a file with a line for each process: more than a machine has room for."""


def limits_of(version: int, controller: str, value: int) -> tuple[tuple[str, str, bool], ...]:
    """The files that set a limit, in order, what to write, and whether a kernel may lack the file.

    `value` is in bytes, CPUs or processes. Memory has no more when it counts what is swapped, too.
    """
    match version, controller:
        case 1, "memory":
            return ("memory.limit_in_bytes", f"{value}", False), ("memory.memsw.limit_in_bytes", f"{value}", True)
        case _, "memory":
            return ("memory.max", f"{value}", False), ("memory.swap.max", "0", True)
        case 1, "cpu":
            return (
                ("cpu.cfs_period_us", f"{CPU_PERIOD_US}", False),
                ("cpu.cfs_quota_us", f"{value * CPU_PERIOD_US}", False),
            )
        case _, "cpu":
            return (("cpu.max", f"{value * CPU_PERIOD_US} {CPU_PERIOD_US}", False),)
        case _:
            return (("pids.max", f"{value}", False),)


def write(path: str, text: str) -> None:
    """Write to a file that the kernel has made. OSError names the file."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode("ascii"))
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(fd)


def read(path: str) -> str:
    """Read such a file; empty where there is none, or the kernel says nothing."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            pieces = []
            size = 0
            while size < READ_BYTES_MAX and (piece := os.read(fd, 65_536)):
                pieces.append(piece)
                size += len(piece)
            return b"".join(pieces).decode("ascii", "replace")
        finally:
            os.close(fd)
    return ""


def count_in(path: str, name: str) -> int:
    """Answer the number behind a name, a line each; 0 where there is none."""
    for line in read(path).splitlines():
        word, _, number = line.partition(" ")
        if word == name and number.strip().isdecimal():
            return int(number)
    return 0


def number_in(path: str) -> int:
    """Answer the number that is all of a file; 0 where there is none."""
    text = read(path).strip()
    return int(text) if text.isdecimal() else 0


def processes_in(folder: str) -> list[int]:
    """List the processes of a group, without those of groups below it."""
    return [int(word) for word in read(f"{folder}/{PROCESSES_FILE}").split() if word.isdecimal()]


def own_paths(text: str) -> Mapping[str, str]:
    """Read a /proc/PID/cgroup: the path of a process in each hierarchy, by controller; of version 2 by ""."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        for name in names.split(","):
            found[name] = path
    return found


def mounts_of(text: str) -> Iterator[tuple[str, str, frozenset[str]]]:
    """Read a /proc/PID/mountinfo: of each mount of control groups its place, its root, and its controllers.

    Those of version 2 have none here, but "".
    """
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        kind, *more = after.split(" ")
        if kind not in ("cgroup", "cgroup2"):
            continue
        root, place = before.split(" ")[3:5]
        names = frozenset(more[-1].split(",")) if kind == "cgroup" else frozenset({""})
        yield _unescaped(place), _unescaped(root), names


def folder_of(place: str, root: str, path: str) -> str | None:
    """Where a path of a hierarchy lies that is mounted here from `root` on; None outside of what is mounted."""
    inner = path if root == "/" else path.removeprefix(root)
    is_inside = root == "/" or path == root or path.startswith(f"{root}/")
    return f"{place}{inner}".rstrip("/") if is_inside and ".." not in path.split("/") else None


def why(error: OSError) -> str:
    """Say what an error of these files means, in words that follow a folder's name."""
    if error.errno == errno.EROFS:
        return "it is mounted read-only"
    return (error.strerror or str(error)).lower()


def _unescaped(path: str) -> str:
    for code, sign in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, sign)
    return path
