"""All streams of one page over one WebSocket: of other connections a browser opens six for all tabs of an address.

A page says `{"stream": 1, "method": "Watch", "request": {}}` and `{"stream": 1, "end": true}`. It is told of each
`{"stream": 1, "message": …}`, with `"error"` or `"end"` in the last one, and `{"quiet": {}}` in a long silence. An
error without a stream is about the page: nobody is logged in.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from gpufleet.errors import GpufleetError, Reason, invalid

from .answers import error_object
from .calls import STREAMS, request_of
from .events import Events
from .guard import json_object

SAID_PER_SECOND, SAID_AT_ONCE = 5.0, 100
"""How often a page may open and close streams: a view that one turns to has three or four."""

POLICY = 1008
"""The close code of a page that does not keep to this."""

Open = Callable[[str, Any], Events]


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


def as_json(error: GpufleetError) -> bytes:
    """An error as a page is told it."""
    return json.dumps(error_object(error), ensure_ascii=False).encode()
