"""The values that describe an attempt to others: its offsets, its phase, its end."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from gpufleet.jobs.runs import Cause, ExitCode, ExitStatus, RankKey


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


class LaunchFailure(StrEnum):
    """Why a launched command never ran; shells report these as exit codes 127 and 126, and engines as 125."""

    COMMAND_NOT_FOUND = "COMMAND_NOT_FOUND"
    NOT_EXECUTABLE = "NOT_EXECUTABLE"
    CONTAINER_FAILED = "CONTAINER_FAILED"
    NO_GPU_CONTAINERS = "NO_GPU_CONTAINERS"
    IMAGE_NEEDS_DRIVER = "IMAGE_NEEDS_DRIVER"


class LossReason(StrEnum):
    """Why nobody can know how an attempt ended."""

    KEEPER_DIED = "KEEPER_DIED"
    NODE_REBOOTED = "NODE_REBOOTED"


class FullReason(StrEnum):
    """Why the keeper stopped reading an attempt's output."""

    BOUND = "BOUND"
    DISK_FULL = "DISK_FULL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """What an attempt ran out of, as its control group counted it.

    `oom_kills`: processes that the kernel ended for want of memory. `memory_bytes_peak` is the most that all of it had
    at once, 0 where the kernel does not tell, and `memory_bytes_max` its limit, 0 for none. `forks_refused`: so often
    it got no process more, as it had `processes_max`.
    """

    oom_kills: int = 0
    memory_bytes_peak: int = 0
    memory_bytes_max: int = 0
    forks_refused: int = 0
    processes_max: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """How an attempt ended.

    `status` is None when that is unknown (`loss` says why). `streams_cut`: some process still held these open
    after the drain. `processes_left`: processes that outlived SIGKILL (a stuck driver, another user's), so
    the node's devices may still be in use. After NODE_REBOOTED no spooled byte is to be trusted. `streams_lost`: what
    these had behind `output_ends` nobody has: the spool was cut off, or the scheduler's store has lost what was deleted
    here. `shortage`: what it ran out of, if of anything. `is_blameless`: it was lost with its keeper, and nothing says
    that it was its doing.
    """

    status: ExitStatus | None
    output_ends: Offsets
    started_us: int | None = None
    ended_us: int | None = None
    stop_cause: Cause | None = None
    failure: LaunchFailure | None = None
    loss: LossReason | None = None
    detail: str = ""
    cpu_us: int = 0
    max_rss_bytes: int = 0
    streams_cut: tuple[Stream, ...] = ()
    streams_lost: tuple[Stream, ...] = ()
    processes_left: int = 0
    shortage: Shortage | None = None
    is_blameless: bool = False

    @property
    def ran_out_of_memory(self) -> bool:
        """Say whether it failed by itself, and the kernel had ended processes of it for want of memory."""
        failed = self.status is not None and self.status != ExitCode(code=0)
        return failed and self.stop_cause is None and self.shortage is not None and self.shortage.oom_kills > 0

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
    launch. `end` is set in the phases ENDED, LOST and FORGOTTEN. `time_limit_us` is set while it lives, None for none.
    """

    key: RankKey
    phase: AttemptPhase
    keeper_id: str
    directory: str
    pid: int | None = None
    started_us: int | None = None
    stop_cause: Cause | None = None
    output_starts: Offsets = Offsets()
    output_ends: Offsets = Offsets()
    full: FullReason | None = None
    note: str = ""
    end: AttemptEnd | None = None
    time_limit_us: int | None = None
