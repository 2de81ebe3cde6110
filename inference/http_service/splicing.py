"""The endpoint of a replica: whoever begins with its connect key is connected with the program, byte by byte.

Nothing of what passes is parsed. Each direction has a bounded buffer: while one side does not read, the other is not
read. An end of writing is passed on, but over TLS, which has none: there the end of one side is the end of both.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from gpufleet.net.addresses import Address
from gpufleet.net.listening import bound
from gpufleet.security.tickets import connect_line

KEY_S_MAX = 5.0
"""How long a TLS handshake may take, and then the line with the key."""

DIAL_S_MAX = 5.0
"""How long the program may take to accept a connection."""

UNPROVEN_MAX = 256
"""Connections that have not shown the key yet. Further ones are closed."""

CONNECTIONS_PER_REQUEST_MAX = 4
"""Connections with the key, for each request that the program takes at a time: gateways keep some for later."""

BACKLOG = 1_024
UNREAD_BYTES_MAX = 256 * 1024
"""What may wait for a side that does not read; what one more reading brings comes on top, as much at most."""

LINGER_NOT = struct.pack("ii" if os.name == "posix" else "hh", 1, 0)
"""A socket that is closed with this tells the other side that the connection has failed."""

PROBE_S = 30
PROBES_MAX = 3
"""A gateway that is silent for the first is probed as often, and one that answers none is gone."""


class SpliceServer:
    """Listens for gateways. `changed` is called with the number of connections whenever it is another.

    `open` are the connections with the key, `total` those that there ever were, `refused` all without the key and
    beyond the bounds.
    """

    def __init__(
        self,
        *,
        key: bytes,
        program: Callable[[], Address],
        open_max: int,
        changed: Callable[[int], None],
    ) -> None:
        self.line = connect_line(key)
        self.open_max = open_max
        self.total = 0
        self.refused = 0
        self._program = program
        self._changed = changed
        self._unproven: set[GatewaySide] = set()
        self._open: set[GatewaySide] = set()
        self._listening: socket.socket | None = None
        self._server: asyncio.Server | None = None

    @property
    def open(self) -> int:
        """Connections with the key."""
        return len(self._open)

    def listen(self, address: Address) -> int:
        """Bind to the address; answers the port. Errors: PORT_TAKEN, ADDRESS_INVALID."""
        self._listening = bound(address, backlog=BACKLOG)
        return cast(int, self._listening.getsockname()[1])

    async def start(self, tls: ssl.SSLContext | None) -> None:
        """Take connections."""
        assert self._listening is not None
        loop = asyncio.get_running_loop()
        handshake_s = None if tls is None else KEY_S_MAX
        self._server = await loop.create_server(
            lambda: GatewaySide(self), sock=self._listening, ssl=tls, ssl_handshake_timeout=handshake_s
        )

    def close(self) -> None:
        """Take no more, and cut those that are there."""
        if self._server is not None:
            self._server.close()
        elif self._listening is not None:
            self._listening.close()
        for each in (*self._unproven, *self._open):
            each.cut()

    # --- what connections say

    def came(self, side: GatewaySide) -> bool:
        """Whether there is room for one that has yet to show the key."""
        if len(self._unproven) >= UNPROVEN_MAX:
            self.refused += 1
            return False
        self._unproven.add(side)
        return True

    def proved(self, side: GatewaySide) -> Address | None:
        """It has the key; answers where the program is, None where there is no room."""
        if len(self._open) >= self.open_max:
            return None
        self._unproven.discard(side)
        self._open.add(side)
        self.total += 1
        self._changed(len(self._open))
        return self._program()

    def went(self, side: GatewaySide) -> None:
        """It is no more."""
        if side in self._unproven:
            self._unproven.discard(side)
            self.refused += 1
        elif side in self._open:
            self._open.discard(side)
            self._changed(len(self._open))


class Side(asyncio.Protocol):
    """One end of a connection: what it brings goes out at the other."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: Side | None = None
        self.has_ended = False
        self.is_full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is there."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=UNREAD_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        """Pass it on; over TLS some may still come when the other side is gone."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        """Pass the end of writing on; what the other side still has to say goes on. Answers whether to stay open."""
        self.has_ended = True
        if self.transport is None or self.other is None or self.other.transport is None:
            return False
        if self.other.has_ended or not self.other.transport.can_write_eof():
            self.other.leave()
            return False
        self.other.transport.write_eof()
        return self.transport.can_write_eof()

    def pause_writing(self) -> None:
        """It does not read: read nothing for it."""
        self.is_full = True
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """It reads again."""
        self.is_full = False
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is no more, and neither is the other once it has what was sent to it; one that breaks off breaks both."""
        self.transport = None
        if self.other is not None:
            self.other.leave() if exc is None or self.has_ended else self.other.cut()

    def leave(self) -> None:
        """Close after what is still to be sent."""
        if self.transport is not None:
            self.transport.close()

    def cut(self) -> None:
        """Close at once, as a failure and not as an end."""
        if self.transport is not None:
            with suppress(OSError):  # it is closed already
                sock = self.transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
            self.transport.abort()


class GatewaySide(Side):
    """The end towards the gateway, which begins with the key."""

    def __init__(self, server: SpliceServer) -> None:
        super().__init__()
        self._server = server
        self._begun = b""
        self._deadline: asyncio.TimerHandle | None = None
        self._dial: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody came."""
        super().connection_made(transport)
        if not self._server.came(self):
            self.cut()
            return
        _keep_alive(transport.get_extra_info("socket"))
        self._deadline = asyncio.get_running_loop().call_later(KEY_S_MAX, self.cut)

    def data_received(self, data: bytes) -> None:
        """The key, and what follows it."""
        if self.other is not None:
            super().data_received(data)
            return
        assert self.transport is not None
        if self.transport.is_closing():
            return
        self._begun += data
        line = self._server.line
        head = self._begun[: len(line)]
        if self._dial is not None or (len(head) < len(line) and b"\n" not in head):
            return
        if hmac.compare_digest(head, line) and (program := self._server.proved(self)) is not None:
            assert self._deadline is not None
            self._deadline.cancel()
            self.transport.pause_reading()
            self._dial = asyncio.get_running_loop().create_task(self._connect(program))
        else:
            self.leave()

    def connection_lost(self, exc: Exception | None) -> None:
        """The gateway is gone."""
        if self._deadline is not None:
            self._deadline.cancel()
        if self._dial is not None:
            self._dial.cancel()
        self._server.went(self)
        super().connection_lost(exc)

    async def _connect(self, program: Address) -> None:
        """Connect with the program. Where it takes no connection the gateway sees an end without an answer."""
        assert self.transport is not None
        side = Side()
        side.other = self
        try:
            async with asyncio.timeout(DIAL_S_MAX):
                await asyncio.get_running_loop().create_connection(lambda: side, program.host, program.port)
        except (OSError, TimeoutError):
            self.leave()
            return
        self.other = side
        begun = self._begun[len(self._server.line) :]
        self._begun = b""
        if begun:
            self.data_received(begun)
        if not side.is_full and self.transport is not None:
            self.transport.resume_reading()


def _keep_alive(sock: socket.socket) -> None:
    """Notice a gateway whose machine is gone."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, number in (("TCP_KEEPIDLE", PROBE_S), ("TCP_KEEPINTVL", PROBE_S), ("TCP_KEEPCNT", PROBES_MAX)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), number)
