"""What a process and all below it use, read from /proc: processor time, resident memory, I/O."""

from __future__ import annotations

import os
from pathlib import Path

from .tally import TreeReading

PROC = Path("/proc")
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
        if stat is None:
            continue
        count += 1
        ticks += stat[0]
        pages += stat[1]
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


def _stat(folder: Path) -> tuple[int, int] | None:
    """Clock ticks of the process and of its children that were waited for, and resident pages."""
    try:
        text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command's name may hold spaces and brackets; the last one ends it.
    fields = text.rpartition(")")[2].split()
    return (sum(map(int, fields[11:15])), int(fields[21])) if len(fields) > 21 else None


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
