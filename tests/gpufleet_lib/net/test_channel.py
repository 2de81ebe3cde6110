"""Channels against a real server: the token on every kind of call, plain text and what counts as beyond."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.addresses import Address
from gpufleet.net.channel import Target, bearer, connect, connect_async, server_options, token_of

KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class Echo(grpc.GenericRpcHandler):
    """Answers every call of every kind with the token and the trace that came with it."""

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        metadata = dict(call.invocation_metadata or ())
        answer = " ".join(
            str(each) for each in (token_of(call.invocation_metadata), metadata.get("traceparent"))
        ).encode()

        async def one(request: object, context: object) -> bytes:
            return answer

        async def many(request: object, context: object) -> AsyncIterator[bytes]:
            yield answer

        kind = call.method.rpartition("/")[2]
        make: Any = getattr(grpc, f"{kind}_rpc_method_handler")
        handler: grpc.RpcMethodHandler[bytes, bytes] = make(many if kind.endswith("stream") else one)
        return handler


@pytest.fixture
async def address() -> AsyncIterator[Address]:
    server = grpc.aio.server(options=server_options())
    server.add_generic_rpc_handlers((Echo(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield Address("127.0.0.1", port)
    await server.stop(None)


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_call_carries_the_token_and_what_else_is_asked_for(address: Address, kind: str) -> None:
    target = Target(address=address, token="gf_x", call_metadata=lambda: (("traceparent", "00-1"),))
    async with connect_async(target) as channel:
        method: Any = getattr(channel, kind)(f"/T/{kind}")
        request = iter([b""]) if kind.startswith("stream") else b""
        call = method(request, timeout=60, metadata=(("own", "1"),))
        answer = await call.read() if kind.endswith("stream") else await call
    assert answer == b"gf_x 00-1"


@pytest.mark.parametrize("kind", KINDS)
async def test_threads_carry_it_too(address: Address, kind: str) -> None:
    def in_a_thread() -> list[bytes]:
        with connect(Target(address=address, token="gf_x")) as channel:
            method: Any = getattr(channel, kind)(f"/T/{kind}")
            request = iter([b""]) if kind.startswith("stream") else b""
            if kind.endswith("stream"):
                return list(method(request, timeout=60))
            if kind == "unary_unary":
                return [method(request, timeout=60), method.future(request, timeout=60).result()]
            return [method(request, timeout=60), method.with_call(request, timeout=60)[0]]

    assert set(await asyncio.to_thread(in_a_thread)) == {b"gf_x None"}


async def test_a_client_without_a_token_sends_none(address: Address) -> None:
    async with connect_async(Target(address=address)) as channel:
        method: Any = channel.unary_unary("/T/unary_unary")
        assert await method(b"", timeout=60) == b"None None"


async def test_a_second_server_on_the_port_is_refused(address: Address) -> None:
    second = grpc.aio.server(options=server_options())
    with pytest.raises(RuntimeError, match="Failed to bind"):
        second.add_insecure_port(str(address))
    await second.stop(None)


@pytest.mark.parametrize(
    ("host", "settings", "uses_tls"),
    [
        ("127.0.0.1", {}, False),
        ("localhost", {"ca_file": Path("ca.pem")}, True),
        ("10.0.0.5", {}, True),
        ("10.0.0.5", {"is_insecure": True}, False),
        ("10.0.0.5", {"is_insecure": True, "ca_file": Path("ca.pem")}, True),
    ],
)
def test_plain_text_leaves_this_machine_only_when_told_to(host: str, settings: dict[str, Any], uses_tls: bool) -> None:
    assert Target(address=Address(host), **settings).uses_tls is uses_tls


def test_a_missing_ca_file_is_named() -> None:
    with pytest.raises(GpufleetError, match=r"no/ca\.pem") as caught:
        connect(Target(address=Address("10.0.0.5"), ca_file=Path("no/ca.pem")))
    assert caught.value.reason is Reason.FILE_NOT_FOUND


def test_the_token_stays_out_of_a_targets_repr() -> None:
    assert "gf_x" not in repr(Target(address=Address("h"), token="gf_x"))


@pytest.mark.parametrize(
    ("metadata", "token"),
    [
        (bearer("gf_x"), "gf_x"),
        ((("authorization", "bearer  gf_x"),), "gf_x"),
        ((("authorization", "Basic gf_x"),), None),
        ((("other", "Bearer gf_x"),), None),
        ((), None),
        (None, None),
    ],
)
def test_a_server_finds_the_token(metadata: Any, token: str | None) -> None:
    assert token_of(metadata) == token


def test_a_channel_costs_no_more_than_grpc() -> None:
    code = """
import sys, grpc, grpc.aio, ipaddress
before = set(sys.modules)
import gpufleet.net.channel
extra = {name.split(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names - {"gpufleet"}
assert not extra, extra
"""
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=60)


class Refusing(grpc.GenericRpcHandler):
    """Refuses every call with a stream of requests at once, without listening to it."""

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        async def refuse(requests: object, context: Any) -> None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "not you", (("why", "so"),))

        make: Any = getattr(grpc, f"{call.method.rpartition('/')[2]}_rpc_method_handler")
        handler: grpc.RpcMethodHandler[bytes, bytes] = make(refuse)
        return handler


async def many_messages() -> AsyncIterator[bytes]:
    for _ in range(20):
        yield b"x"


async def read_to_the_end(call: Any) -> None:
    async for _ in call:
        pass


async def write_and_read(call: Any) -> None:
    """As an agent does: one task writes, another reads."""

    async def write() -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await call.write(b"x")

    writing = asyncio.create_task(write())
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


async def only_write(call: Any) -> None:
    """The write itself raises; one that comes later is told that the call is over."""
    with contextlib.suppress(asyncio.InvalidStateError):
        while True:
            await call.write(b"x")
    await call.read()


REFUSALS_IN_A_ROW = 50


@pytest.mark.parametrize("use", [read_to_the_end, write_and_read, only_write])
async def test_a_refused_stream_tells_the_servers_status_each_time(use: Any) -> None:
    server = grpc.aio.server(options=server_options())
    server.add_generic_rpc_handlers((Refusing(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with connect_async(Target(address=Address("127.0.0.1", port))) as channel:
        for _ in range(REFUSALS_IN_A_ROW):
            request = [many_messages()] if use is read_to_the_end else []
            method: Any = channel.stream_stream("/T/stream_stream")
            call = method(*request, timeout=60)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await use(call)
            error = caught.value
            assert (error.code(), error.details()) == (grpc.StatusCode.UNAUTHENTICATED, "not you")
            assert ("why", "so") in tuple(error.trailing_metadata())
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
    await server.stop(None)


async def test_a_stream_that_nobody_holds_any_more_is_cancelled() -> None:
    ended = asyncio.Event()

    class Waiting(grpc.GenericRpcHandler):
        def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
            async def wait(requests: object, context: Any) -> None:
                context.add_done_callback(lambda _: ended.set())
                await context.write(b"here")
                await asyncio.Event().wait()

            handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(wait)
            return handler

    server = grpc.aio.server(options=server_options())
    server.add_generic_rpc_handlers((Waiting(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with connect_async(Target(address=Address("127.0.0.1", port))) as channel:
        call: Any = channel.stream_stream("/T/stream_stream")()
        assert await call.read() == b"here"
        del call
        async with asyncio.timeout(60):
            await ended.wait()
    await server.stop(None)
