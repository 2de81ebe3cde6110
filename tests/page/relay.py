"""A network that can be cut: a TCP relay between the browser and the gateway, on one port while it lives."""

from __future__ import annotations

import asyncio
import contextlib

CHUNK_BYTES = 65_536


class Relay:
    """Passes bytes on to `target`, HOST:PORT, which may change. Made and used in one event loop."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.address = ""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._ways_up: set[asyncio.Event] = set()
        self._is_cut = False
        self._quiet = asyncio.Event()
        self._quiet.set()

    async def start(self) -> None:
        """Listen on any port."""
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def end(self) -> None:
        """Listen no more."""
        await self.cut()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def cut(self) -> None:
        """Break every connection without a word, and each new one at once."""
        self._is_cut = True
        self.let_go()
        for writer in self._writers:
            writer.transport.abort()
        await self._quiet.wait()

    def mend(self) -> None:
        """Pass bytes on again."""
        self._is_cut = False

    def hold(self) -> None:
        """Keep from the gateway what browsers say on the connections that there are, also that they close them."""
        for way_up in self._ways_up:
            way_up.clear()

    def let_go(self) -> None:
        """Pass on what was held."""
        for way_up in self._ways_up:
            way_up.set()

    async def quiet(self) -> None:
        """Return once nobody is connected."""
        await self._quiet.wait()

    async def _pass(self, near_reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        if self._is_cut:
            near.transport.abort()
            return
        self._quiet.clear()
        self._writers.add(near)
        self._ways_up.add(way_up := _open())
        try:
            far_reader, far = await asyncio.open_connection(*self.target.split(":"))
            self._writers.add(far)
            try:
                await asyncio.gather(_pump(near_reader, far, way_up), _pump(far_reader, near, _open()))
            finally:
                await self._end(far)
        except OSError:
            pass  # a gateway that is away refuses; so does this, then
        finally:
            self._ways_up.discard(way_up)
            await self._end(near)
            if not self._writers:
                self._quiet.set()

    async def _end(self, writer: asyncio.StreamWriter) -> None:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        self._writers.discard(writer)


def _open() -> asyncio.Event:
    way = asyncio.Event()
    way.set()
    return way


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: asyncio.Event) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(CHUNK_BYTES):
            await way.wait()
            writer.write(chunk)
            await writer.drain()
    await way.wait()
    # Who gets no more from one side need not wait for the other one.
    writer.close()
