"""An endpoint in this process, the program behind it as a test has it, and connections of gateways."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

from gpufleet.net.addresses import Address
from gpufleet.security.tickets import connect_key, connect_line
from inference.http_service.splicing import SpliceServer
from tests.inference.serving import WAIT_S_MAX

KEY = connect_key(b"s" * 32, "a start")
LINE = connect_line(KEY)

Reader: TypeAlias = asyncio.StreamReader
Writer: TypeAlias = asyncio.StreamWriter
Program = Callable[[Reader, Writer], Awaitable[None]]


class Endpoint:
    """A running endpoint, and what it said of its connections."""

    def __init__(self, program: Address, open_max: int) -> None:
        self.counts: list[int] = []
        self.server = SpliceServer(
            key=KEY, program=lambda: program, open_max=open_max, changed=lambda count: self.counts.append(count)
        )
        self.port = self.server.listen(Address("127.0.0.1", 0))

    @asynccontextmanager
    async def dial(
        self, begin: bytes = LINE, tls: ssl.SSLContext | None = None
    ) -> AsyncIterator[tuple[Reader, Writer]]:
        """A connection that begins with this."""
        name = "worker.gpufleet" if tls else None
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=tls, server_hostname=name)
        try:
            writer.write(begin)
            yield reader, writer
        finally:
            writer.transport.abort()


@asynccontextmanager
async def endpoint(
    program: Program, *, open_max: int = 100, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Endpoint]:
    """An endpoint before a program, which the call plays for each connection."""
    playing: set[asyncio.Task[None]] = set()

    async def play(reader: Reader, writer: Writer) -> None:
        task = asyncio.current_task()
        assert task is not None
        playing.add(task)
        try:
            await program(reader, writer)
        except OSError:  # a connection that was cut, as tests do
            pass
        finally:
            writer.transport.abort()

    served = await asyncio.start_server(play, "127.0.0.1", 0)
    made = Endpoint(Address("127.0.0.1", served.sockets[0].getsockname()[1]), open_max)
    await made.server.start(tls)
    try:
        yield made
    finally:
        made.server.close()
        served.close()
        for each in playing:
            each.cancel()
        await asyncio.gather(*playing, return_exceptions=True)


async def read_all(reader: Reader) -> bytes:
    """What comes until the end; nothing where the connection was cut."""
    async with asyncio.timeout(WAIT_S_MAX):
        try:
            return await reader.read()
        except ConnectionError:
            return b""
