"""All streams of one page over one WebSocket: of other connections a browser opens six for all tabs of an address.

A page says `{"stream": 1, "method": "Watch", "request": {}}` and `{"stream": 1, "end": true}`. It is told of each
`{"stream": 1, "message": …}`, with `"error"` or `"end"` in the last one, and `{"quiet": {}}` in a long silence. An
error without a stream is about the page: nobody is logged in.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Literal

import grpc.aio
from google.protobuf.message import Message
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.net.json_messages import json_object
from gpufleet.net.status import from_rpc_error

from .calls import STREAMS, Scheduler, json_text, request_of
from .guard import as_json

SAID_PER_SECOND, SAID_AT_ONCE = 5.0, 100
"""How often a page may open and close streams: a view that one turns to has three or four."""

POLICY = 1008
"""The close code of a page that does not keep to this."""

Open = Callable[[str, Any], "Events"]


class Page:
    """One page's socket. `opened` makes a stream or raises; `closed` is told of each that has ended."""

    def __init__(self, socket: WebSocket, opened: Open, closed: Callable[[], None]) -> None:
        self._socket = socket
        self._opened = opened
        self._closed = closed
        self._streams: dict[int, asyncio.Task[None]] = {}
        self._sending = asyncio.Lock()
        self._left = float(SAID_AT_ONCE)
        self._at_s = asyncio.get_running_loop().time()

    async def serve(self) -> None:
        """Until the page is gone."""
        try:
            while True:
                self._take(await self._socket.receive_text())
        except WebSocketDisconnect:
            pass
        except (GpufleetError, KeyError) as problem:
            error = problem if isinstance(problem, GpufleetError) else invalid("message", "must be a text")
            with suppress(WebSocketDisconnect):
                await self._tell(b'{"error":' + as_json(error) + b"}")
                await self._socket.close(POLICY)
        finally:
            streams = list(self._streams.values())
            for each in streams:
                each.cancel()
            await asyncio.gather(*streams, return_exceptions=True)

    def _take(self, text: str) -> None:
        now_s = asyncio.get_running_loop().time()
        self._left = min(SAID_AT_ONCE, self._left + (now_s - self._at_s) * SAID_PER_SECOND) - 1
        self._at_s = now_s
        if self._left < 0:
            raise GpufleetError(Reason.QUOTA_EXCEEDED, "a page opens and closes streams too fast")
        said = json_object("message", text)
        number = said.get("stream")
        if not isinstance(number, int) or isinstance(number, bool):
            raise invalid("stream", "must be a number")
        if said.get("end") is True:
            if number in self._streams:
                self._streams[number].cancel()
        elif number in self._streams:
            raise invalid("stream", f"{number} is open")
        else:
            self._streams[number] = asyncio.create_task(self._follow(number, said), name=f"stream {number}")

    async def _follow(self, number: int, said: dict[str, Any]) -> None:
        head = b'{"stream":%d,' % number
        events: Events | None = None
        try:
            request = said.get("request", {})
            if not isinstance(request, dict):
                raise invalid("request", "must be a JSON object")
            name = str(said.get("method", ""))
            events = self._opened(name, request_of(STREAMS, name, request))
            async for kind, text in events.parts():
                if kind == "quiet":
                    await self._tell(b'{"quiet":{}}')
                else:
                    await self._tell(head + b'"%s":' % kind.encode() + text + b"}")
        except GpufleetError as error:
            with suppress(WebSocketDisconnect):
                await self._tell(head + b'"error":' + as_json(error) + b"}")
        except WebSocketDisconnect:
            pass
        finally:
            self._streams.pop(number, None)
            if events is not None:
                self._closed()
                await events.close()

    async def _tell(self, text: bytes) -> None:
        async with self._sending:
            if self._socket.application_state is not WebSocketState.CONNECTED:
                raise WebSocketDisconnect
            await self._socket.send_text(text.decode())


QUIET_S_MAX = 15.0
"""Behind so much silence something is sent, so that nobody on the way takes the connection for dead."""

FIRST_S_MAX = 10.0
"""How long the first message is waited for, so that a refusal is an answer with its own status code."""

Kind = Literal["message", "error", "end", "quiet"]
Part = tuple[Kind, bytes]
News = tuple[Kind, Message | GpufleetError | None]


class Events:
    """One stream. `begin` first, which raises what the scheduler refuses; then `parts`, to its end; then `close`."""

    def __init__(self, scheduler: Scheduler, name: str, request: Message, token: str, leaving: asyncio.Event) -> None:
        self._scheduler = scheduler
        self._call: Any = scheduler.method(name)(request, metadata=scheduler.metadata(token))
        self._reading: asyncio.Task[Any] = asyncio.create_task(self._call.read(), name=f"events {name}")
        self._leaving = asyncio.create_task(leaving.wait(), name="events leaving")

    async def begin(self) -> None:
        """Return once there is a first message, or nothing is to be heard yet. Raises what the scheduler refuses."""
        await asyncio.wait({self._reading, self._leaving}, timeout=FIRST_S_MAX, return_when=asyncio.FIRST_COMPLETED)
        if self._reading.done():
            self._read()

    async def parts(self) -> AsyncIterator[Part]:
        """What is sent, as JSON, as it comes; it stops without an end when this gateway leaves."""
        async for kind, told in self.news():
            match told:
                case None:
                    yield kind, b"{}" if kind == "end" else b""
                case GpufleetError():
                    yield kind, as_json(told)
                case _:
                    yield kind, await json_text(told)

    async def news(self) -> AsyncIterator[News]:
        """The same, as it is."""
        while not self._leaving.done():
            if not self._reading.done():
                waited = {self._reading, self._leaving}
                await asyncio.wait(waited, timeout=QUIET_S_MAX, return_when=asyncio.FIRST_COMPLETED)
            if not self._reading.done():
                yield "quiet", None
                continue
            try:
                message = self._read()
            except GpufleetError as error:
                yield "error", error
                return
            if message is grpc.aio.EOF:
                yield "end", None
                return
            self._reading = asyncio.create_task(self._call.read(), name=self._reading.get_name())
            yield "message", message

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
            raise from_rpc_error(problem) from None
