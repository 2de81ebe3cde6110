"""CPUs and memory of this machine, as far as they are ours to give: affinity and cgroup v2 limits count."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

CPUS_MAX = 16_384
CGROUP_MOUNTS = ("sys/fs/cgroup", "sys/fs/cgroup/unified")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What jobs may use of the machine in all."""

    cpus: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSample:
    """One reading of the machine, or of the agent's cgroup where that has a limit of its own.

    `cpu_percent` is the share of all CPUs in use since the last reading, 0 to 100; None in the first one.
    """

    cpu_percent: int | None = None
    memory_used_bytes: int | None = None


def host_facts(*, cpus: int | None = None, root: Path = Path("/")) -> HostFacts:
    """Count CPUs and memory. `cpus` overrides the count (1 to 16,384), up or down; `root` is for tests."""
    if cpus is not None and not 1 <= cpus <= CPUS_MAX:
        raise ValueError(f"cpus: {cpus} is not between 1 and {CPUS_MAX}")
    limiting = _limiting_group(root)
    installed = memory_installed_bytes(root)
    return HostFacts(
        cpus=cpus if cpus is not None else cpus_available(root),
        memory_bytes=installed if limiting is None else min(installed, limiting[1]),
    )


class HostReader:
    """Reads the machine's use; keeps the last CPU counters, as use is a difference of two readings."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._before: tuple[int, int] | None = None

    def sample(self) -> HostSample:
        now = _cpu_ticks(self._root)
        before, self._before = self._before, now
        percent = None
        if now is not None and before is not None and now[1] > before[1]:
            percent = max(0, min(100, round(100 * (now[0] - before[0]) / (now[1] - before[1]))))
        return HostSample(cpu_percent=percent, memory_used_bytes=_memory_used_bytes(self._root))


def memory_installed_bytes(root: Path = Path("/")) -> int:
    """All memory of the machine, limits left aside."""
    total = _meminfo(root).get("MemTotal")
    return total if total is not None else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _limiting_group(root: Path) -> tuple[Path, int] | None:
    """The cgroup with the tightest memory limit, ours or one above it, and that limit in bytes."""
    limits = ((group, _number(_read(group / "memory.max"))) for group in _cgroups(root))
    return min(((group, limit) for group, limit in limits if limit is not None), key=itemgetter(1), default=None)


def cpus_available(root: Path = Path("/")) -> int:
    """CPUs that this process may use: those of its affinity, at most what its control groups give; at least 1."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity is not None else (os.cpu_count() or 1)
    for group in _cgroups(root):
        quota, _, period = _read(group / "cpu.max").partition(" ")
        if (quota_us := _number(quota)) is not None and (period_us := _number(period)):
            # A part of a CPU is not a CPU to give away, but there is always one.
            count = min(count, max(1, quota_us // period_us))
    return count


def _memory_used_bytes(root: Path) -> int | None:
    limiting = _limiting_group(root)
    if limiting is not None:
        group = limiting[0]
        current = _number(_read(group / "memory.current"))
        if current is not None:
            # Clean file pages count as used there, yet are given back as soon as somebody asks.
            cache = _fields(_read(group / "memory.stat")).get("inactive_file", 0)
            return max(0, current - cache)
    memory = _meminfo(root)
    if "MemTotal" not in memory or "MemAvailable" not in memory:
        return None
    return memory["MemTotal"] - memory["MemAvailable"]


def _cpu_ticks(root: Path) -> tuple[int, int] | None:
    """Busy and all ticks of all CPUs since boot."""
    line = _read(root / "proc/stat").partition("\n")[0].split()
    if len(line) < 6 or line[0] != "cpu":
        return None
    # user nice system idle iowait irq softirq steal; guest time is in user already.
    ticks = [int(field) for field in line[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def _cgroups(root: Path) -> Iterator[Path]:
    """Our cgroup v2 directory and those above it, innermost first."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        if not line.startswith("0::/"):
            continue
        for mount in CGROUP_MOUNTS:
            top = root / mount
            if not (top / "cgroup.controllers").exists():
                continue
            group = top / line.removeprefix("0::/")
            # In a container the path may be the host's, of which only the top is mounted.
            while group != top:
                if group.is_dir() and ".." not in group.parts:
                    yield group
                group = group.parent
            yield top
            return


def _meminfo(root: Path) -> dict[str, int]:
    found = {}
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        number = _number(value.removesuffix("kB"))
        if number is not None:
            found[name] = number * 1024
    return found


def _fields(text: str) -> dict[str, int]:
    pairs = (line.partition(" ") for line in text.splitlines())
    return {name: int(value) for name, _, value in pairs if value.strip().isdigit()}


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
