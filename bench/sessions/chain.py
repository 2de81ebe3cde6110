"""The floors of a frame's way: a WebSocket server and what it asks for a frame, in processes of their own.

client ═ a short text ═▶ WebSocket server ═ 30 kB on an open stream ═▶ echo ═ 30 kB ═▶ server ═ 30 kB ═▶ client

With `draws` it asks `bare_worker.py`, by a short message, for the picture that a worker of the test pattern draws.
"""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from ..floors import SERVICE, echo_channel

FRAME = b"x" * 30_000
ASKED = "x" * 100
IN_FLIGHT = 4
RATE_S = 3.0
DRAWS, WORKER = "draws", "bench.sessions.bare_worker"


async def _serve(*, draws: bool) -> None:
    """Serve; prints the port."""
    asked = ASKED.encode() if draws else FRAME
    async with echo_channel(WORKER) if draws else echo_channel() as channel:

        async def answer(socket: ServerConnection) -> None:
            call: Any = channel.stream_stream(f"/{SERVICE}/Stream")()
            with suppress(ConnectionClosed):
                async for _ in socket:
                    await call.write(asked)
                    await socket.send(await call.read())
            call.cancel()

        async with serve(answer, "127.0.0.1", 0, compression=None) as server:
            print(next(iter(server.sockets)).getsockname()[1], flush=True)
            await server.wait_closed()


@asynccontextmanager
async def chain(sockets: int = 1, *, draws: bool = False) -> AsyncIterator[Sequence[ClientConnection]]:
    """WebSockets to such a server."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.sessions.chain", *([DRAWS] if draws else ())), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        url = f"ws://127.0.0.1:{int(await process.stdout.readline())}"
        async with AsyncExitStack() as stack:
            opening = [connect(url, compression=None, proxy=None) for _ in range(sockets)]
            yield [await stack.enter_async_context(each) for each in opening]
    finally:
        process.send_signal(signal.SIGINT)
        await process.wait()


async def round_trips_ms(count: int, *, draws: bool = False) -> list[float]:
    """One after the other, in milliseconds."""
    times: list[float] = []
    async with chain(draws=draws) as (socket,):
        for _ in range(count):
            begin = time.perf_counter()
            await socket.send(ASKED)
            await socket.recv()
            times.append((time.perf_counter() - begin) * 1e3)
    return times


async def round_trips_a_second() -> float:
    """With a few in flight."""
    async with chain() as (socket,):
        for _ in range(IN_FLIGHT):
            await socket.send(ASKED)
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < RATE_S:
            await socket.recv()
            await socket.send(ASKED)
            count += 1
        return count / (time.perf_counter() - begin)


async def pictures_a_second(sockets: int) -> float:
    """Of so many people in all, each of whom asks for the next picture when one comes."""

    async def watch(socket: ClientConnection, until: float) -> int:
        count = 0
        await socket.send(ASKED)
        while time.perf_counter() < until:
            await socket.recv()
            await socket.send(ASKED)
            count += 1
        await socket.recv()
        return count

    async with chain(sockets, draws=True) as people:
        begin = time.perf_counter()
        counts = await asyncio.gather(*(watch(each, begin + RATE_S) for each in people))
        return sum(counts) / (time.perf_counter() - begin)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(draws=DRAWS in sys.argv))
