"""The floor of a frame's way: a WebSocket server that asks a bare grpc.aio echo for 30 kB, in processes of their own.

client ═ a short text ═▶ WebSocket server ═ 30 kB on an open stream ═▶ echo ═ 30 kB ═▶ server ═ 30 kB ═▶ client
"""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from ..floors import SERVICE, echo_channel

FRAME = b"x" * 30_000
ASKED = "x" * 100
IN_FLIGHT = 4
RATE_S = 3.0


async def _serve() -> None:
    """Serve; prints the port."""
    async with echo_channel() as channel:

        async def answer(socket: ServerConnection) -> None:
            call: Any = channel.stream_stream(f"/{SERVICE}/Stream")()
            with suppress(ConnectionClosed):
                async for _ in socket:
                    await call.write(FRAME)
                    await socket.send(await call.read())
            call.cancel()

        async with serve(answer, "127.0.0.1", 0, compression=None) as server:
            print(next(iter(server.sockets)).getsockname()[1], flush=True)
            await server.wait_closed()


@asynccontextmanager
async def chain() -> AsyncIterator[ClientConnection]:
    """A WebSocket to such a server."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.sessions.chain", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        port = int(await process.stdout.readline())
        async with connect(f"ws://127.0.0.1:{port}", compression=None, proxy=None) as socket:
            yield socket
    finally:
        process.send_signal(signal.SIGINT)
        await process.wait()


async def round_trips_ms(count: int) -> list[float]:
    """One after the other, in milliseconds."""
    times: list[float] = []
    async with chain() as socket:
        for _ in range(count):
            begin = time.perf_counter()
            await socket.send(ASKED)
            await socket.recv()
            times.append((time.perf_counter() - begin) * 1e3)
    return times


async def round_trips_a_second() -> float:
    """With a few in flight."""
    async with chain() as socket:
        for _ in range(IN_FLIGHT):
            await socket.send(ASKED)
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < RATE_S:
            await socket.recv()
            await socket.send(ASKED)
            count += 1
        return count / (time.perf_counter() - begin)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve())
