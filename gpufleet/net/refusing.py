"""How a call is refused, so that its caller gets to know why.

A server may end a call while its caller still sends. The caller's next write then fails, and grpc.aio puts INTERNAL in
the place of the status that has just arrived (grpc issue 36066). Our own clients keep the status
(gpufleet/net/channel.py); for others the refusal waits for a moment until the caller has said all it wanted to.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any

from gpufleet.errors import GpufleetError
from gpufleet.net.status import to_status

HEARD_OUT_SECONDS = 0.5
"""How long a refused caller is listened to. What it says is dropped, and is never read as messages."""


on_refusal: ContextVar[Callable[[Any, GpufleetError, Any], None] | None] = ContextVar("on_refusal", default=None)
"""Is told of each refusal of the call that is being served: the context, the error and the requests of `refuse`."""


async def refuse(context: Any, error: GpufleetError, requests: Any = None) -> None:
    """End a call with its rich status; always raises. `requests` is the handler's: a message, or a stream of them."""
    told = on_refusal.get()
    if told is not None:
        told(context, error, requests)
    if hasattr(requests, "__aiter__"):
        await _hear_out(requests)
    await context.abort_with_status(to_status(error))


def checked(handler: Any, problem_of: Callable[[Any], GpufleetError | None]) -> Any:
    """The handler of a call with one request, which is refused where `problem_of` finds something wrong with it."""

    async def check(request: Any, context: Any) -> None:
        if (problem := problem_of(request)) is not None:
            await refuse(context, problem, request)

    async def answer(request: Any, context: Any) -> Any:
        await check(request, context)
        return await handler.unary_unary(request, context)

    async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
        await check(request, context)
        async for message in handler.unary_stream(request, context):
            yield message

    async def write(request: Any, context: Any) -> None:
        await check(request, context)
        await handler.unary_stream(request, context)

    if handler.response_streaming:
        yields = inspect.isasyncgenfunction(handler.unary_stream)
        return handler._replace(unary_stream=stream if yields else write)
    return handler._replace(unary_unary=answer)


async def _hear_out(requests: Any) -> None:
    try:
        async with asyncio.timeout(HEARD_OUT_SECONDS):
            async for _ in requests:
                pass
    except TimeoutError:
        pass
