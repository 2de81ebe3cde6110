"""Channels against a real server: the token on every kind of call, plain text and what counts as beyond."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from gpufleet.addresses import Address
from gpufleet.channel import Target, bearer, connect, connect_async, server_options, token_of
from gpufleet.errors import GpufleetError, Reason

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
        call = method(request, timeout=20, metadata=(("own", "1"),))
        answer = await call.read() if kind.endswith("stream") else await call
    assert answer == b"gf_x 00-1"


@pytest.mark.parametrize("kind", KINDS)
async def test_threads_carry_it_too(address: Address, kind: str) -> None:
    import asyncio

    def in_a_thread() -> list[bytes]:
        with connect(Target(address=address, token="gf_x")) as channel:
            method: Any = getattr(channel, kind)(f"/T/{kind}")
            request = iter([b""]) if kind.startswith("stream") else b""
            if kind.endswith("stream"):
                return list(method(request, timeout=20))
            if kind == "unary_unary":
                return [method(request, timeout=20), method.future(request, timeout=20).result()]
            return [method(request, timeout=20), method.with_call(request, timeout=20)[0]]

    assert set(await asyncio.to_thread(in_a_thread)) == {b"gf_x None"}


async def test_a_client_without_a_token_sends_none(address: Address) -> None:
    async with connect_async(Target(address=address)) as channel:
        method: Any = channel.unary_unary("/T/unary_unary")
        assert await method(b"", timeout=20) == b"None None"


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
import gpufleet.channel
extra = {name.split(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names - {"gpufleet"}
assert not extra, extra
"""
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=30)
