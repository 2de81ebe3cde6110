"""A connection that asks for served programs and for nothing else: their requests do not go by uvicorn and Starlette.

    a plain request for a program ─▶ a task, which answers a LaneClient as it would a client that came by uvicorn
    anything else ────────────────▶ uvicorn's protocol, which has the connection from then on, to its end

One request at a time is worked on. What comes behind it stays unread, but for what one reading has brought. Each side
is read as fast as the other takes it. A connection that is handed on may ask for programs, too: by the longer way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Any, Protocol, cast
from urllib.parse import unquote

from starlette.responses import PlainTextResponse
from starlette.types import Message, Scope

from gpufleet.net.http_server import REQUEST_S_MAX

from .core.headers import Header
from .core.plain_request import PlainRequest, plain_request
from .exchange import STALLED_S_MAX, Client

log = logging.getLogger(__name__)

UNREAD_BYTES_MAX = 65_536
"""When so much of a request's body waits to be passed on, the client is not read from."""

KEPT_S_MAX = 5.0
"""A connection waits for its next request for so long, as uvicorn's do."""

Answers = Callable[[Client], Awaitable[None]]
Chooses = Callable[[str, bytes, str], Answers | None]
"""From a request's host, path and method to who answers it; None for one that is not for a program."""

TakesOver = Callable[[Scope], Awaitable[None]]
"""Writes into a request's scope what a proxy before this gateway says of where it comes from."""

_STATUS_LINES = {each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\n".encode("ascii") for each in HTTPStatus}
_PROXY_SAID = (b"x-forwarded-for", b"x-forwarded-proto")


class State(Protocol):
    """What connections of one server share: uvicorn's ServerState."""

    connections: Any
    tasks: set[asyncio.Task[None]]
    default_headers: list[Header]
    total_requests: int


class House(Protocol):
    """What a connection is part of."""

    choose: Chooses

    def opened(self, address: str) -> bool:
        """One more; False where there is no room for it."""
        ...

    def closed(self, address: str) -> None:
        """One less."""
        ...

    def said_always(self, state: State) -> bytes:
        """What stands in the head of every answer."""
        ...


class Lane(asyncio.Protocol):
    """One connection. `handed_on` makes uvicorn's protocol, `forwarded` takes over what a trusted proxy says of where a
    request comes from, and `state` is uvicorn's own."""

    def __init__(
        self,
        house: House,
        handed_on: Callable[[], asyncio.Protocol],
        forwarded: TakesOver,
        state: State,
    ) -> None:
        self._house = house
        self._handed_on = handed_on
        self._forwarded = forwarded
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._address = ""
        self._client: LaneClient | None = None
        self._task: asyncio.Task[None] | None = None
        self._rest = b""
        self._skipped_bytes = 0
        self._is_reading = True
        self._may_write: asyncio.Future[None] | None = None
        self._is_leaving = False
        self._looking: asyncio.TimerHandle
        self._idle_since_s = self._loop.time()
        self._idle_s_max = REQUEST_S_MAX

    # --- what asyncio and uvicorn call

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody came."""
        self._transport = cast(asyncio.Transport, transport)
        self._state.connections.add(self)
        peer = transport.get_extra_info("peername")
        self._peer = (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) else None
        self._address = self._peer[0] if self._peer else ""
        own = transport.get_extra_info("sockname")
        self._own = (str(own[0]), int(own[1])) if isinstance(own, tuple) else None
        self._scheme = "https" if transport.get_extra_info("sslcontext") else "http"
        self._looking = self._loop.call_later(REQUEST_S_MAX, self._look)
        if not self._house.opened(self._address):
            transport.abort()  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        """Something came."""
        if self._skipped_bytes:
            data, self._skipped_bytes = data[self._skipped_bytes :], max(0, self._skipped_bytes - len(data))
        if self._client is None:
            if data:
                self._begin(data)
            return
        if self._client.lacks_bytes:
            data = self._client.take_in(data)
        self._rest += data
        if self._rest or self._client.unread_bytes > UNREAD_BYTES_MAX:
            self._pause_reading()

    def eof_received(self) -> None:
        """The client says no more, and hears no more."""

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        self._leave_house()
        self.resume_writing()
        client = self._client
        if client is not None and not client.ends_by_itself:
            client.is_gone = True
            assert self._task is not None
            self._state.tasks.discard(self._task)  # one that has not begun ends without a word
            self._task.cancel()

    def pause_writing(self) -> None:
        """The client does not read as fast as it is written to."""
        self._may_write = self._loop.create_future()

    def resume_writing(self) -> None:
        """It has read on."""
        if self._may_write is not None and not self._may_write.done():
            self._may_write.set_result(None)
        self._may_write = None

    def shutdown(self) -> None:
        """The gateway leaves: what is under way is still answered."""
        self._is_leaving = True
        if self._client is None:
            self._transport.close()

    # --- one request

    def _begin(self, data: bytes) -> None:
        request = plain_request(data)
        answers = self._house.choose(request.host, request.path, request.method) if request is not None else None
        if request is None or answers is None:
            self._hand_on(data)
            return
        self._rest = data[request.size_bytes :]
        client = self._client = LaneClient(self._scope(request), self, request)
        if client.lacks_bytes and self._rest:
            self._rest = client.take_in(self._rest)
        if self._rest or client.unread_bytes > UNREAD_BYTES_MAX:
            self._pause_reading()
        self._task = self._loop.create_task(self._answer(client, answers))
        self._state.tasks.add(self._task)

    def _scope(self, request: PlainRequest) -> Scope:
        return {
            "type": "http",
            "http_version": "1.1",
            "server": self._own,
            "client": self._peer,
            "scheme": self._scheme,
            "method": request.method,
            "root_path": "",
            "path": unquote(request.path.decode("ascii")),
            "raw_path": request.path,
            "query_string": request.query,
            "headers": request.headers,
        }

    async def _answer(self, client: LaneClient, answers: Answers) -> None:
        try:
            if client.is_forwarded:
                await self._forwarded(client.scope)
            await answers(client)
        except asyncio.CancelledError:
            if not client.is_gone:
                raise
        except Exception:
            log.exception("a request for a program was not answered")
            await client.refuse(PlainTextResponse("Internal Server Error", 500))
        finally:
            self._end(client)

    def _end(self, client: LaneClient) -> None:
        """The request is over, and the next one may begin."""
        self._client = None
        if self._task is not None:
            self._state.tasks.discard(self._task)
            self._task = None
        if self._transport.is_closing():
            return
        if not client.is_ended or client.is_last or self._is_leaving:
            self._transport.close()
            if self._transport.get_write_buffer_size():
                self._loop.call_later(STALLED_S_MAX, self._transport.abort)
            return
        self._state.total_requests += 1
        self._idle_since_s, self._idle_s_max = self._loop.time(), KEPT_S_MAX
        self._skipped_bytes = client.lacks_bytes
        self.resume_reading()
        if self._rest:
            rest, self._rest = self._rest, b""
            self._begin(rest)

    def _pause_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """There is room for what the client says."""
        if not self._is_reading:
            self._is_reading = True
            self._transport.resume_reading()

    # --- what a LaneClient calls

    def lets_go(self) -> bool:
        """Whether the connection ends behind this answer."""
        return self._is_leaving

    def said_always(self) -> bytes:
        """What stands in the head of every answer."""
        return self._house.said_always(self._state)

    def write(self, data: bytes) -> None:
        """A part of the answer; nothing happens where nobody is there any more."""
        if not self._transport.is_closing():
            self._transport.write(data)

    async def drained(self) -> None:
        """Return once the client has taken about what was written. Raises TimeoutError."""
        if self._may_write is not None:
            async with asyncio.timeout(STALLED_S_MAX):
                await self._may_write

    # --- the connection

    def _hand_on(self, data: bytes) -> None:
        """What has come is for uvicorn, and so is what follows."""
        self._leave_house()
        protocol = self._handed_on()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        if self._may_write is not None:
            protocol.pause_writing()
        if not self._transport.is_closing():
            protocol.data_received(data)

    def _leave_house(self) -> None:
        self._looking.cancel()
        self._state.connections.discard(self)
        self._house.closed(self._address)

    def _look(self) -> None:
        """Close what has asked for nothing for too long, and is owed no answer, nor still takes the last one."""
        idle_s = self._loop.time() - self._idle_since_s if self._client is None else 0.0
        idle_s_max = STALLED_S_MAX if self._transport.get_write_buffer_size() else self._idle_s_max
        if idle_s >= idle_s_max:
            self._transport.abort()
            return
        self._looking = self._loop.call_later(max(self._idle_s_max - idle_s, 1.0), self._look)


class LaneClient(Client):
    """The client of one request on a lane."""

    def __init__(self, scope: Scope, lane: Lane, request: PlainRequest) -> None:
        super().__init__(scope)
        self._lane = lane
        self.is_last = request.is_last
        """Whether the connection ends behind the answer."""

        self.is_ended = False
        """Whether the whole answer was written, the program's or the gateway's own."""

        self.is_forwarded = any(name in _PROXY_SAID for name, _ in request.headers)
        self.lacks_bytes = request.body_bytes
        """How much of the request's body has not come."""

        self.unread_bytes = 0
        self._pieces: list[bytes] = []
        self._has_more: asyncio.Future[None] | None = None
        self._head = b""
        self._is_chunked = False
        self._has_no_body = False

    # --- its request

    def take_in(self, data: bytes) -> bytes:
        """More has come; answers what is no part of the body."""
        piece = data[: self.lacks_bytes]
        self.lacks_bytes -= len(piece)
        self.unread_bytes += len(piece)
        self._pieces.append(piece)
        if self._has_more is not None and not self._has_more.done():
            self._has_more.set_result(None)
        return data[len(piece) :]

    def at_hand(self) -> tuple[bytes, bool]:
        """What has come of the body, and whether that is all."""
        if self._held is not None:
            return super().at_hand()
        piece = self._taken()
        return piece, not self.lacks_bytes

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body, as it comes."""
        while True:
            if self._pieces:
                yield self._taken()
            if self._pieces:
                continue
            if not self.lacks_bytes:
                return
            self._has_more = asyncio.get_running_loop().create_future()
            await self._has_more

    def _taken(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        self.unread_bytes = 0
        if self.lacks_bytes:
            self._lane.resume_reading()
        if pieces:
            self.is_body_used = True
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    # --- its answer

    async def send(self, message: Message) -> None:
        """What ASGI calls so. The head leaves with the first part of the body. Raises TimeoutError."""
        if message["type"] == "http.response.start":
            self._head = self._head_of(message["status"], message["headers"])
            return
        await self._lane.drained()
        data, is_end = message.get("body", b""), not message.get("more_body", False)
        if self._has_no_body:
            data = b""
        elif self._is_chunked:
            data = (b"%x\r\n%b\r\n" % (len(data), data) if data else b"") + (b"0\r\n\r\n" if is_end else b"")
        head, self._head = self._head, b""
        self.is_ended = is_end
        if head or data:
            self._lane.write(head + data)

    def _head_of(self, status: int, headers: list[Header]) -> bytes:
        names = [name for name, _ in headers]
        self._has_no_body = self.scope["method"] == "HEAD" or status in (204, 304)
        self._is_chunked = not self._has_no_body and b"content-length" not in names
        self.is_last = self.is_last or self._lane.lets_go()
        lines = [b"%b: %b\r\n" % header for header in headers]
        if self._is_chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        if self.is_last:
            lines.append(b"connection: close\r\n")
        first = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
        return b"".join([first, self._lane.said_always(), *lines, b"\r\n"])
