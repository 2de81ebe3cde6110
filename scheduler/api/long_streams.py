"""What the long streams of agents, gateways and workers have in common: a first message, a writer, and an end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

LAST_WRITE_SECONDS = 5.0
"""How long a stream that ends waits for a peer that takes its last message slowly."""

M = TypeVar("M")


async def first_of(requests: AsyncIterator[M], wait_seconds: float) -> M | None:
    """The first message of a stream; None when it ends, or stays silent, without one."""
    try:
        async with asyncio.timeout(wait_seconds):
            return await anext(requests, None)
    except TimeoutError:
        return None


async def write_all(next_messages: Callable[[], Awaitable[Sequence[Any]]], context: Any) -> None:
    """Write what waits, in order, until it is told by nothing that no more comes."""
    while messages := await next_messages():
        for message in messages:
            await context.write(message)


async def let_end(*tasks: asyncio.Task[None], wait_seconds: float = LAST_WRITE_SECONDS) -> None:
    """Wait for a stream's tasks: a write that is cancelled half-way would keep the call from ever ending."""
    for task in tasks:
        # Also where gRPC cancels this very wait, which it does when the caller's line breaks.
        task.add_done_callback(_noticed)
    _, pending = await asyncio.wait(tasks, timeout=wait_seconds)
    for task in pending:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _noticed(task: asyncio.Task[None]) -> None:
    """Take what a task failed with; asyncio reports what nobody has taken."""
    if not task.cancelled():
        task.exception()
