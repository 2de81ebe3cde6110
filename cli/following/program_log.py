"""Following the log of a program, which begins anew with each stream: what was shown already is known by its time."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError

from ..async_client import AsyncClient
from .output import KEEPALIVE_S, Wanted, Writer
from .shell import Taken

_TIME = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*Z")
TIME_BYTES = 64
"""How far into a line its time is looked for: text begins with it, JSON nearly so."""

CATCH_UP_LINES = 1000
"""Lines asked for again after a lost connection; what was logged beyond that, meanwhile, is not shown."""


class SeenLines:
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


class ProgramLogFeed:
    """The log of one program as a feed."""

    def __init__(self, client: AsyncClient, wanted: Wanted, writer: Writer) -> None:
        self._client = client
        self._wanted = wanted
        self._writer = writer
        self._seen = SeenLines()
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

    def forgives(self, problem: GpufleetError) -> bool:
        """Nothing is to be begun in another place."""
        return False

    def take(self, message: scheduler_pb2.StreamOutputResponse) -> Taken:
        """Write the lines that are new."""
        if message.is_end:
            # While we follow, only the program's own end can end its log: it will begin again.
            return Taken.BROKEN if self._wanted.follow else self._finish()
        if not message.data:
            return Taken.SIGN_OF_LIFE
        lines = (self._unfinished + message.data).split(b"\n")
        self._unfinished = lines.pop()
        new = b"".join(line + b"\n" for line in lines if self._seen.is_new(line))
        if new:
            self._writer.write(0, job_pb2.STREAM_STDOUT, new)
        return Taken.NEWS

    def _finish(self) -> Taken:
        if self._unfinished:
            self._writer.write(0, job_pb2.STREAM_STDOUT, self._unfinished)
        return Taken.END
