"""What a job writes, as lines of text, read no further ahead than somebody takes them."""

from __future__ import annotations

import asyncio
import codecs
import logging
from collections import deque
from collections.abc import AsyncIterator

from gpufleet.errors import GpufleetError
from gpufleet.fleet.following.feeds import MessageKind
from gpufleet.fleet.following.output import OutputFeed
from gpufleet.v1 import scheduler_pb2

log = logging.getLogger(__name__)

LINES_READ_AHEAD = 10_000
"""Lines that wait to be taken; then the scheduler is made to wait, as a message of 256 KiB at most allows."""
LINE_CHARS_MAX = 65_536
"""A longer line is given in parts, so that a job without line ends cannot fill the memory."""


class Lines:
    """Where the output goes: a writer for `OutputFeed`, and lines for whoever takes them."""

    def __init__(self, read_ahead: int) -> None:
        self._read_ahead = read_ahead
        self._ready: deque[str] = deque()
        self._unfinished: dict[tuple[int, int], str] = {}
        self._decoders: dict[tuple[int, int], codecs.IncrementalDecoder] = {}
        self._has_ranks = False
        self._is_finished = False
        self._changed = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()

    def has_ranks(self, count: int) -> None:
        """The job has so many ranks."""
        self._has_ranks = self._has_ranks or count > 1

    def write(self, rank: int, stream: int, data: bytes) -> None:
        """Bytes as the job wrote them."""
        source = (rank, stream)
        decoder = self._decoders.setdefault(source, codecs.getincrementaldecoder("utf-8")("replace"))
        *whole, rest = (self._unfinished.pop(source, "") + decoder.decode(data)).split("\n")
        for line in whole:
            self._add(rank, f"{line}\n")
        while len(rest) > LINE_CHARS_MAX:
            self._add(rank, rest[:LINE_CHARS_MAX])
            rest = rest[LINE_CHARS_MAX:]
        if rest:
            self._unfinished[source] = rest

    def note(self, text: str) -> None:
        """Something about the output, such as a gap in it: for the log."""
        log.warning("%s", text)

    def finish(self) -> None:
        """Nothing more will come."""
        if not self._is_finished:
            self._is_finished = True
            for (rank, _), rest in self._unfinished.items():
                self._add(rank, rest)
            self._unfinished.clear()
        self._changed.set()

    async def room(self) -> None:
        """Return when more may be read."""
        await self._has_room.wait()

    async def all(self) -> AsyncIterator[str]:
        """Each line, as it comes."""
        while True:
            while self._ready:
                line = self._ready.popleft()
                if len(self._ready) < self._read_ahead:
                    self._has_room.set()
                yield line
            if self._is_finished:
                return
            self._changed.clear()
            await self._changed.wait()

    def _add(self, rank: int, line: str) -> None:
        self._ready.append(f"[{rank}] {line}" if self._has_ranks else line)
        if len(self._ready) >= self._read_ahead:
            self._has_room.clear()
        self._changed.set()


class PacedFeed:
    """An output that is read on as its lines are taken."""

    def __init__(self, feed: OutputFeed, lines: Lines) -> None:
        self._feed = feed
        self._lines = lines

    @property
    def ends_with_stream(self) -> bool:
        """As the feed has it."""
        return self._feed.ends_with_stream

    async def open(self) -> AsyncIterator[scheduler_pb2.StreamOutputResponse]:
        """A new stream from where the last one was left."""
        async for message in self._feed.open():
            await self._lines.room()
            yield message

    async def ask(self) -> bool:
        """Whether there is anything to follow."""
        return await self._feed.ask()

    def take(self, message: scheduler_pb2.StreamOutputResponse) -> MessageKind:
        """Write what is new in the message."""
        return self._feed.take(message)

    def forgives(self, problem: GpufleetError) -> bool:
        """As the feed does."""
        return self._feed.forgives(problem)
