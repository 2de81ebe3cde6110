"""How a long stream ends."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from scheduler.api.long_streams import let_end


async def test_nobody_is_told_of_a_write_that_failed_after_its_call_was_cancelled() -> None:
    """gRPC cancels the handler where the caller's line breaks, also while it waits for its tasks to end."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    breaks = asyncio.Event()

    async def write() -> None:
        await breaks.wait()
        raise ConnectionResetError

    writing = asyncio.create_task(write())
    ending = asyncio.create_task(let_end(writing))
    await asyncio.sleep(0)
    ending.cancel()
    await asyncio.wait({ending})
    breaks.set()
    await asyncio.wait({writing})
    assert ending.cancelled() and writing.done()
    del writing, ending
    await asyncio.sleep(0)
    gc.collect()
    assert told == []


async def test_a_write_that_never_ends_is_cancelled_after_its_time() -> None:
    writing = asyncio.create_task(asyncio.Event().wait())
    await let_end(writing, wait_seconds=0)  # type: ignore[arg-type]  # what it answers is of no interest
    assert writing.cancelled()
