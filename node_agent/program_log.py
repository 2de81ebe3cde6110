"""Sends the agent's own log to who asks: its newest lines, and with `follow` the ones that come. And other texts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gpufleet.v1 import node_agent_pb2

from gpufleet.telemetry.log_follow import FOLLOW_POLL_S, LogReader

from .core.commands import ReadProgramLog

RETRY_SECONDS = 0.1
"""The pause before a piece is tried again that the heartbeat stream had no room for."""

LINE_BYTES_MAX = 256 * 1024
"""A longer line is sent in parts."""

FOLLOWERS_MAX = 16
"""Requests at a time; the oldest ends when there is one more."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Send = Callable[[node_agent_pb2.ProgramLogChunk], bool]


class ProgramLog:
    """Answers ReadProgramLog. `send` says False when there is no room now; the piece is then tried again."""

    def __init__(self, file: Path, send: Send) -> None:
        self._file = file
        self._send = send
        self._requests: dict[int, asyncio.Task[None]] = {}

    def carry_out(self, command: ReadProgramLog) -> None:
        """Begin to answer a request, or end one."""
        self._end(command.request)
        if command.cancel:
            return
        if len(self._requests) >= FOLLOWERS_MAX:
            self._end(next(iter(self._requests)))
        self._begin(command.request, self._answer(command))

    def send(self, request: int, text: bytes, total_bytes: int) -> None:
        """Answer a request with this text, which is all of so many bytes, or the end of them."""
        self._begin(request, self._say_all(request, text, total_bytes))

    def _begin(self, request: int, answering: Coroutine[Any, Any, None]) -> None:
        task = self._requests[request] = asyncio.get_running_loop().create_task(answering)
        task.add_done_callback(lambda done: self._forget(request, done))

    async def close(self) -> None:
        """End every request; a scheduler asks anew on its next stream."""
        tasks = tuple(self._requests.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, command: ReadProgramLog) -> None:
        unfinished = b""
        since = None if command.since_us is None else EPOCH + timedelta(microseconds=command.since_us)
        with LogReader(self._file, tail_lines=command.tail_lines, since=since) as reader:
            while True:
                data = reader.read()
                if not data and not command.follow:
                    await self._say(command.request, unfinished, is_last=True)
                    return
                lines, unfinished = whole_lines(unfinished + data)
                if lines:
                    await self._say(command.request, lines, is_last=False)
                if not data:
                    await asyncio.sleep(FOLLOW_POLL_S)

    async def _say_all(self, request: int, text: bytes, total_bytes: int) -> None:
        for begin in range(0, len(text), LINE_BYTES_MAX):
            await self._say(request, text[begin : begin + LINE_BYTES_MAX], is_last=False)
        await self._say(request, b"", is_last=True, total_bytes=total_bytes)

    async def _say(self, request: int, data: bytes, *, is_last: bool, total_bytes: int = 0) -> None:
        chunk = node_agent_pb2.ProgramLogChunk(request=request, data=data, is_last=is_last, total_bytes=total_bytes)
        while not self._send(chunk):  # noqa: ASYNC110 - room in a queue of another's making has no event
            await asyncio.sleep(RETRY_SECONDS)

    def _end(self, request: int) -> None:
        task = self._requests.pop(request, None)
        if task is not None:
            task.cancel()

    def _forget(self, request: int, done: asyncio.Task[None]) -> None:
        if self._requests.get(request) is done:
            del self._requests[request]


def whole_lines(data: bytes) -> tuple[bytes, bytes]:
    """The whole lines at the beginning, and what is left behind them."""
    end = data.rfind(b"\n") + 1
    return (data[:end], data[end:]) if end or len(data) < LINE_BYTES_MAX else (data, b"")
