"""Calls that the server ends while its client still sends: what came is read, and the status is the server's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from gpufleet.net.addresses import Address
from gpufleet.net.channel import Target, connect_async, server_options
from gpufleet.net.stream_calls import CallEnded, StreamCall

DEADLINE_SECONDS = 60
MESSAGES = [b"%d" % number for number in range(5)]
TIMES = 20
"""Each case is repeated, as much of it depends on what comes first."""

Ends = tuple[grpc.StatusCode, str]
ENDS: tuple[Ends, ...] = (
    (grpc.StatusCode.OK, ""),
    (grpc.StatusCode.FAILED_PRECONDITION, "it exited with 3"),
    (grpc.StatusCode.INTERNAL, "Internal error from Core"),
    (grpc.StatusCode.CANCELLED, "given up there"),
)


class Ending(grpc.GenericRpcHandler):
    """Answers with all messages, the last of them where one is wanted, and ends, without listening to its caller."""

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        _, kind, name = call.method.split("/")
        code, details = next(end for end in ENDS if end[0].name == name)

        async def end(context: Any) -> None:
            if code is not grpc.StatusCode.OK:
                await context.abort(code, details, (("why", "so"),))

        async def many(requests: object, context: Any) -> AsyncIterator[bytes]:
            for message in MESSAGES:
                yield message
            await end(context)

        async def one(requests: object, context: Any) -> bytes:
            await end(context)
            return MESSAGES[-1]

        make: Any = getattr(grpc, f"{kind}_rpc_method_handler")
        handler: grpc.RpcMethodHandler[bytes, bytes] = make(many if kind == "stream_stream" else one)
        return handler


@pytest.fixture
async def address() -> AsyncIterator[Address]:
    server = grpc.aio.server(options=server_options())
    server.add_generic_rpc_handlers((Ending(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield Address("127.0.0.1", port)
    await server.stop(None)


def connected(address: Address) -> grpc.aio.Channel:
    return connect_async(Target(address=address))


def called(channel: Any, kind: str, code: grpc.StatusCode, *requests: Any) -> Any:
    return getattr(channel, kind)(f"/{kind}/{code.name}")(*requests, timeout=DEADLINE_SECONDS)


async def write_until_it_fails(call: Any) -> None:
    with pytest.raises(CallEnded):
        while True:
            await call.write(b"x")


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b"x"


async def read_all(call: Any) -> list[bytes]:
    messages: list[bytes] = []
    while (message := await call.read()) is not grpc.aio.EOF:
        messages.append(message)
    return messages


async def write_then_read(call: Any, came: list[bytes]) -> None:
    await write_until_it_fails(call)
    while (message := await call.read()) is not grpc.aio.EOF:
        came.append(message)


async def write_then_iterate(call: Any, came: list[bytes]) -> None:
    await write_until_it_fails(call)
    async for message in call:
        came.append(message)


async def write_and_read(call: Any, came: list[bytes]) -> None:
    writing = asyncio.create_task(write_until_it_fails(call))
    try:
        async for message in call:
            came.append(message)
    finally:
        await writing


async def only_iterate(call: Any, came: list[bytes]) -> None:
    async for message in call:
        came.append(message)


@pytest.mark.parametrize(("code", "details"), ENDS, ids=lambda each: getattr(each, "name", ""))
@pytest.mark.parametrize("use", [write_then_read, write_then_iterate, write_and_read, only_iterate])
async def test_what_came_before_the_end_is_read_and_the_status_is_the_servers(
    address: Address, use: Any, code: grpc.StatusCode, details: str
) -> None:
    async with connected(address) as channel:
        for _ in range(TIMES):
            call = called(channel, "stream_stream", code, *([endless()] if use is only_iterate else []))
            came: list[bytes] = []
            try:
                await use(call, came)
            except grpc.aio.AioRpcError as problem:
                assert (problem.code(), problem.details()) == (code, details)
                assert ("why", "so") in tuple(problem.trailing_metadata())
            else:
                assert code is grpc.StatusCode.OK
            assert came == MESSAGES
            assert (await call.code(), await call.details()) == (code, details)


async def test_an_end_is_told_as_often_as_it_is_asked(address: Address) -> None:
    async with connected(address) as channel:
        call = called(channel, "stream_stream", grpc.StatusCode.FAILED_PRECONDITION)
        await write_until_it_fails(call)
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError, match="it exited with 3"):
                await call
            with pytest.raises(grpc.aio.AioRpcError, match="it exited with 3"):
                await call.read()
        with pytest.raises(CallEnded, match="it exited with 3"):
            await call.write(b"x")
        well = called(channel, "stream_stream", grpc.StatusCode.OK)
        assert await read_all(well) == MESSAGES
        assert await well.read() is grpc.aio.EOF
        await well


@pytest.mark.parametrize(("code", "details"), ENDS, ids=lambda each: getattr(each, "name", ""))
@pytest.mark.parametrize("requests", [(), (endless,)], ids=["written", "iterated"])
async def test_an_answer_that_comes_before_all_is_sent_is_the_answer(
    address: Address, requests: Any, code: grpc.StatusCode, details: str
) -> None:
    async with connected(address) as channel:
        for _ in range(TIMES):
            call = called(channel, "stream_unary", code, *(each() for each in requests))
            if not requests:
                await write_until_it_fails(call)
            if code is grpc.StatusCode.OK:
                assert await call == MESSAGES[-1]
                continue
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert (caught.value.code(), caught.value.details()) == (code, details)


async def in_between(channel: grpc.aio.Channel) -> Any:
    """A call that cannot be written to any more, and has messages that are not read."""
    call: Any = called(channel, "stream_stream", grpc.StatusCode.OK)
    await write_until_it_fails(call)
    assert not call.done()
    return call


async def test_a_call_can_be_cancelled_behind_a_failed_write(address: Address) -> None:
    async with connected(address) as channel:
        before = asyncio.all_tasks()
        call = await in_between(channel)
        assert call.cancel()
        assert not call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call.read()
        assert await call.code() is grpc.StatusCode.CANCELLED
        async with asyncio.timeout(DEADLINE_SECONDS):
            while others := asyncio.all_tasks() - before:
                await asyncio.wait(others)


async def test_a_call_that_nobody_reads_on_leaves_nothing_behind(address: Address) -> None:
    async with connected(address) as channel:
        before = asyncio.all_tasks()
        call = await in_between(channel)
        assert await call.read() == MESSAGES[0]
        del call
        async with asyncio.timeout(DEADLINE_SECONDS):
            while others := asyncio.all_tasks() - before:
                await asyncio.wait(others)


async def test_who_writes_behind_the_last_message_is_told_so(address: Address) -> None:
    async with connected(address) as channel:
        call = called(channel, "stream_stream", grpc.StatusCode.OK)
        await call.wait_for_connection()
        await call.done_writing()
        assert isinstance(call, StreamCall)
        with pytest.raises(asyncio.InvalidStateError) as caught:
            await call.write(b"x")
        assert not isinstance(caught.value, CallEnded)
        assert await read_all(call) == MESSAGES
