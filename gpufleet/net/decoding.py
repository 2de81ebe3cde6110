"""Bytes that are no message of the call are refused as the caller's mistake; gRPC alone would call it unknown.

A server of grpc.aio that cannot read a message raises out of the middle of whoever reads it, logs a trace, and answers
UNKNOWN. Here the message is read tolerantly, and what could not be read is raised as INVALID_ARGUMENT: of a call with
one request before its handler begins, of a stream of requests where its handler reads on.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.refusing import checked, refuse

Check = Callable[[Any], GpufleetError | None]
"""What is wrong with a message that could be read; None: nothing."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Stands for a message that is refused: it could not be read, or its check found something."""

    problem: GpufleetError


class DecodingInterceptor(grpc.aio.ServerInterceptor):
    """Looks at every call whose requests are read by a deserializer: health's and reflection's as well.

    What the `check` finds wrong with a message is refused as what cannot be read is.
    """

    def __init__(self, check: Check = lambda message: None) -> None:
        self._check = check

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Let the handler see only what could be read."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return handler
        tolerant = handler._replace(request_deserializer=_tolerant(handler.request_deserializer, self._check))
        if handler.request_streaming:
            return _reading(tolerant)
        return checked(tolerant, lambda request: request.problem if isinstance(request, Refused) else None)


class ReadableRequests:
    """A stream of requests as a handler reads it: the first that is refused is raised, as its only one.

    What follows it is given as it comes, for whoever hears a refused caller out.
    """

    def __init__(self, requests: Any) -> None:
        self._requests = requests
        self._has_raised = False

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        request = await anext(self._requests)
        if isinstance(request, Refused) and not self._has_raised:
            self._has_raised = True
            raise request.problem
        return request


def _reading(handler: Any) -> Any:
    kind = "stream_stream" if handler.response_streaming else "stream_unary"
    method = getattr(handler, kind)

    async def answer(requests: Any, context: Any) -> Any:
        readable = ReadableRequests(aiter(requests))
        try:
            return await method(readable, context)
        except GpufleetError as error:
            await refuse(context, error, readable)

    async def stream(requests: Any, context: Any) -> AsyncIterator[Any]:
        readable = ReadableRequests(aiter(requests))
        try:
            async for message in method(readable, context):
                yield message
        except GpufleetError as error:
            await refuse(context, error, readable)

    return handler._replace(**{kind: stream if inspect.isasyncgenfunction(method) else answer})


def _tolerant(read: Callable[[bytes], Any], check: Check) -> Callable[[bytes], Any]:
    def read_or_mark(data: bytes) -> Any:
        try:
            message = read(data)
        except DecodeError:
            return Refused(_problem())
        problem = check(message)
        return message if problem is None else Refused(problem)

    return read_or_mark


def _problem() -> GpufleetError:
    return GpufleetError(
        Reason.INVALID_ARGUMENT,
        "the request cannot be read: it is no message of this call, or a text in it is not UTF-8",
        next_step="send what protos/gpufleet/v1 says; every text is UTF-8",
    )
