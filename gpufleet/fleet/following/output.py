"""Following the output of one job: every byte once, in order, through lost connections. And the log of a program.

A log begins anew with each stream: what was shown already is known by its time.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from google.protobuf.timestamp_pb2 import Timestamp

from gpufleet.errors import GpufleetError, Reason
from gpufleet.text.cleaning import clean
from gpufleet.v1 import job_pb2, scheduler_pb2

from ..outcome import has_ended
from .feeds import Feed, MessageKind

if TYPE_CHECKING:
    from ..async_client import AsyncClient

KEEPALIVE_S = 10
"""How often the scheduler is asked to show that a silent stream lives."""

Position = tuple[int, int, int]
"""Attempt, rank and stream."""

Warned = tuple[int, str]
"""Attempt and sentence of a warning."""


class Writer(Protocol):
    """Where output goes."""

    def write(self, rank: int, stream: int, data: bytes) -> None:
        """Bytes as the job wrote them."""
        ...

    def note(self, text: str) -> None:
        """A line of ours about the output, such as a gap in it."""
        ...

    def has_ranks(self, count: int) -> None:
        """The job has so many ranks, as was heard before the first bytes of them."""
        ...

    def finish(self) -> None:
        """Nothing more will come."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRequest:
    """Whose output, and how much of it: a job's by its id, or a program's log by the program's name.

    `label` is what an item of an array is called before its lines, such as 41.3. `attempt` 0 is the newest one, and who
    follows, or wants `all_attempts`, gets those before it as well. `of_setup`: what made
    its environment, and not what it wrote itself; who follows gets it until the job runs.
    """

    job_id: int = 0
    program: str = ""
    node: str = ""
    follow: bool = False
    tail_lines: int | None = None
    since_time: Timestamp | None = None
    rank: int | None = None
    stream: job_pb2.Stream.ValueType = job_pb2.STREAM_UNSPECIFIED
    label: str = ""
    attempt: int = 0
    all_attempts: bool = False
    of_setup: bool = False

    def request(self) -> scheduler_pb2.StreamOutputRequest:
        """The request that asks for it from its beginning."""
        request = scheduler_pb2.StreamOutputRequest(
            job_id=self.job_id,
            follow=self.follow,
            stream=self.stream,
            attempt=self.attempt,
            all_attempts=self.all_attempts,
            of_setup=self.of_setup,
        )
        if self.rank is not None:
            request.rank = self.rank
        if self.tail_lines is not None:
            request.tail_lines = self.tail_lines
        if self.since_time is not None:
            request.since_time.CopyFrom(self.since_time)
        request.keepalive.FromSeconds(KEEPALIVE_S)
        return request


class OutputFeed:
    """The output of one job as a feed. `job` is the job as it was last heard of.

    Who follows is told its warnings as they come. Those that it has as `known`, or else at first, are old.
    """

    def __init__(
        self,
        client: AsyncClient | None,
        wanted: OutputRequest,
        writer: Writer,
        on_job: Callable[[job_pb2.Job], None] = lambda job: None,
        known: job_pb2.Job | None = None,
    ) -> None:
        self.client = client
        """Whose streams it opens; None as long as others bring it the messages."""
        self.on_job = on_job
        self._wanted = wanted
        self._writer = writer
        self._positions: dict[Position, int] = {}
        self._hole_at: tuple[Position, int] | None = None
        self._told: set[Warned] | None = None if known is None else _warned(known)
        self._attempt = 0
        self._blocked = ""
        self.job: job_pb2.Job | None = None

    @property
    def has_output(self) -> bool:
        """Whether there was anything to write."""
        return any(self._positions.values())

    @property
    def ends_with_stream(self) -> bool:
        """Without --follow the scheduler sends what there is and closes the stream."""
        return not self._wanted.follow

    def open(self) -> AsyncIterator[scheduler_pb2.StreamOutputResponse]:
        """A stream that begins at the first byte that was not written yet."""
        assert self.client is not None
        return self.client.scheduler.StreamOutput(self.request()).__aiter__()

    def request(self) -> scheduler_pb2.StreamOutputRequest:
        """What to ask for, from the first byte on that was not written yet."""
        request = self._wanted.request()
        if self._positions:
            # What is to be left out was left out by the first stream; now the offsets say where to begin. A stream
            # that has none yet still begins at the time.
            request.ClearField("tail_lines")
        for (attempt, rank, stream), offset in self._positions.items():
            request.positions.add(attempt=attempt, rank=rank, stream=stream, offset=offset)
        return request

    async def ask(self) -> bool:
        """Whether the job lives is answered by its record; that it ended still leaves output to read."""
        assert self.client is not None
        request = scheduler_pb2.GetJobRequest(job_id=self._wanted.job_id)
        await self.client.call(self.client.scheduler.GetJob, request)
        return False

    def forgives(self, problem: GpufleetError) -> bool:
        """After a crash the scheduler may for a moment have less than it sent: the agent will bring it again."""
        return problem.reason is Reason.OFFSET_OUT_OF_RANGE

    def take(self, message: scheduler_pb2.StreamOutputResponse) -> MessageKind:
        """Write what is new in the message."""
        is_news = False
        if message.HasField("job"):
            is_news = self._take_job(message.job)
        where = (message.attempt, message.rank, message.stream)
        if message.HasField("gap"):
            self._take_gap(where, message.gap)
            is_news = True
        elif message.data:
            if self._leaves_a_hole(where, message.offset):
                return MessageKind.BROKEN
            self._take_data(where, message.offset, message.data)
            is_news = True
        elif message.stream:
            self._positions.setdefault(where, message.offset)
        if message.is_end:
            self._writer.finish()
            return MessageKind.END
        return MessageKind.NEWS if is_news else MessageKind.SIGN_OF_LIFE

    def _take_job(self, job: job_pb2.Job) -> bool:
        is_news = self.job is None or (job.version, job.state) != (self.job.version, self.job.state)
        if self._wanted.follow:
            self._tell_blocked(job)
        self.job = job
        if self._wanted.rank is None and job.attempts:
            self._writer.has_ranks(len(job.attempts[-1].ranks))
        if is_news:
            self._tell_warnings(job)
            self.on_job(job)
        return is_news

    def _tell_warnings(self, job: job_pb2.Job) -> None:
        """A line for each that is new. Never among the bytes of stdout: those may be a program's input."""
        if self._told is None:
            self._told = _warned(job)
        for warning in job.warnings if self._wanted.follow else ():
            if (warning.attempt, warning.sentence) not in self._told:
                self._writer.note(f"warning, job {job.id}: {clean(warning.sentence)}")
        self._told |= _warned(job)

    def _tell_blocked(self, job: job_pb2.Job) -> None:
        """Nothing comes and nobody would know why: a line when its output gets no further, and when it goes on."""
        if job.output_blocked and job.output_blocked != self._blocked:
            self._writer.note(f"the output of job {job.id} is blocked: {clean(job.output_blocked)}")
        elif self._blocked and not job.output_blocked and not has_ended(job):
            self._writer.note(f"the output of job {job.id} goes on")
        self._blocked = job.output_blocked

    def _take_gap(self, where: Position, gap: scheduler_pb2.OutputGap) -> None:
        reached = self._positions.get(where, gap.from_offset)
        if gap.to_offset > reached:
            self._writer.note(
                f"{gap.to_offset - reached:,} bytes are left out here (offsets {reached} to {gap.to_offset})"
            )
            self._positions[where] = gap.to_offset

    def _take_data(self, where: Position, offset: int, data: bytes) -> None:
        reached = self._positions.get(where, offset)
        end = offset + len(data)
        if reached > offset:
            data = data[reached - offset :]  # sent a second time
        if offset > reached:
            self._writer.note(f"the scheduler does not have {offset - reached:,} bytes (offsets {reached} to {offset})")
        if data:
            self._tell_attempt(where[0])
            self._writer.write(where[1], where[2], data)
        self._positions[where] = max(reached, end)

    def _tell_attempt(self, attempt: int) -> None:
        """Of several attempts, a line before each."""
        is_of_several = self._wanted.all_attempts and self.job is not None and self.job.attempt_count > 1
        if is_of_several and attempt != self._attempt:
            self._writer.note(f"attempt {attempt}:")
        self._attempt = attempt

    def _leaves_a_hole(self, where: Position, offset: int) -> bool:
        """Whether bytes are missing before this message; the same hole twice is a fact to be told, not an accident."""
        reached = self._positions.get(where, offset)
        if offset <= reached or self._hole_at == (where, reached):
            return False
        self._hole_at = (where, reached)
        return True


def _warned(job: job_pb2.Job) -> set[Warned]:
    return {(each.attempt, each.sentence) for each in job.warnings}


_TIME = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*Z")
TIME_BYTES = 64
"""How far into a line its time is looked for: text begins with it, JSON nearly so."""

CATCH_UP_LINES = 1000
"""Lines asked for again after a lost connection; what was logged beyond that, meanwhile, is not shown."""


class LineFilter:
    """Lets each line through once. A line without a time, as in a traceback, goes where the one before it went."""

    def __init__(self) -> None:
        self._newest = b""
        self._lines_of_newest: set[bytes] = set()
        self._lets_through = True

    def is_new(self, line: bytes) -> bool:
        """Whether the line was not shown yet."""
        found = _TIME.search(line[:TIME_BYTES])
        if found is None:
            return self._lets_through
        time = found[0]
        self._lets_through = time > self._newest or (time == self._newest and line not in self._lines_of_newest)
        if time > self._newest:
            self._newest = time
            self._lines_of_newest.clear()
        if self._lets_through:
            self._lines_of_newest.add(line)
        return self._lets_through


class ProgramLogFeed(Feed[scheduler_pb2.StreamOutputResponse]):
    """The log of one program as a feed."""

    def __init__(self, client: AsyncClient, wanted: OutputRequest, writer: Writer) -> None:
        self._client = client
        self._wanted = wanted
        self._writer = writer
        self._seen = LineFilter()
        self._unfinished = b""
        self._is_first = True

    @property
    def ends_with_stream(self) -> bool:
        """A log that is followed never ends; another one does when all was sent."""
        return not self._wanted.follow

    def open(self) -> AsyncIterator[scheduler_pb2.StreamOutputResponse]:
        """A stream of what was asked for; a later one of enough to find where the first broke off."""
        request = scheduler_pb2.StreamOutputRequest(follow=self._wanted.follow)
        request.program.program = self._wanted.program
        request.program.node = self._wanted.node
        request.keepalive.FromSeconds(KEEPALIVE_S)
        if not self._is_first:
            request.tail_lines = CATCH_UP_LINES
        elif self._wanted.tail_lines is not None:
            request.tail_lines = self._wanted.tail_lines
        if self._wanted.since_time is not None:
            request.since_time.CopyFrom(self._wanted.since_time)
        self._is_first = False
        self._unfinished = b""
        return self._client.scheduler.StreamOutput(request).__aiter__()

    async def ask(self) -> bool:
        """Whether the scheduler is there."""
        await self._client.call(self._client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest())
        return False

    def take(self, message: scheduler_pb2.StreamOutputResponse) -> MessageKind:
        """Write the lines that are new."""
        if message.is_end:
            # While we follow, only the program's own end can end its log: it will begin again.
            return MessageKind.BROKEN if self._wanted.follow else self._finish()
        if not message.data:
            return MessageKind.SIGN_OF_LIFE
        lines = (self._unfinished + message.data).split(b"\n")
        self._unfinished = lines.pop()
        new = b"".join(line + b"\n" for line in lines if self._seen.is_new(line))
        if new:
            self._writer.write(0, job_pb2.STREAM_STDOUT, new)
        return MessageKind.NEWS

    def _finish(self) -> MessageKind:
        if self._unfinished:
            self._writer.write(0, job_pb2.STREAM_STDOUT, self._unfinished)
        return MessageKind.END
