"""Bytes that are no message of the call are refused as the caller's mistake; gRPC alone would call it unknown."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from gpufleet.errors import GpufleetError, Reason

from .refusing import checked
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
        tolerant = handler._replace(request_deserializer=_tolerant(handler.request_deserializer))
        return checked(tolerant, lambda request: _UNREADABLE if request is None else None)


def _tolerant(read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read_or_none(data: bytes) -> Any:
        try:
            return read(data)
        except DecodeError:
            return None

    return read_or_none


_UNREADABLE = GpufleetError(
    Reason.INVALID_ARGUMENT,
    "the request cannot be read: it is no message of this call, or a text in it is not UTF-8",
    next_step="send what protos/gpufleet/v1 says; every text is UTF-8",
)
