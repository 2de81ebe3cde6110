"""The way to an object store, which can be cut as where the store's process was killed, and mended again."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tests.ports import kept_port

READ_BYTES = 65_536
FOREVER = 2**62


class ObjectLine:
    """Carries bytes to a port of this machine until it is cut; then every connection is reset, and none is taken."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self.port = kept_port()
        self._server: asyncio.Server | None = None
        self._closing: asyncio.Task[None] | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.left_bytes = FOREVER
        """So many go up until it is cut by itself."""

    @property
    def url(self) -> str:
        """What the scheduler is told."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def is_cut(self) -> bool:
        """Whether nobody listens."""
        return self._server is None

    async def mend(self) -> None:
        """Take connections, on the port of before."""
        self.left_bytes = FOREVER
        if self._closing is not None:
            await self._closing
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self.port)

    def cut(self) -> None:
        """Reset what is open, in the middle of whatever it says, and refuse what comes."""
        if self._server is not None:
            loop = asyncio.get_running_loop()
            for listening in self._server.sockets:
                loop.remove_reader(listening.fileno())
            self._closing = loop.create_task(_close(self._server))
            self._server = None
        for each in self._open:
            each.transport.abort()

    async def end(self) -> None:
        """Cut it, and wait for all that it did."""
        self.cut()
        if self._closing is not None:
            await self._closing
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_cut:  # it was accepted just before
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._open.add(writer)
        try:
            with suppress(OSError):
                there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
                self._open.add(there_writer)
                try:
                    up = asyncio.create_task(self._up(reader, there_writer))
                    await _copied(there_reader, writer)
                    up.cancel()
                    await asyncio.gather(up, return_exceptions=True)
                finally:
                    self._open.discard(there_writer)
                    there_writer.transport.abort()
        finally:
            self._open.discard(writer)
            writer.close()
            self._tasks.discard(task)

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(READ_BYTES):
                self.left_bytes -= len(data)
                if self.left_bytes < 0:
                    self.cut()
                    return
                writer.write(data)
                await writer.drain()


async def _close(server: asyncio.Server) -> None:
    """What was accepted in this turn of the loop becomes a connection in the next one; a server that is closed by then
    leaves its socket open for good."""
    await asyncio.sleep(0)
    server.close()


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            await writer.drain()
