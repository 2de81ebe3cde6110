"""Connections as the server takes them, with the bounds that a browser which means ill would need.

How many there are, how long one may take to ask for something, and how much may wait for one that does not read.
uvicorn has none of these by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

from starlette.types import Scope
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from gpufleet.config.gateway_settings import GatewayLimitSettings
from gpufleet.net.http_server import WatchedHttp
from gpufleet.telemetry.logs import fields

from .job_ports.serving import PREFIX as JOBS_PREFIX
from .proxy.core.headers import Header
from .proxy.lane import Chooses, Lane, State
from .proxy.web_socket import MESSAGE_BYTES_MAX as PROGRAM_MESSAGE_BYTES_MAX

log = logging.getLogger(__name__)

OF_JOBS = f"{JOBS_PREFIX}/"

OTHERS_MAX = 1_000
"""Connections beside those of people: pages that load, looks at the models, health checks. More are cut at once."""

ADDRESS_OTHERS_MAX = 100
"""Connections of one address beside those of its people; they are told why they are refused, and more are cut at once:
a handshake costs a hundred times what that does, and the frames of others would wait for it."""

UNREAD_BYTES_MAX = 4_000_000
"""What may wait in this process for a browser that does not read. Frames stop long before, by what is not shown."""

LINGER_S_MAX = 5.0
"""A connection that has ended is cut when its last bytes were not taken after this."""

NOT_UTF_8 = 1007
"""The close code of a text that is none (RFC 6455)."""

RESTARTS = 1012
"""The close code of a gateway that leaves: connect again, here or to another one."""


class Sockets:
    """What uvicorn makes for each connection. The limits are asked at each; `choose` finds who answers a request.

    Of the `proxies` a connection is for any number of people, and what they say of where a request comes from counts.
    """

    def __init__(
        self, limits: Callable[[], GatewayLimitSettings], choose: Chooses, proxies: Sequence[str] = ()
    ) -> None:
        self._limits = limits
        self._proxies = ProxyHeadersMiddleware(_nothing, list(proxies))
        self.choose = choose
        self._count = 0
        self._addresses: Counter[str] = Counter()
        self._is_full = False
        self._always: tuple[list[Header], bytes] = ([], b"")

    def http(self, **given: Any) -> Lane:
        """A connection that has just come: it may be one for programs alone."""
        return Lane(self, lambda: HttpSocket(self, **given), self._take_over, given["server_state"])

    async def _take_over(self, scope: Scope) -> None:
        await self._proxies(cast(Any, scope), cast(Any, None), cast(Any, None))

    def websocket(self, **given: Any) -> BrowserSocket:
        """A connection that became a WebSocket."""
        return BrowserSocket(self, **given)

    def opened(self, address: str) -> bool:
        """One more; False where there is no room for it."""
        limits = self._limits()
        self._count += 1
        self._addresses[address] += 1
        is_many = self._addresses[address] > limits.people_per_address_max + ADDRESS_OTHERS_MAX
        is_crowd = is_many and address not in self._proxies.trusted_hosts
        is_full = self._count > limits.people_max + OTHERS_MAX
        if (is_full or is_crowd) and not self._is_full:
            log.warning("further connections are cut", extra=fields(open=self._count - 1, address=address))
        self._is_full = is_full or is_crowd
        return not self._is_full

    def said_always(self, state: State) -> bytes:
        """What stands in the head of every answer, which uvicorn makes anew every second."""
        if self._always[0] is not state.default_headers:
            text = b"".join(b"%b: %b\r\n" % header for header in state.default_headers)
            self._always = state.default_headers, text
        return self._always[1]

    def closed(self, address: str) -> None:
        """One less."""
        self._count -= 1
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    """Stands behind the middleware, which has changed the scope by then."""


def _address_of(transport: asyncio.BaseTransport) -> str:
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if peer else ""


class _Counted(asyncio.Protocol):
    """A connection that counts at its address until it ends."""

    def __init__(self, sockets: Sockets, **given: Any) -> None:
        super().__init__(**given)
        self._sockets = sockets
        self._address = ""

    def connection_made(self, transport: Any) -> None:
        """It has begun: note where it comes from."""
        super().connection_made(transport)
        self._address = _address_of(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        self._sockets.closed(self._address)
        super().connection_lost(exc)


class HttpSocket(_Counted, WatchedHttp):
    """Until it is a WebSocket, if ever."""

    def connection_made(self, transport: Any) -> None:
        """Cut it where there is no room; else look after it."""
        super().connection_made(transport)
        if not self._sockets.opened(self._address):
            transport.abort()

    def handle_websocket_upgrade(self, event: Any) -> None:
        """From now on it is a BrowserSocket, which counts it on."""
        self.stop_watching()
        super().handle_websocket_upgrade(event)


class BrowserSocket(_Counted, WebSocketsSansIOProtocol):
    """A WebSocket, counted already by what it was before."""

    def handle_connect(self, event: Any) -> None:
        """Its address is known: messages for a program, or a job, may be longer than those of a session."""
        host, path = event.headers.get("Host", ""), event.path
        if self._sockets.choose(host, path.encode(), "GET") or path.startswith(OF_JOBS):
            self.conn.max_message_size = PROGRAM_MESSAGE_BYTES_MAX
        super().handle_connect(event)

    def data_received(self, data: bytes) -> None:
        """Take it in, unless the browser does not take what it was answered."""
        if self.transport.get_write_buffer_size() > UNREAD_BYTES_MAX:
            self.transport.abort()
            return
        super().data_received(data)

    def send_receive_event_to_app(self) -> None:
        """Hand on a message that is whole; a text that is not UTF-8 ends the connection, by the browser's mistake."""
        if self.conn.close_rcvd is not None:
            self.frames = []  # it said that nothing follows
            return
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                log.debug("a browser sent a text that is not UTF-8", extra=fields(address=self._address))
                self.frames = []
                self.conn.send_close(NOT_UTF_8)
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    async def send(self, message: Any) -> None:
        """Pass on what the application says; a refusal that is whole is an answer, which uvicorn takes for none."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True

    def shutdown(self) -> None:
        """The gateway leaves: say so."""
        if self.handshake_complete and not self.close_sent:
            self.queue.put_nowait({"type": "websocket.disconnect", "code": RESTARTS})
            self.conn.send_close(RESTARTS, "this gateway leaves: connect again")
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
        super().shutdown()

    async def run_asgi(self) -> None:
        """The person's session; behind it the connection is not kept for what nobody reads."""
        try:
            await super().run_asgi()
        finally:
            self.loop.call_later(LINGER_S_MAX, self.transport.abort)
