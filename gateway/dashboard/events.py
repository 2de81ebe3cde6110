"""A stream of the scheduler as server-sent events: one `data:` a message, `event: error` or `event: end` in the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
from google.protobuf.message import Message

from gpufleet.channel import bearer
from gpufleet.errors import GpufleetError

from .answers import error_object
from .calls import Scheduler, json_text

QUIET_S_MAX = 15.0
"""Behind so much silence a comment is sent, so that nobody on the way takes the connection for dead."""

FIRST_S_MAX = 10.0
"""How long the first message is waited for, so that a refusal is an answer with its own status code."""

END = b"event: end\ndata: {}\n\n"
COMMENT = b": still here\n\n"


class Events:
    """One stream. `begin` first, which raises what the scheduler refuses; then `chunks`, to its end; then `close`."""

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

    async def chunks(self) -> AsyncIterator[bytes]:
        """What is sent, as it comes; it stops without an end when this gateway leaves."""
        waited = {self._reading, self._leaving}
        yield COMMENT
        while not self._leaving.done():
            if not self._reading.done():
                await asyncio.wait(waited, timeout=QUIET_S_MAX, return_when=asyncio.FIRST_COMPLETED)
            if not self._reading.done():
                yield COMMENT
                continue
            try:
                message = self._read()
            except GpufleetError as error:
                yield b"event: error\ndata: " + json.dumps(error_object(error), ensure_ascii=False).encode() + b"\n\n"
                return
            if message is grpc.aio.EOF:
                yield END
                return
            self._reading = asyncio.create_task(self._call.read(), name=self._reading.get_name())
            waited = {self._reading, self._leaving}
            yield b"data: " + await json_text(message) + b"\n\n"

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
