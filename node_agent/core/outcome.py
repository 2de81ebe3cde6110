"""The values that describe an attempt to others: its key, its offsets, its phase, its end."""

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

_KEY = re.compile(r"([1-9][0-9]{0,18})\.([1-9][0-9]{0,9})\.(0|[1-9][0-9]{0,9})", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class AttemptKey:
    """Names one rank of one attempt of one job; job and attempt count from 1, ranks from 0.

    Written `job.attempt.rank`, which is also the name of its directory.
    """

    job_id: int
    attempt: int
    rank: int = 0

    def __post_init__(self) -> None:
        if self.job_id < 1 or self.attempt < 1 or self.rank < 0:
            raise ValueError(f"{self} is no attempt: job and attempt count from 1, rank from 0")

    def __str__(self) -> str:
        return f"{self.job_id}.{self.attempt}.{self.rank}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `job.attempt.rank` back; ValueError when it is anything else."""
        match = _KEY.fullmatch(text)
        if match is None:
            raise ValueError(f"{text[:80]!r} is not job.attempt.rank")
        return cls(*(int(part) for part in match.groups()))


class Stream(StrEnum):
    """The two outputs of an attempt that are kept apart."""

    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True, slots=True)
class Offsets:
    """A position in each stream, in bytes from the beginning of the attempt's output."""

    stdout: int = 0
    stderr: int = 0

    def of(self, stream: Stream) -> int:
        """Answer the position in one stream."""
        return self.stdout if stream is Stream.STDOUT else self.stderr

    def exceeds(self, other: Self) -> bool:
        """Say whether any stream is further than in `other`."""
        return self.stdout > other.stdout or self.stderr > other.stderr


class StopCause(StrEnum):
    """Why an attempt was told to stop; the first cause stands.

    The keeper itself finds TIME_LIMIT and FENCED. GANG: another rank failed. STALE: the scheduler does not
    know it, or has replaced it. REQUEUED: it goes back to the queue. SHUTDOWN: the node's programs are taken down.
    """

    TIME_LIMIT = "TIME_LIMIT"
    CANCELLED = "CANCELLED"
    PREEMPTED = "PREEMPTED"
    GANG = "GANG"
    STALE = "STALE"
    REQUEUED = "REQUEUED"
    FENCED = "FENCED"
    SHUTDOWN = "SHUTDOWN"


class LaunchFailure(StrEnum):
    """Why a launched command never ran; shells report these as exit codes 127 and 126."""

    COMMAND_NOT_FOUND = "COMMAND_NOT_FOUND"
    NOT_EXECUTABLE = "NOT_EXECUTABLE"


class LossReason(StrEnum):
    """Why nobody can know how an attempt ended."""

    KEEPER_DIED = "KEEPER_DIED"
    NODE_REBOOTED = "NODE_REBOOTED"


class FullReason(StrEnum):
    """Why the keeper stopped reading an attempt's output."""

    BOUND = "BOUND"
    DISK_FULL = "DISK_FULL"


@dataclass(frozen=True, slots=True)
class ExitedWith:
    """The leader called exit with this code, 0 to 255."""

    code: int


@dataclass(frozen=True, slots=True)
class KilledBy:
    """The leader was ended by this signal."""

    signal: int


ExitStatus = ExitedWith | KilledBy


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """How an attempt ended.

    `status` is None when that is unknown (`loss` says why). `streams_cut`: some process still held these open
    after the drain. `processes_left`: processes that outlived SIGKILL (a stuck driver, another user's), so
    the node's devices may still be in use. After NODE_REBOOTED no spooled byte is to be trusted. `streams_lost`: what
    these had behind `output_ends` the scheduler's store has lost after the node had deleted it.
    """

    status: ExitStatus | None
    output_ends: Offsets
    started_us: int | None = None
    ended_us: int | None = None
    stop_cause: StopCause | None = None
    failure: LaunchFailure | None = None
    loss: LossReason | None = None
    detail: str = ""
    cpu_us: int = 0
    max_rss_bytes: int = 0
    streams_cut: tuple[Stream, ...] = ()
    streams_lost: tuple[Stream, ...] = ()
    processes_left: int = 0

    def lost_behind(self, stream: Stream, offset: int) -> Self:
        """The same end, with a stream of which nothing behind this offset is left."""
        if offset >= self.output_ends.of(stream):
            return self
        ends = replace(self.output_ends, **{stream.value: offset})
        lost = tuple(each for each in Stream if each is stream or each in self.streams_lost)
        return replace(self, output_ends=ends, streams_lost=lost)


class AttemptPhase(StrEnum):
    """Where an attempt on this node stands."""

    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    ENDING = "ENDING"
    ENDED = "ENDED"
    LOST = "LOST"
    FORGOTTEN = "FORGOTTEN"

    @property
    def is_live(self) -> bool:
        """Say whether processes of it may still run."""
        return self in (AttemptPhase.RUNNING, AttemptPhase.STOPPING, AttemptPhase.ENDING)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """All a node knows of one attempt; the inventory is made of these.

    `directory` holds its spool; bytes below `output_starts` are deleted. `note` is what the agent gave at
    launch. `end` is set in the phases ENDED, LOST and FORGOTTEN.
    """

    key: AttemptKey
    phase: AttemptPhase
    keeper_id: str
    directory: str
    pid: int | None = None
    started_us: int | None = None
    stop_cause: StopCause | None = None
    output_starts: Offsets = Offsets()
    output_ends: Offsets = Offsets()
    full: FullReason | None = None
    note: str = ""
    end: AttemptEnd | None = None
