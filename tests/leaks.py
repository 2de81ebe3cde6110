"""What a test may leave behind: nothing. Threads, file descriptors and processes, seen through /proc.

A process is ours when it descends from this one, or carries this session's mark in its environment, or
works with files below the session's temporary directory: a program that was started detached, or with an
environment of its own, or whose parent was killed, is found all the same. What existed before the test, and
children of such processes (a database server's workers), are not the test's.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.fork_server import starting

MARK = "GPUFLEET_TEST_SESSION"
# How long the ends of what a test stopped may take: threads unwind, the kernel reaps.
SETTLE_SECONDS = 30.0
POLL_SECONDS = 0.01
# How long a process that is loading its program is waited for: until then it has neither words nor variables.
EXEC_SECONDS = 2.0

# Descriptors that libraries and drivers keep for the life of a process, and that hold nothing of a test.
_LASTING_FILES: tuple[str, ...] = (
    *("/dev/null", "/dev/urandom", "/dev/random", "/dev/nvidia", "/proc/", "/sys/"),
    *("anon_inode:[eventpoll]", "anon_inode:[eventfd]"),
)


@dataclass(frozen=True, slots=True)
class Process:
    """A process as /proc shows it; pid and start together name it for good."""

    pid: int
    start_ticks: int
    parent: int = field(compare=False)
    is_zombie: bool = field(compare=False)
    command: str = field(compare=False)

    def __str__(self) -> str:
        state = " (ended, but nobody waited for it)" if self.is_zombie else ""
        return f"process {self.pid}: {self.command}{state}"


def read_process(pid: int) -> Process | None:
    """The process, or None when it is gone."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text(errors="replace").partition("(")[2].rpartition(")")
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None
    fields = rest.split()
    return Process(
        pid=pid,
        start_ticks=int(fields[19]),
        parent=int(fields[1]),
        is_zombie=fields[0] in "ZX",
        command=command[:200] or f"[{name}]",
    )


@dataclass(frozen=True, slots=True)
class Session:
    """How to tell this session's processes from the machine's."""

    mark: str
    temporary_directory: Path

    def has_touched(self, pid: int) -> bool:
        """Whether the process carries the mark or works below the temporary directory."""
        directory = str(self.temporary_directory)
        try:
            variables, words = read_start(pid)
            if f"{MARK}={self.mark}" in variables:
                return True
            # Another session's folder may begin with the same letters.
            if any(f"{directory}/" in word or word.endswith(directory) for word in words):
                return True
            working_directory = str(Path(f"/proc/{pid}/cwd").readlink())
        except OSError:  # gone, a zombie, or another account's
            return False
        return working_directory == directory or working_directory.startswith(f"{directory}/")


def read_start(pid: int) -> tuple[list[str], list[str]]:
    """What a process was started with: its variables (NAME=VALUE) and its words; OSError when it is gone.

    While execve(2) changes its program a process has a new, empty memory: a look at that moment finds neither,
    and would call it a stranger. It is looked at again until both are what /proc says there are, or EXEC_SECONDS.
    """
    deadline = time.monotonic() + EXEC_SECONDS
    while True:
        variables = os.fsdecode(Path(f"/proc/{pid}/environ").read_bytes())
        words = os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes())
        if time.monotonic() > deadline or _has_started(pid, bool(words), bool(variables)):
            return variables.split("\0"), words.split("\0")
        time.sleep(POLL_SECONDS / 10)


def _has_started(pid: int, has_words: bool, has_variables: bool) -> bool:
    """Whether that is what its program was started with, by proc_pid_stat(5); or it runs no program at all."""
    try:
        Path(f"/proc/{pid}/exe").readlink()  # not for a thread of the kernel, nor a zombie
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return True
    words_begin, words_end, variables_begin, variables_end = map(int, stat[45:49])
    is_set = words_begin != 0 and variables_begin != 0
    return is_set and has_words == (words_end > words_begin) and has_variables == (variables_end > variables_begin)


def all_pids() -> frozenset[int]:
    return frozenset(map(int, filter(str.isdecimal, os.listdir("/proc"))))  # noqa: PTH208  (for each test)


def open_files() -> dict[int, str]:
    """Descriptor → what it refers to, without those that last by design."""
    found = {}
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208  (for each test)
        try:
            target = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115
        except OSError:  # the descriptor of this very listing
            continue
        if not target.startswith(_LASTING_FILES):
            found[int(number)] = target
    return found


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What existed at one moment."""

    threads: frozenset[threading.Thread]
    files: dict[int, str]
    pids: frozenset[int] | None
    """None where nobody looks for processes."""

    @classmethod
    def take(cls, *, has_processes: bool = True) -> Snapshot:
        pids = all_pids() if has_processes else None
        return cls(frozenset(threading.enumerate()), open_files(), pids)


@dataclass(slots=True)
class Leaks:
    """What has come since a snapshot and is still there."""

    threads: list[threading.Thread] = field(default_factory=list)
    files: dict[int, str] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.threads or self.files or self.processes)

    def __str__(self) -> str:
        lines = [f"thread {thread.name!r}" for thread in self.threads]
        lines += [f"file descriptor {number}: {target}" for number, target in sorted(self.files.items())]
        lines += [str(process) for process in self.processes]
        return "\n".join(f"  {line}" for line in lines)


@dataclass(slots=True)
class Allowed:
    """What fixtures of a longer life have registered: it may come, and stay, while single tests run."""

    threads: set[threading.Thread] = field(default_factory=set)
    files: set[tuple[int, str]] = field(default_factory=set)
    processes: set[Process] = field(default_factory=set)

    def add(self, leaks: Leaks) -> None:
        self.threads.update(leaks.threads)
        self.files.update(leaks.files.items())
        self.processes.update(leaks.processes)


def since(before: Snapshot, session: Session, allowed: Allowed) -> Leaks:
    """What is there now, was not there `before`, and nobody has registered."""
    threads = [
        thread
        for thread in threading.enumerate()
        if thread not in before.threads and thread not in allowed.threads and thread.is_alive()
    ]
    files = {
        number: target
        for number, target in open_files().items()
        if before.files.get(number) != target
        and (number, target) not in allowed.files
        and number not in starting.servers.descriptors()
    }
    if before.pids is None:
        return Leaks(threads, files)
    # What a fork server starts is a child of this process; the server itself stays.
    lasting = before.pids | {process.pid for process in allowed.processes} | starting.servers.pids()
    processes = [
        process
        for pid in sorted(all_pids() - lasting)
        if (process := read_process(pid)) and _is_ours(process, session, lasting)
    ]
    return Leaks(threads, files, processes)


def _is_ours(process: Process, session: Session, lasting: frozenset[int]) -> bool:
    """Climbs to this process (ours), or to one that was there before (its child, not the test's)."""
    me = os.getpid()
    ancestor: Process | None = process
    while ancestor is not None and ancestor.parent > 1:
        if ancestor.parent == me:
            return True
        if ancestor.parent in lasting:
            # Whatever collects orphans here (an init, a subreaper) was there before as well: look for marks.
            return session.has_touched(process.pid) and not session.has_touched(ancestor.parent)
        ancestor = read_process(ancestor.parent)
    return session.has_touched(process.pid)


def settled(before: Snapshot, session: Session, allowed: Allowed) -> Leaks:
    """`since`, asked again until it is empty or SETTLE_SECONDS have passed."""
    leaks = since(before, session, allowed)
    deadline = time.monotonic() + SETTLE_SECONDS
    while leaks and time.monotonic() < deadline:
        gc.collect()  # what only a cycle keeps open is closed by now
        time.sleep(POLL_SECONDS)
        leaks = since(before, session, allowed)
    return leaks


def kill(processes: list[Process]) -> None:
    """End leaked processes, so that the tests that follow run on a clean machine."""
    for process in processes:
        if read_process(process.pid) != process:
            continue
        if not process.is_zombie:
            os.kill(process.pid, signal.SIGKILL)
        if process.parent == os.getpid():
            os.waitpid(process.pid, 0)
