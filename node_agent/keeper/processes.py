"""What /proc says about processes. A process that is gone, or not ours to see, is simply not answered."""

import errno
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ENVIRON_BYTES_MAX = 4 * 1024 * 1024
"""Linux lets nobody start a program with a larger environment than about this."""

PF_KTHREAD = 0x00200000
"""The flag of the kernel's own threads (linux/sched.h), in /proc/PID/stat."""

COMMAND_BYTES_MAX = 1
"""Whether there is a command line is all that is asked."""

EXEC_LOOKS_MAX = 200
"""How often a process without an environment is looked at: between two programs it has none for a moment."""

EXEC_PAUSE_S = 0.001
"""What lies between two of these looks."""

CHILDREN_BYTES_MAX = 64 * 1024 * 1024
"""More than the pids of all processes that Linux can hold."""


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """One process at the moment it was looked at; pid and start ticks together name it for this boot."""

    pid: int
    state: str
    parent_pid: int
    group_id: int
    session_id: int
    start_ticks: int
    flags: int

    @property
    def is_dead(self) -> bool:
        """Say whether it only waits to be reaped."""
        return self.state in "ZX"

    @property
    def is_of_kernel(self) -> bool:
        """Say whether it is a thread of the kernel, which runs no program."""
        return bool(self.flags & PF_KTHREAD)


def look_at(pid: int) -> ProcessStat | None:
    """Read one process's facts; None when there is no such process."""
    try:
        text = _read_at_once(f"/proc/{pid}/stat")
    except OSError:
        return None
    # The command's name stands in parentheses and may contain anything, also parentheses.
    fields = text[text.rfind(b")") + 2 :].split()
    return ProcessStat(
        pid=pid,
        state=fields[0].decode("ascii"),
        parent_pid=int(fields[1]),
        group_id=int(fields[2]),
        session_id=int(fields[3]),
        start_ticks=int(fields[19]),
        flags=int(fields[6]),
    )


def all_processes() -> Iterator[ProcessStat]:
    """Look at every process of the machine (of the container)."""
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdecimal()]
    for pid in pids:
        if (process := look_at(pid)) is not None:
            yield process


def children(pid: int) -> list[int]:
    """List the children of a single-threaded process, zombies included."""
    try:
        return [int(word) for word in _read(f"/proc/{pid}/task/{pid}/children", CHILDREN_BYTES_MAX).split()]
    except FileNotFoundError:  # it is gone, or a kernel without CONFIG_PROC_CHILDREN
        return [process.pid for process in all_processes() if process.parent_pid == pid]


def pid_behind(pidfd: int) -> int:
    """Answer the number that a process has here, by its descriptor; -1 of one that was reaped."""
    for line in _read(f"/proc/self/fdinfo/{pidfd}", 4096).splitlines():
        if line.startswith(b"Pid:"):
            return int(line.split()[1])
    raise OSError(errno.EINVAL, "this is no descriptor of a process")


def environment_of(pid: int) -> dict[bytes, bytes]:
    """Read the environment a process was started with; empty when that cannot be seen.

    While the kernel replaces a process's program, both its environment and its command line read as empty: such a
    process is waited for, for at most EXEC_LOOKS_MAX × EXEC_PAUSE_S.
    """
    was_shown, data = False, b""
    for _ in range(EXEC_LOOKS_MAX):
        try:
            data = _read(f"/proc/{pid}/environ", ENVIRON_BYTES_MAX)
            is_shown = bool(_read(f"/proc/{pid}/cmdline", COMMAND_BYTES_MAX))
        except OSError:
            return {}
        # A command line without an environment has to be seen twice: the first may be that of the next program.
        if data or (is_shown and was_shown) or not _runs_a_program(pid):
            break
        was_shown = is_shown
        time.sleep(EXEC_PAUSE_S)
    return dict(entry.split(b"=", 1) for entry in data.split(b"\0") if b"=" in entry)


def _runs_a_program(pid: int) -> bool:
    """Say whether a process has, or is about to have, a program: the dead and the kernel's own threads have none."""
    process = look_at(pid)
    return process is not None and not process.is_dead and not process.is_of_kernel


def holds_pipe(pid: int, pipe_ids: frozenset[str]) -> bool:
    """Say whether a process has one of these pipes open; ids as `pipe_id` answers them."""
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            return any(_link(Path(entry.path)) in pipe_ids for entry in entries)
    except OSError:
        return False


def pipe_id(fd: int) -> str | None:
    """Name the pipe behind a descriptor as /proc does; None where it is none.

    A terminal's name in /proc is given to another one once it is closed.
    """
    about = os.fstat(fd)
    return f"pipe:[{about.st_ino}]" if stat.S_ISFIFO(about.st_mode) else None


def _read_at_once(path: str) -> bytes:
    """What a single read answers: all of a file that the kernel writes into one page."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def _read(path: str, bytes_max: int) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        pieces: list[bytes] = []
        while bytes_max > 0 and (piece := os.read(fd, min(bytes_max, 65536))):
            pieces.append(piece)
            bytes_max -= len(piece)
        return b"".join(pieces)
    finally:
        os.close(fd)


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""
