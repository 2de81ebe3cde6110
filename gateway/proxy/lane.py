"""A connection that asks for served programs and for nothing else: their requests do not go by uvicorn and Starlette.

    a plain request for a program ─▶ a task, which answers a LaneClient as it would a client that came by uvicorn
    anything else ────────────────▶ uvicorn's protocol, which has the connection from then on, to its end

One request at a time is worked on. What comes behind it stays unread, but for what one reading has brought. Each side
is read as fast as the other takes it. A connection that is handed on may ask for programs, too: by the longer way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, cast
from urllib.parse import unquote

from starlette.responses import PlainTextResponse
from starlette.types import Scope

from gpufleet.net.http_server import REQUEST_S_MAX

from .core.headers import Header
from .core.plain_request import PlainRequest, plain_request
from .exchange import STALLED_S_MAX, Client
from .lane_client import LaneClient

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
