"""A TCP connection over a gRPC stream: bytes both ways, each way with an end of its own, and a reset for all else.

Each end carries between its connection and its call, one piece at a time: a connection that is not read from stops its
own call by HTTP/2's flow control, and no other. What waits at an end is a piece in each direction, what its socket
and its stream hold, and READ_AHEAD_BYTES.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

PIECE_BYTES_MAX = 256 * 1024
"""The longest piece that a message carries."""

READ_AHEAD_BYTES = PIECE_BYTES_MAX // 2
"""asyncio stops reading from a connection when it holds twice as much."""

UNSENT_BYTES_MAX = PIECE_BYTES_MAX
"""What a connection may not have taken yet before the next piece is waited with."""

PORT_MAX = 65_535


class Cut(Exception):
    """The other end broke off: neither side has said that no more bytes come."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of one direction. `is_end`: behind them there are no more."""

    data: bytes = b""
    is_end: bool = False


class Connection:
    """One TCP connection, until `close`, which resets it unless both directions came to their ends."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ends = 0
        writer.transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)

    async def carry(self, pieces: AsyncIterator[Piece], send: Callable[[Piece], Awaitable[None]]) -> None:
        """Carry both ways until both have ended. Raises Cut, OSError, or what `pieces` raises.

        `send` raises an InvalidStateError where the call is over. What came before its end is still written, and how it
        ended is what `pieces` raises.
        """
        reading, writing = asyncio.create_task(self._read(send)), asyncio.create_task(self._write(pieces))
        tasks = {reading, writing}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            if reading in done and isinstance(reading.exception(), asyncio.InvalidStateError):
                await writing
                raise Cut
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        """Let go of it; what was cut is reset, so that the other side does not take it for an end."""
        if self._ends == 2:  # one for each direction
            self._writer.close()
            return
        with contextlib.suppress(OSError):
            its: socket.socket = self._writer.get_extra_info("socket")
            its.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def _read(self, send: Callable[[Piece], Awaitable[None]]) -> None:
        while data := await self._reader.read(PIECE_BYTES_MAX):
            await send(Piece(data))
        await send(Piece(is_end=True))
        self._ends += 1

    async def _write(self, pieces: AsyncIterator[Piece]) -> None:
        async for piece in pieces:
            if piece.data:
                self._writer.write(piece.data)
                await self._writer.drain()
            if piece.is_end:
                if self._writer.can_write_eof():
                    self._writer.write_eof()
                self._ends += 1
                return
        raise Cut
