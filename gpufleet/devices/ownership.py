"""Whose is a process on a device: one of our live attempts', somebody else's, or not to be known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from .device import DeviceProcess, DeviceSample, Owner

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
    stat = _stat(proc, pid)
    if stat is None:
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


@dataclass(frozen=True, slots=True)
class _Stat:
    parent: int
    group: int
    session: int


def _relatives(proc: Path, pid: int, stat: _Stat) -> Iterable[int]:
    """The process, its group and session, then the same of each ancestor."""
    for _ in range(ANCESTORS_MAX):
        yield from (pid, stat.group, stat.session)
        pid = stat.parent
        above = _stat(proc, pid) if pid > 1 else None
        if above is None:
            return
        stat = above


def _stat(proc: Path, pid: int) -> _Stat | None:
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command's name may hold spaces and brackets; the last one ends it.
    fields = text.rpartition(")")[2].split()
    return _Stat(parent=int(fields[1]), group=int(fields[2]), session=int(fields[3])) if len(fields) > 3 else None


def _environment(proc: Path, pid: int) -> dict[str, str]:
    """The environment the process started with; empty when it is another account's."""
    try:
        with (proc / str(pid) / "environ").open("rb") as file:
            text = file.read(ENVIRONMENT_BYTES_MAX).decode(errors="replace")
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in text.split("\0") if "=" in entry)
    return {name: value for name, _, value in pairs}
