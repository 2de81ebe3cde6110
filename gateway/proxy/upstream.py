"""HTTP/1.1 to a replica: connections that begin with its key, are kept for the next request, and never hold a body.

A connection is for one request at a time. What it gives is read as it comes, and the replica waits while nobody takes
it; a replica that does not read stops who writes in the same way.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from gpufleet.net.channel import Target
from gpufleet.net.tls import OWN_NAME

from .answer import Answer, NotHttp
from .core.choice import Replica
from .core.headers import Header

CONNECT_S_MAX = 2.0
"""How long a replica may take to take a connection, with TLS."""

UNREAD_BYTES_MAX = 65_536
"""When so much of an answer waits to be passed on, the replica is not read from."""

KEPT_MAX = 64
"""Connections of a replica that wait for a request; more are closed."""

KEPT_S_MAX = 1.5
"""How long one waits: shorter than any usual server keeps it (gunicorn 2 s, uvicorn and Node 5 s), so that a request
seldom meets a connection that is just being closed."""

ASKED_BESIDE_MAX = 8
"""Requests for statistics that a replica has at a time, beside those of its seats."""

CLOSED = "it closed the connection before it had answered"

PROBES = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""A replica's machine that does not answer is given up after 50 s."""


class ReplicaFailed(Exception):
    """A replica did not answer as it must; the text says how. `was_sent`: it may have got the request. `was_kept`: on a
    connection of before, which a server may close at any time. `replica` names the start of one that may have got it,
    and `is_shared` says that it had other requests, too."""

    def __init__(self, why: str, *, was_sent: bool = True) -> None:
        super().__init__(why)
        self.was_sent = was_sent
        self.was_kept = False
        self.replica = ""
        self.is_shared = False


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a replica is reached, and what opens it."""

    target: Target
    key: bytes

    @property
    def first_line(self) -> bytes:
        """What each connection begins with."""
        return b"GPUFLEET " + self.key.hex().encode() + b"\n"


P = TypeVar("P", bound=asyncio.Protocol)


async def dial(endpoint: Endpoint, context: ssl.SSLContext | None, made: Callable[[], P]) -> P:
    """A new connection; its first line is to be written by `made`'s protocol. Raises ReplicaFailed."""
    address = endpoint.target.address
    name = (OWN_NAME if endpoint.target.certificate else address.host) if context is not None else None
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_S_MAX):
            transport, protocol = await loop.create_connection(
                made, address.host, address.port, ssl=context, server_hostname=name
            )
    except TimeoutError:
        raise ReplicaFailed(f"it took no connection within {CONNECT_S_MAX:g} s", was_sent=False) from None
    except OSError as problem:  # also what TLS finds wrong
        raise ReplicaFailed(f"it took no connection: {problem.strerror or problem}", was_sent=False) from None
    _probe(transport.get_extra_info("socket"))
    return protocol


def _probe(connected: Any) -> None:
    """Let the system notice a machine that is gone while its replica is thought to think."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in PROBES.items():
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def tls_context(target: Target) -> ssl.SSLContext | None:
    """What a replica must show; None for plain text. Of one with a certificate of its own that one alone is trusted."""
    if not target.uses_tls:
        return None
    if target.certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=target.certificate.decode("ascii"))
        return context
    return ssl.create_default_context(cafile=target.ca_file)


class Connection(asyncio.Protocol):
    """One connection to a replica, for one request at a time. Made by `Upstream.connection`."""

    def __init__(self, first_line: bytes) -> None:
        self._unsent = first_line
        self._transport: asyncio.Transport
        self._answer: Answer | None = None
        self._is_chunked = False
        self._is_sent = False
        self._has_news: asyncio.Future[None] | None = None
        self._may_write: asyncio.Future[None] | None = None
        self._is_paused = False
        self._is_reading = True
        self._lost: str | None = None
        self.requests = 0
        """How many were answered on it."""

    # --- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Something came; while no request is under way, nothing may."""
        if self._answer is None:
            self.abort()
            return
        try:
            self._answer.read(data)
        except NotHttp as problem:
            self._fail(f"its answer is no HTTP: {problem}")
        if self._answer.unread_bytes > UNREAD_BYTES_MAX and self._is_reading:
            self._is_reading = False
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        """The replica says no more."""
        if self._answer is None:
            return False
        try:
            self._answer.end()
        except NotHttp as problem:
            self._fail(CLOSED if self._answer.is_silent else f"its answer is no HTTP: {problem}")
        self._fail("it closed the connection")
        self._wake()
        return not self._transport.get_extra_info("sslcontext")

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        self._fail("it closed the connection" if exc is None else f"the connection to it broke: {exc}")
        self.resume_writing()
        self._wake()

    def pause_writing(self) -> None:
        """The replica does not read as fast as it is written to."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """It has read on."""
        self._is_paused = False
        if self._may_write is not None and not self._may_write.done():
            self._may_write.set_result(None)

    # --- what an exchange calls

    @property
    def is_open(self) -> bool:
        """Whether it can take a request."""
        return self._lost is None and not self._transport.is_closing()

    def begin(self, method: str, target: bytes, headers: Sequence[Header], body: bytes, *, is_all: bool) -> None:
        """Send the head of a request, and what is there of its body: all of it, if `is_all`. Raises ReplicaFailed."""
        lines = [b"%b %b HTTP/1.1" % (method.encode("ascii"), target), *[b"%b: %b" % header for header in headers]]
        head = b"\r\n".join(lines)
        if head.count(b"\n") >= len(lines) or head.count(b"\r") >= len(lines) or b"\0" in head:
            raise ReplicaFailed("the request cannot be passed on: a line of it holds what ends lines")
        self._is_chunked = (b"transfer-encoding", b"chunked") in headers
        self._is_sent = is_all
        self._answer = Answer(is_to_head=method == "HEAD")
        self._transport.write(b"%b%b\r\n\r\n%b" % (self._unsent, head, self._framed(body, is_all)))
        self._unsent = b""

    async def send(self, body: bytes, *, is_all: bool) -> None:
        """Send more of the request's body; returns once the replica has taken about as much. Raises ReplicaFailed."""
        self._is_sent = is_all
        self._transport.write(self._framed(body, is_all))
        while self._is_paused and self._lost is None:
            self._may_write = asyncio.get_running_loop().create_future()
            await self._may_write
        if self._lost is not None:
            raise ReplicaFailed(self._lost)

    def _framed(self, body: bytes, is_all: bool) -> bytes:
        if not self._is_chunked:
            return body
        return (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"0\r\n\r\n" if is_all else b"")

    async def answer(self) -> Answer:
        """The answer, once its head has come. Raises ReplicaFailed."""
        assert self._answer is not None
        while self._answer.headers is None:
            await self._more()
        return self._answer

    async def more(self) -> None:
        """Return once there is more of the answer than was taken of it. Raises ReplicaFailed."""
        assert self._answer is not None
        if not self._is_reading:
            self._is_reading = True
            self._transport.resume_reading()
        while not (self._answer.unread_bytes or self._answer.is_whole):
            await self._more()

    def is_reusable(self) -> bool:
        """Whether the exchange is whole, so that another one can follow."""
        return self.is_open and self._is_sent and self._answer is not None and self._answer.is_reusable

    def rest(self) -> None:
        """Its exchange is over, and nothing may come until the next one."""
        self._answer = None
        if not self._is_reading:
            self._is_reading = True
            self._transport.resume_reading()

    def abort(self) -> None:
        """End it now, whatever is under way."""
        self._transport.abort()

    def fail(self, why: str) -> None:
        """What carries it broke off: an answer that ends with its connection has not ended."""
        self._fail(why)
        self._wake()
        self.abort()

    async def _more(self) -> None:
        if self._lost is not None:
            raise ReplicaFailed(self._lost)
        self._has_news = asyncio.get_running_loop().create_future()
        await self._has_news

    def _fail(self, why: str) -> None:
        self._lost = self._lost or why

    def _wake(self) -> None:
        if self._has_news is not None and not self._has_news.done():
            self._has_news.set_result(None)


class Reached(Protocol):
    """What answers requests: a replica, or a port of a job."""

    @property
    def first_line(self) -> bytes:
        """What each connection to it begins with."""
        ...

    async def connection(self, *, is_new: bool = False) -> Connection:
        """One for a request. Raises ReplicaFailed."""
        ...

    def keep(self, connection: Connection) -> None:
        """Its exchange is over."""
        ...

    async def dialled(self, made: Callable[[], P]) -> P:
        """A new connection; its first line is to be written by `made`'s protocol. Raises ReplicaFailed."""
        ...


@dataclass(slots=True, eq=False)
class _Idle:
    connection: Connection
    since_s: float


class Upstream(Replica):
    """A replica with its connections. To be used inside the running loop, and closed there."""

    def __init__(self, id: str, seats: int, endpoint: Endpoint) -> None:
        super().__init__(id, seats)
        self.endpoint = endpoint
        self.context = tls_context(endpoint.target)
        self.is_ready = True
        """Whether it gets requests; one that drains ends once nobody is connected."""

        self.asked_beside = asyncio.Semaphore(ASKED_BESIDE_MAX)
        """Held by each request for statistics: it takes no seat, and is not to fill the replica either."""

        self._kept: deque[_Idle] = deque()
        self._sweeping: asyncio.TimerHandle | None = None

    async def connection(self, *, is_new: bool = False) -> Connection:
        """One for a request: kept from an earlier one, or dialled. Raises ReplicaFailed."""
        while self._kept and not is_new:
            connection = self._kept.pop().connection
            if connection.is_open:
                return connection
        return await self.dialled(lambda: Connection(self.first_line))

    @property
    def first_line(self) -> bytes:
        """What each connection begins with."""
        return self.endpoint.first_line

    async def dialled(self, made: Callable[[], P]) -> P:
        """A new connection; its first line is to be written by `made`'s protocol. Raises ReplicaFailed."""
        return await dial(self.endpoint, self.context, made)

    def keep(self, connection: Connection) -> None:
        """Its exchange is over."""
        connection.requests += 1
        if not (self.is_ready and len(self._kept) < KEPT_MAX and connection.is_reusable()):
            connection.abort()
            return
        connection.rest()
        loop = asyncio.get_running_loop()
        self._kept.append(_Idle(connection, loop.time()))
        if self._sweeping is None:
            self._sweeping = loop.call_later(KEPT_S_MAX, self._sweep)

    def close(self) -> None:
        """Get no more requests, and close what is kept; what is under way goes on."""
        self.is_ready = False
        while self._kept:
            self._kept.pop().connection.abort()
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while self._kept and (loop.time() - self._kept[0].since_s >= KEPT_S_MAX):
            self._kept.popleft().connection.abort()
        rest_s = KEPT_S_MAX - (loop.time() - self._kept[0].since_s) if self._kept else None
        self._sweeping = loop.call_later(rest_s, self._sweep) if rest_s is not None else None
