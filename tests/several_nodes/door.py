"""The way from the test's own process to a server on one of its machines."""

from __future__ import annotations

import asyncio
import socket

from tests.several_nodes.network import Machine


class Door:
    """Lets this process dial a server on a machine: it listens on loopback here, and connects over there."""

    def __init__(self, machine: Machine, address: str) -> None:
        self._machine = machine
        host, _, port = address.rpartition(":")
        self._there = (host, int(port))
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self.address = ""

    async def open(self) -> None:
        """Begin to listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """End all connections."""
        if self._server is not None:
            self._server.close()
        for task in tuple(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._join(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # one side is gone, or the test is over: so is the connection
        finally:
            writer.close()
            self._open.discard(task)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with self._machine.sockets():
            connection = socket.socket()
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connection, self._there)
        except BaseException:
            connection.close()
            raise
        there_reader, there_writer = await asyncio.open_connection(sock=connection)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, there_writer))
                both.create_task(_pump(there_reader, writer))
        except* OSError:
            pass
        finally:
            there_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    raise ConnectionResetError  # one side has closed: the other one is closed with it
