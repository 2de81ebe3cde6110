"""What the machine itself costs: one echo, one fsynced commit, one hop of a stream, one spawned process."""

import asyncio
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

SERVICE = "bench.Echo"
PAYLOAD = b"x" * 200


async def _serve() -> None:
    """An echo server in a process of its own; prints its port."""

    async def unary(request: bytes, _: Any) -> bytes:
        return request

    async def stream(requests: Any, _: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    server = grpc.aio.server()
    handlers: Any = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Stream": grpc.stream_stream_rpc_method_handler(stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


@asynccontextmanager
async def echo_channel(module: str = "bench.floors") -> AsyncIterator[grpc.aio.Channel]:
    """A channel to an echo server in another process; or to what another module serves in its place."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", module, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        port = int(await process.stdout.readline())
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        process.terminate()
        await process.wait()


async def echo_ms(count: int) -> list[float]:
    """Round trips of one unary call after the other, in milliseconds."""
    times: list[float] = []
    async with echo_channel() as channel:
        call: Any = channel.unary_unary(f"/{SERVICE}/Unary")
        for _ in range(count):
            begin = time.perf_counter()
            await call(PAYLOAD)
            times.append((time.perf_counter() - begin) * 1e3)
    return times


async def echoes_per_second(count: int, in_flight: int) -> float:
    """Unary calls per second with this many in flight."""
    async with echo_channel() as channel:
        call: Any = channel.unary_unary(f"/{SERVICE}/Unary")
        await call(PAYLOAD)
        gate = asyncio.Semaphore(in_flight)

        async def one() -> None:
            async with gate:
                await call(PAYLOAD)

        begin = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(count)))
        return count / (time.perf_counter() - begin)


async def hop_ms(count: int) -> list[float]:
    """One way over an open stream, as half of a round trip, in milliseconds."""
    times: list[float] = []
    async with echo_channel() as channel:
        call: Any = channel.stream_stream(f"/{SERVICE}/Stream")()
        for _ in range(count):
            begin = time.perf_counter()
            await call.write(PAYLOAD)
            await call.read()
            times.append((time.perf_counter() - begin) * 1e3 / 2)
        call.cancel()
    return times


def commit_ms(count: int) -> list[float]:
    """One row in one fsynced SQLite transaction, as the store does it, in milliseconds."""
    times: list[float] = []
    with tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as folder:
        connection = sqlite3.connect(Path(folder) / "floor.db", isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE row (id INTEGER PRIMARY KEY, payload TEXT)")
        for _ in range(count):
            begin = time.perf_counter()
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO row (payload) VALUES (?)", ("x" * 500,))
            connection.execute("COMMIT")
            times.append((time.perf_counter() - begin) * 1e3)
        connection.close()
    return times


def spawn_ms(argv: list[str], count: int) -> list[float]:
    """From posix_spawn to the first instruction of a program that prints CLOCK_BOOTTIME in nanoseconds."""
    times: list[float] = []
    for _ in range(count):
        reader, writer = os.pipe()
        begin = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        pid = os.posix_spawn(argv[0], argv, {}, file_actions=[(os.POSIX_SPAWN_DUP2, writer, 1)], setsid=True)
        os.close(writer)
        with os.fdopen(reader) as output:
            stamp = int(output.read())
        os.waitpid(pid, 0)
        times.append((stamp - begin) / 1e6)
    return times


def spawns_per_second(argv: list[str], count: int, at_once: int) -> float:
    """Processes spawned and reaped per second, with this many at once."""
    begin = time.perf_counter()
    alive = 0
    for _ in range(count):
        if alive == at_once:
            os.wait()
            alive -= 1
        os.posix_spawn(argv[0], argv, {}, setsid=True)
        alive += 1
    for _ in range(alive):
        os.wait()
    return count / (time.perf_counter() - begin)


if __name__ == "__main__":
    asyncio.run(_serve())
