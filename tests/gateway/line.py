"""A line between two programs that can be narrow, and can be cut."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

WIDE_BYTES_PER_SECOND = 100_000_000
CHUNK_BYTES = 4_096
BUFFER_BYTES = 16_384


class Line:
    """Dial `address`, and it goes on to where the line leads; what comes back passes at `bytes_per_second`."""

    def __init__(self, target: str = "", bytes_per_second: float = WIDE_BYTES_PER_SECOND) -> None:
        self.bytes_per_second = bytes_per_second
        self.address = ""
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()

    def lead_to(self, target: str) -> None:
        """Connections that come from now on go there."""
        self._target = target

    def cut(self) -> None:
        """End every connection, without a word."""
        for writer in self._writers:
            writer.transport.abort()

    @asynccontextmanager
    async def laid(self) -> AsyncIterator[None]:
        """While the block lasts."""
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield

    async def _carry(self, up_reader: asyncio.StreamReader, down_writer: asyncio.StreamWriter) -> None:
        # A small buffer here, so that what does not pass waits where it is made.
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        made.setblocking(False)
        host, _, port = self._target.rpartition(":")
        try:
            await asyncio.get_running_loop().sock_connect(made, (host, int(port)))
        except OSError:
            made.close()
            down_writer.close()
            return
        down_reader, up_writer = await asyncio.open_connection(sock=made, limit=BUFFER_BYTES)
        writers = {up_writer, down_writer}
        self._writers |= writers
        both = [
            asyncio.create_task(self._pass(up_reader, up_writer, is_limited=False)),
            asyncio.create_task(self._pass(down_reader, down_writer, is_limited=True)),
        ]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
        self._writers -= writers
        for writer in writers:
            writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_limited: bool) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                writer.write(data)
                await writer.drain()
                if is_limited:
                    await asyncio.sleep(len(data) / self.bytes_per_second)
