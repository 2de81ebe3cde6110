"""A stream of the scheduler for a page: each message as JSON as it comes, and how it ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Literal

import grpc.aio
from google.protobuf.message import Message

from gpufleet.channel import bearer
from gpufleet.errors import GpufleetError

from .answers import error_object
from .calls import Scheduler, json_text

QUIET_S_MAX = 15.0
"""Behind so much silence something is sent, so that nobody on the way takes the connection for dead."""

FIRST_S_MAX = 10.0
"""How long the first message is waited for, so that a refusal is an answer with its own status code."""

Part = tuple[Literal["message", "error", "end", "quiet"], bytes]


class Events:
    """One stream. `begin` first, which raises what the scheduler refuses; then `parts`, to its end; then `close`."""

    def __init__(self, scheduler: Scheduler, name: str, request: Message, token: str, leaving: asyncio.Event) -> None:
        self._scheduler = scheduler
        self._call: Any = scheduler.method(name)(request, metadata=bearer(token))
        self._reading: asyncio.Task[Any] = asyncio.create_task(self._call.read(), name=f"events {name}")
        self._leaving = asyncio.create_task(leaving.wait(), name="events leaving")

    async def begin(self) -> None:
        """Return once there is a first message, or nothing is to be heard yet. Raises what the scheduler refuses."""
        await asyncio.wait({self._reading, self._leaving}, timeout=FIRST_S_MAX, return_when=asyncio.FIRST_COMPLETED)
        if self._reading.done():
            self._read()

    async def parts(self) -> AsyncIterator[Part]:
        """What is sent, as JSON, as it comes; it stops without an end when this gateway leaves."""
        while not self._leaving.done():
            if not self._reading.done():
                waited = {self._reading, self._leaving}
                await asyncio.wait(waited, timeout=QUIET_S_MAX, return_when=asyncio.FIRST_COMPLETED)
            if not self._reading.done():
                yield "quiet", b""
                continue
            try:
                message = self._read()
            except GpufleetError as error:
                yield "error", json.dumps(error_object(error), ensure_ascii=False).encode()
                return
            if message is grpc.aio.EOF:
                yield "end", b"{}"
                return
            self._reading = asyncio.create_task(self._call.read(), name=self._reading.get_name())
            yield "message", await json_text(message)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The same as server-sent events: one `data:` a message, `event: error` or `event: end` in the end."""
        yield b": hello\n\n"
        async for kind, said in self.parts():
            match kind:
                case "quiet":
                    yield b": still here\n\n"
                case "message":
                    yield b"data: " + said + b"\n\n"
                case _:
                    yield b"event: " + kind.encode() + b"\ndata: " + said + b"\n\n"

    async def close(self) -> None:
        """Be gone, at the scheduler too."""
        # The call is cancelled and not the read: one of grpc.aio that is cancelled while it waits loses memory.
        self._call.cancel()
        self._leaving.cancel()
        await asyncio.gather(self._reading, self._leaving, return_exceptions=True)

    def _read(self) -> Any:
        try:
            return self._reading.result()
        except grpc.aio.AioRpcError as problem:
            raise self._scheduler.error(problem) from None
