"""An event loop on a thread of its own, for programs that have none; one for the whole process."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

CLOSE_S_MAX = 5.0
"""How long the end of the loop is waited for when the program ends."""
INTERRUPTED_S_MAX = 30.0
"""How long what was interrupted may take to tidy up, such as to cancel its jobs; a second interrupt leaves at once."""


class LoopThread:
    """The loop. What runs on it ends with the program."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="gpufleet", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run it on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What it gives. An interrupt by the keyboard cancels it, and is raised once it has tidied up."""
        ended = threading.Event()
        future = self.start(_until_ended(work, ended))
        try:
            return future.result()
        except CancelledError:
            raise
        except BaseException:
            if future.cancel():
                ended.wait(INTERRUPTED_S_MAX)
            raise

    def iterate(self, values: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """Its values. To leave them early, also by an interrupt, closes it."""
        end: Any = object()
        try:
            while (value := self.run(_next(values, end))) is not end:
                yield value
        finally:
            self.run(values.aclose())

    def close(self) -> None:
        """End what runs, the loop and the thread."""

        async def end_all() -> None:
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await self.loop.shutdown_default_executor()

        with suppress(Exception):
            self.start(end_all()).result(CLOSE_S_MAX)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(CLOSE_S_MAX)
        if not self._thread.is_alive():
            self.loop.close()


_lock = threading.Lock()
_here: LoopThread | None = None


def loop_thread() -> LoopThread:
    """This process's own. Raises RuntimeError in a child that was forked from a process with one: no gRPC works."""
    global _here
    with _lock:
        if _here is not None and _here.process != os.getpid():
            raise RuntimeError(
                "this process was forked from one that uses the fleet, and its connections do not work here; start it "
                "with multiprocessing's spawn or forkserver, or fork before the first call"
            )
        if _here is None:
            _here = LoopThread()
            atexit.register(close_loop_thread)
        return _here


def close_loop_thread() -> None:
    """End it, where there is one; the next call starts another."""
    global _here
    with _lock:
        here, _here = _here, None
    if here is not None and here.process == os.getpid():
        here.close()


async def _until_ended(work: Coroutine[Any, Any, T], ended: threading.Event) -> T:
    try:
        return await work
    finally:
        ended.set()


async def _next(values: AsyncGenerator[T, None], end: T) -> T:
    return await anext(values, end)
