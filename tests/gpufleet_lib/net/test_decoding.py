"""Messages that cannot be read: refused as the caller's mistake on calls of every kind, without a word in the log."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from gpufleet.errors import Reason
from gpufleet.net.channel import server_options
from gpufleet.net.decoding import DecodingInterceptor
from gpufleet.net.reflection import serve_reflection
from tests.e2e.client import refusal

Request = health_pb2.HealthCheckRequest
GOOD, CORRUPT, NO_UTF_8 = Request(service="a").SerializeToString(), b"\x0a\x09ab", b"\x0a\x02\xed\xa0"


async def count(requests: AsyncIterator[Any], context: Any) -> bytes:
    return b"%d" % len([each async for each in requests])


async def echo(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[bytes]:
    async for each in requests:
        yield each.service.encode()


async def write(requests: AsyncIterator[Any], context: Any) -> None:
    async for each in requests:
        await context.write(each.service.encode())


async def one(request: Any, context: Any) -> bytes:
    return bytes(request.service.encode())


async def some(request: Any, context: Any) -> AsyncIterator[bytes]:
    yield request.service.encode()


async def write_one(request: Any, context: Any) -> None:
    await context.write(request.service.encode())


HANDLERS: dict[str, Any] = {
    "Count": grpc.stream_unary_rpc_method_handler(count, Request.FromString),
    "Echo": grpc.stream_stream_rpc_method_handler(echo, Request.FromString),
    "Write": grpc.stream_stream_rpc_method_handler(write, Request.FromString),
    "One": grpc.unary_unary_rpc_method_handler(one, Request.FromString),
    "Some": grpc.unary_stream_rpc_method_handler(some, Request.FromString),
    "WriteOne": grpc.unary_stream_rpc_method_handler(write_one, Request.FromString),
}


@asynccontextmanager
async def served() -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server(interceptors=[DecodingInterceptor()], options=server_options())
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", HANDLERS),))
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)  # pyright: ignore[reportAttributeAccessIssue]
    serve_reflection(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(0)


async def answers(channel: grpc.aio.Channel, path: str, *messages: bytes) -> list[bytes]:
    call: Any = channel.stream_stream(path)()
    for message in messages:
        await call.write(message)
    await call.done_writing()
    return [bytes(each) async for each in call]


@pytest.mark.parametrize("wrong", [CORRUPT, NO_UTF_8])
@pytest.mark.parametrize("name", sorted(HANDLERS))
async def test_a_message_that_cannot_be_read_is_the_callers_mistake(
    name: str, wrong: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    before = [] if HANDLERS[name].unary_unary or HANDLERS[name].unary_stream else [GOOD]
    async with served() as channel:
        assert await answers(channel, f"/test.Test/{name}", GOOD) in ([b"a"], [b"1"])
        for messages in ([wrong], [*before, wrong]):
            error = await refusal(answers(channel, f"/test.Test/{name}", *messages))
            assert error.reason is Reason.INVALID_ARGUMENT and "cannot be read" in error.message, error
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    "path",
    [
        *(f"/grpc.health.v1.Health/{name}" for name in ("Check", "Watch")),
        f"/{reflection.SERVICE_NAME}/ServerReflectionInfo",
    ],
)
async def test_neither_health_nor_reflection_falls_over_what_it_cannot_read(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with served() as channel:
        error = await refusal(answers(channel, path, b"\xff\xff\xff\xff"))
        assert error.reason is Reason.INVALID_ARGUMENT
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
