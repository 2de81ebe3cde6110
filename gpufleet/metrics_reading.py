"""Reading what only the event loop may look at, for a collector on a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine
from typing import Any

from gpufleet.metrics import Readings

READ_S_MAX = 2.0
"""A loop that has not answered by then is busy or has ended: this collection goes without."""


def on_loop(
    loop: asyncio.AbstractEventLoop, read: Callable[[], Coroutine[Any, Any, Readings]]
) -> Callable[[], Readings]:
    """A function for other threads that runs `read` on the loop; nothing where the loop does not answer in time."""

    def reading() -> Readings:
        coroutine = read()
        try:
            answer = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except RuntimeError:  # the loop is closed
            coroutine.close()
            return {}
        try:
            return answer.result(READ_S_MAX)
        except (TimeoutError, concurrent.futures.CancelledError):
            answer.cancel()
            return {}

    return reading
