"""The values that describe an attempt to others: its offsets, its phase, its end."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from gpufleet.jobs.runs import Cause, ExitStatus, RankKey


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
    stop_cause: Cause | None = None
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
