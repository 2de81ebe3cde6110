"""What /proc tells of processes: what one and all below it use, and whose a process on a device is.

Processor time, resident memory, I/O; one of our live attempts', somebody else's, or not to be known.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from .device import DeviceProcess, DeviceSample, Owner
from .tally import TreeReading

PROC = Path("/proc")

KIN, TICKS, RESIDENT_PAGES = slice(1, 4), slice(11, 15), 21
"""Places in /proc/PID/stat behind the command's name: of the parent, group and session; of clock ticks, those of
children that were waited for among them; and of resident pages."""

PROCESSES_MAX = 512
"""Processes of one tree that are counted; the oldest generations first."""


def read_tree(leader_pid: int, proc: Path = PROC) -> TreeReading | None:
    """The tree below a process, None when it has gone. Processes that end meanwhile are left out."""
    waiting, seen = [leader_pid], {leader_pid}
    ticks = pages = count = 0
    read_bytes = write_bytes = None
    while waiting and count < PROCESSES_MAX:
        pid = waiting.pop(0)
        folder = proc / str(pid)
        stat = _stat(folder)
        if len(stat) <= RESIDENT_PAGES:
            continue
        count += 1
        ticks += sum(map(int, stat[TICKS]))
        pages += int(stat[RESIDENT_PAGES])
        if (moved := _io(folder)) is not None:
            read_bytes, write_bytes = (read_bytes or 0) + moved[0], (write_bytes or 0) + moved[1]
        below = [child for child in _children(folder) if child not in seen]
        seen.update(below)
        waiting += below
    if not count:
        return None
    return TreeReading(
        cpu_seconds=ticks / os.sysconf("SC_CLK_TCK"),
        memory_bytes=pages * os.sysconf("SC_PAGE_SIZE"),
        read_bytes=read_bytes,
        write_bytes=write_bytes,
        process_count=count,
    )


def _stat(folder: Path) -> list[str]:
    """What /proc/PID/stat says behind the command's name; nothing of a process that has gone."""
    try:
        text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    # The command's name may hold spaces and brackets; the last one ends it.
    return text.rpartition(")")[2].split()


def _io(folder: Path) -> tuple[int, int] | None:
    """Bytes read from and written to disks; None where the kernel does not tell us."""
    try:
        lines = (folder / "io").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    counts = dict(line.split(": ", 1) for line in lines if ": " in line)
    try:
        return int(counts["read_bytes"]), int(counts["write_bytes"])
    except (KeyError, ValueError):
        return None


def _children(folder: Path) -> list[int]:
    """The children of every thread; none where the kernel does not list them."""
    found: list[int] = []
    try:
        for thread in (folder / "task").iterdir():
            found += map(int, (thread / "children").read_text(encoding="ascii").split())
    except OSError:
        pass
    return found


ANCESTORS_MAX = 256
ENVIRONMENT_BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveAttempt:
    """An attempt that runs here: a name for it, its leader's pid, and what its whole environment carries.

    `environment` is what tells a process that left the leader's session and lost its parents; every pair must
    match.
    """

    name: str
    leader_pid: int
    environment: Mapping[str, str] = field(default_factory=dict)


def mark_owners(
    samples: Sequence[DeviceSample], attempts: Iterable[LiveAttempt], *, proc: Path = Path("/proc")
) -> tuple[DeviceSample, ...]:
    """The samples with each process's owner filled in; reads /proc of these processes and their ancestors."""
    live = tuple(attempts)
    owners: dict[int, tuple[Owner, str | None]] = {}

    def marked(process: DeviceProcess) -> DeviceProcess:
        if process.pid not in owners:
            owners[process.pid] = owner_of(process.pid, live, proc=proc)
        owner, attempt = owners[process.pid]
        return replace(process, owner=owner, attempt=attempt)

    return tuple(
        sample
        if sample.processes is None
        else replace(sample, processes=tuple(marked(process) for process in sample.processes))
        for sample in samples
    )


def owner_of(pid: int, attempts: Sequence[LiveAttempt], *, proc: Path = Path("/proc")) -> tuple[Owner, str | None]:
    """The owner of one process, and the attempt's name when it is ours.

    UNKNOWN when /proc has no such process: it has ended, or runs in a container that hides it. What an
    attempt that is over left behind is FOREIGN: nobody here answers for it any more.
    """
    stat = _stat(proc / str(pid))
    if not stat:
        return Owner.UNKNOWN, None
    by_leader = {attempt.leader_pid: attempt.name for attempt in attempts}
    for relative in _relatives(proc, pid, stat):
        if relative in by_leader:
            return Owner.OURS, by_leader[relative]
    environment = _environment(proc, pid)
    for attempt in attempts:
        if attempt.environment and attempt.environment.items() <= environment.items():
            return Owner.OURS, attempt.name
    return Owner.FOREIGN, None


def _relatives(proc: Path, pid: int, stat: Sequence[str]) -> Iterable[int]:
    """The process, its group and session, then the same of each ancestor."""
    for _ in range(ANCESTORS_MAX):
        parent, group, session = map(int, stat[KIN])
        yield from (pid, group, session)
        pid = parent
        stat = _stat(proc / str(pid)) if pid > 1 else ()
        if not stat:
            return


def _environment(proc: Path, pid: int) -> dict[str, str]:
    """The environment the process started with; empty when it is another account's."""
    try:
        with (proc / str(pid) / "environ").open("rb") as file:
            text = file.read(ENVIRONMENT_BYTES_MAX).decode(errors="replace")
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in text.split("\0") if "=" in entry)
    return {name: value for name, _, value in pairs}
