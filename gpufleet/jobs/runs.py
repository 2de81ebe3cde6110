"""What there is to know of one run of a job's command, spelled alike by scheduler, node and gpuctl.

A run is one rank of one attempt: its key, what can be typed to it, why it is told to stop, and the limits of its
processes. Pure values of the standard library: the cores of the scheduler and of the node import this, and so does the
keeper, which holds jobs through upgrades and starts on nothing else (tests/packaging/test_import_directions.py).
Their numbers on the wire are in `run_protos.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType, Self

JobId = NewType("JobId", int)

DEFAULT_GRACE_US = 30_000_000
"""The time between SIGTERM and SIGKILL of a job for which nobody said another, in microseconds."""

FENCE_US_MIN = 30_000_000
"""The shortest fence: the node's margin of 5 s, a grace of half the fence and a few heartbeats have room."""

SIGNAL_MAX = 64
"""The highest number of a signal."""

RLIMITS = ("AS", "CORE", "FSIZE", "MEMLOCK", "NOFILE", "STACK")
"""The resource limits that a job may set, by the names of getrlimit(2) without the prefix; no others can a keeper lend
to itself for the moment in which it starts a process."""

UNLIMITED = -1
"""The value of a resource limit that is none, as getrlimit(2) has it."""

PRIVATE_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")
"""What an isolated job has for itself alone: what the machine has below them is not there."""

_NAME = re.compile(r"([1-9][0-9]{0,18})\.([1-9][0-9]{0,9})\.(0|[1-9][0-9]{0,9})(?:\.([0-9a-f]{16}))?", re.ASCII)

LINEAGE = re.compile(r"(?:[0-9a-f]{16})?", re.ASCII)
"""What names a start of a scheduler, or nothing."""


def private_folder_above(path: str) -> str:
    """The folder of PRIVATE_FOLDERS that an absolute path lies in; empty where it lies in none, or is one itself."""
    if not path.startswith("/"):
        return ""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    whole = f"/{'/'.join(parts)}"
    return next((folder for folder in PRIVATE_FOLDERS if whole.startswith(f"{folder}/")), "")


@dataclass(frozen=True, slots=True, order=True)
class RankKey:
    """Names one rank of one attempt of one job; job and attempt count from 1, ranks from 0.

    `lineage` is that of the scheduler's start that placed it, in 16 hexadecimal digits: a store that is put back gives
    numbers anew, and this never. It is empty for what was placed before there were lineages, and on nodes that do not
    know them. For people a key is `5/1`, and `5/1.2` of a rank other than 0.
    """

    job: JobId
    attempt: int
    rank: int
    lineage: str = ""

    def __str__(self) -> str:
        return f"{self.job}/{self.attempt}" if self.rank == 0 else f"{self.job}/{self.attempt}.{self.rank}"

    @property
    def name(self) -> str:
        """`job.attempt.rank.lineage`, without an empty lineage: so a node calls its files and GPUFLEET_ATTEMPT_KEY.

        `parse` reads it back.
        """
        numbers = f"{self.job}.{self.attempt}.{self.rank}"
        return f"{numbers}.{self.lineage}" if self.lineage else numbers

    @classmethod
    def parse(cls, name: str) -> Self:
        """Read a name back; ValueError when it is none."""
        match = _NAME.fullmatch(name)
        if match is None:
            raise ValueError(f"{name[:80]!r} is not job.attempt.rank or job.attempt.rank.lineage")
        job, attempt, rank, lineage = match.groups()
        return cls(JobId(int(job)), int(attempt), int(rank), lineage or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitCode:
    """The process ended by itself with a code, 0 to 255."""

    code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitSignal:
    """A signal ended the process."""

    signal: int


ExitStatus = ExitCode | ExitSignal


class InputMode(StrEnum):
    """What a run can be typed to through: a pipe, or a terminal that is its output, too; None stands for /dev/null."""

    PIPE = "pipe"
    TERMINAL = "terminal"


class Cause(StrEnum):
    """Why a run is stopped: it was told to, or its node does so by itself. The first cause stands."""


class StopCause(Cause):
    """Why a run was told to stop.

    The keeper itself finds TIME_LIMIT and FENCED. GANG: another rank failed. STALE: the scheduler does not know it, or
    has replaced it. REQUEUED: it goes back to the queue.
    """

    CANCELLED = "CANCELLED"
    TIME_LIMIT = "TIME_LIMIT"
    FENCED = "FENCED"
    PREEMPTED = "PREEMPTED"
    GANG = "GANG"
    STALE = "STALE"
    REQUEUED = "REQUEUED"


class NodeCause(Cause):
    """Why a node stops a run by itself; the scheduler hears of it as the reason of the run's end.

    SHUTDOWN: the node's programs are taken down.
    """

    SHUTDOWN = "SHUTDOWN"


def cause_of(word: str) -> Cause:
    """Read why a run is stopped; ValueError when it is no cause."""
    return NodeCause(word) if word in NodeCause.__members__ else StopCause(word)


class FileWay(StrEnum):
    """How a file of a job came to its node: from the scheduler, from what the node had, or out of the shared folder."""

    WIRE = "WIRE"
    CACHE = "CACHE"
    SHARED_ROOT = "SHARED_ROOT"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRun:
    """So many files of a rank, one after the other, that came the same way."""

    way: FileWay
    count: int
