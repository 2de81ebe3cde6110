"""Errors through gRPC's rich status, with values and through a real server and both kinds of client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import code_pb2, status_pb2

from gpufleet.errors import FieldViolation, GpufleetError, NotFoundError, Reason
from gpufleet.net.addresses import Address
from gpufleet.net.channel import Target, connect_async, server_options
from gpufleet.net.limits import MESSAGE_BYTES_MAX
from gpufleet.net.status import TEXT_CHARS_MAX, VIOLATIONS_MAX, from_proto, from_rpc_error, to_proto, to_status

FULL = GpufleetError(
    Reason.NEVER_FITS,
    "no node has 64 GPUs",
    violations=[FieldViolation("resources.gpus", "64; the largest node has 8")],
    next_step="Ask for 8, or let it span nodes.",
    retry_after_s=2.5,
    metadata={"nearest": "8"},
)


def test_every_reason_comes_back_as_it_went() -> None:
    for reason in Reason:
        error = GpufleetError(reason, "what happened", metadata={"job_id": "7"})
        again = from_proto(to_proto(error))
        assert type(again) is type(error), reason
        assert vars(again) == vars(error)


def test_every_part_of_an_error_comes_back() -> None:
    assert vars(from_proto(to_proto(FULL))) == vars(FULL)


def test_text_that_is_no_utf8_and_text_without_end_are_made_fit_to_send() -> None:
    error = GpufleetError(
        Reason.FILE_NOT_FOUND,
        "no file \udcff.py" + "x" * 100_000,
        violations=[FieldViolation(f"env[{index}]", "wrong") for index in range(100)],
    )
    again = from_proto(to_proto(error))
    assert again.message.startswith("no file ?.py") and again.message.endswith("… (cut)")
    assert len(again.message) < TEXT_CHARS_MAX + 10
    assert len(again.violations) == VIOLATIONS_MAX


def test_a_reason_of_a_newer_server_keeps_its_word_and_its_code() -> None:
    status = to_proto(GpufleetError(Reason.STORE_UNAVAILABLE, "later"))
    status.details[0].value = status.details[0].value.replace(b"STORE_UNAVAILABLE", b"STORE_UNAVAILAXXX")
    again = from_proto(status)
    assert again.reason is Reason.SCHEDULER_UNREACHABLE
    assert again.metadata["reason"] == "STORE_UNAVAILAXXX"
    assert again.message == "later"


def test_a_status_of_someone_else_becomes_the_nearest_reason() -> None:
    again = from_proto(status_pb2.Status(code=code_pb2.PERMISSION_DENIED, message="proxy says no"))
    assert again.reason is Reason.PERMISSION_DENIED
    assert "proxy says no" in again.message


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A server whose one method fails with FULL, or in a bare way that the request names."""

    async def fail(request: bytes, context: Any) -> bytes:
        if request == b"full":
            await context.abort_with_status(to_status(FULL))
        if request == b"bare":
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such call")
        return request

    handler = grpc.method_handlers_generic_handler("T", {"Fail": grpc.unary_unary_rpc_method_handler(fail)})
    server = grpc.aio.server(options=server_options())
    server.add_generic_rpc_handlers((handler,))
    yield_port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield yield_port
    await server.stop(None)


async def failure(port: int, request: bytes, timeout_s: float = 20) -> GpufleetError:
    async with connect_async(Target(address=Address("127.0.0.1", port))) as channel:
        call: Any = channel.unary_unary("/T/Fail")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(request, timeout=timeout_s)
    return from_rpc_error(caught.value)


async def test_a_client_sees_what_the_server_meant(port: int) -> None:
    assert vars(await failure(port, b"full")) == vars(FULL)


async def test_a_bare_status_of_a_server_becomes_the_nearest_reason(port: int) -> None:
    error = await failure(port, b"bare")
    assert error.reason is Reason.METHOD_UNKNOWN
    assert "no such call" in error.message


async def test_a_message_beyond_the_limit_is_called_too_large(port: int) -> None:
    error = await failure(port, b"x" * (MESSAGE_BYTES_MAX + 1))
    assert error.reason is Reason.MESSAGE_TOO_LARGE


async def test_a_server_refuses_a_message_beyond_the_limit_of_a_client_that_sends_it(port: int) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary("/T/Fail")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"x" * 100_000_000, timeout=60)
    assert from_rpc_error(caught.value).reason is Reason.MESSAGE_TOO_LARGE


async def test_a_port_where_nobody_listens_is_an_unreachable_scheduler() -> None:
    error = await failure(1, b"full")
    assert error.reason is Reason.SCHEDULER_UNREACHABLE


def test_an_error_is_not_found_by_its_class() -> None:
    assert isinstance(from_proto(to_proto(GpufleetError(Reason.JOB_NOT_FOUND))), NotFoundError)
