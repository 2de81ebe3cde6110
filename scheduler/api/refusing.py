"""How a call is refused, so that its caller gets to know why.

A server may end a call while its caller still sends. The caller's next write then fails, and grpc.aio puts INTERNAL in
the place of the status that has just arrived (grpc issue 36066). Our own clients keep the status (gpufleet/channel.py);
for others the refusal waits for a moment until the caller has said all it wanted to.
"""

import asyncio
from typing import Any

from gpufleet.errors import GpufleetError
from gpufleet.status import to_status

HEARD_OUT_SECONDS = 0.5
"""How long a refused caller is listened to. What it says is dropped, and is never read as messages."""


async def refuse(context: Any, error: GpufleetError, requests: Any = None) -> None:
    """End a call with its rich status; always raises. `requests` is the handler's: a message, or a stream of them."""
    if hasattr(requests, "__aiter__"):
        await _hear_out(requests)
    await context.abort_with_status(to_status(error))


async def _hear_out(requests: Any) -> None:
    try:
        async with asyncio.timeout(HEARD_OUT_SECONDS):
            async for _ in requests:
                pass
    except TimeoutError:
        pass
