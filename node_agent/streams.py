"""Writing to a stream beside its reading, and several endless coroutines that live and fail together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def write_beside_reading(call: Any, message: object) -> None:
    """Write one message; waits while the other side takes none.

    Once the call is over it waits until it is cancelled: how the call ended, and what came before, is for who reads it.
    """
    try:
        await call.write(message)
    except asyncio.InvalidStateError:
        await asyncio.get_running_loop().create_future()


async def until_first(*endless: Coroutine[Any, Any, None]) -> None:
    """Run all until one ends, then cancel the others; raises what the first one raised.

    Unlike a TaskGroup it raises the one problem as it is, and never a group of one.
    """
    tasks = [asyncio.create_task(each) for each in endless]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        if task.cancelled():
            # Nobody here cancelled it: gRPC says so of a call that the other side gave up.
            raise ConnectionResetError("the call was given up")
        task.result()
