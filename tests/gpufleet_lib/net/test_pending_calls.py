"""Calls that come at once, faster than a server begins them, are all begun, or refused with a reason."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from gpufleet.net.channel import server_options

WATCHES, CHANNELS, BUSY_SECONDS = 2_000, 20, 1.0


async def test_two_thousand_watches_that_come_while_the_server_is_busy_all_begin() -> None:
    is_over = asyncio.Event()

    async def watch(request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield b"began"
        await is_over.wait()

    server = grpc.aio.server(options=server_options())
    handlers: dict[str, Any] = {"Watch": grpc.unary_stream_rpc_method_handler(watch)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", handlers),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    channels = [
        grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(CHANNELS)
    ]
    await asyncio.gather(*(each.channel_ready() for each in channels))
    watches: list[Any] = [each.unary_stream("/test.Test/Watch") for each in channels]
    calls: list[Any] = [watches[number % CHANNELS](b"") for number in range(WATCHES)]

    async def beginning(call: Any) -> str:
        try:
            await call.read()
        except grpc.aio.AioRpcError as problem:
            return f"{problem.code().name}: {problem.details()}"
        return "began"

    try:
        reading = [asyncio.create_task(beginning(each)) for each in calls]
        await asyncio.sleep(0)
        time.sleep(BUSY_SECONDS)  # noqa: ASYNC251 - as a loop that carries out a long turn: gRPC's threads take calls on
        assert Counter(await asyncio.gather(*reading)) == {"began": WATCHES}
    finally:
        is_over.set()
        for each in calls:
            each.cancel()
        await asyncio.gather(*(each.close() for each in channels))
        await server.stop(None)
