"""Bytes that are no message of the call are refused as the caller's mistake; gRPC alone would call it unknown."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from gpufleet.errors import GpufleetError, Reason
from gpufleet.status import to_status

from .roles import PACKAGE


class DecodingInterceptor(grpc.aio.ServerInterceptor):
    """Looks at calls with one request; on a stream of requests gRPC ends the call by itself."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Let the handler see only what could be read."""
        handler = await continuation(handler_call_details)
        is_ours = handler_call_details.method.startswith(PACKAGE)
        if handler is None or not is_ours or handler.request_streaming:
            return handler
        guarded = {"request_deserializer": _tolerant(handler.request_deserializer)}
        if handler.response_streaming:
            return handler._replace(unary_stream=_guarded_stream(handler.unary_stream), **guarded)
        return handler._replace(unary_unary=_guarded(handler.unary_unary), **guarded)


def _tolerant(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read_or_none(data: bytes) -> Any:
        try:
            return read(data)
        except DecodeError:
            return None

    return read_or_none


def _guarded(method: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    async def call(request: Any, context: Any) -> Any:
        if request is None:
            await context.abort_with_status(to_status(_UNREADABLE))
        return await method(request, context)

    return call


def _guarded_stream(method: Callable[[Any, Any], AsyncIterator[Any]]) -> Callable[[Any, Any], AsyncIterator[Any]]:
    async def call(request: Any, context: Any) -> AsyncIterator[Any]:
        if request is None:
            await context.abort_with_status(to_status(_UNREADABLE))
        async for message in method(request, context):
            yield message

    return call


_UNREADABLE = GpufleetError(
    Reason.INVALID_ARGUMENT,
    "the request cannot be read: it is no message of this call, or a text in it is not UTF-8",
    next_step="send what protos/gpufleet/v1 says; every text is UTF-8",
)
