"""A fleet as a `concurrent.futures.Executor`, for libraries that take one."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, Unpack

from gpufleet.errors import invalid

from .gathering import Calls
from .loop_thread import loop_thread
from .options import SubmitOptions, job_options
from .sync import Fleet

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger(__name__)

BATCH_CALLS_MAX = 1_000
"""Calls of one array."""
BATCH_SECONDS = 0.05
"""So long more calls are waited for after one that came, and BATCH_SECONDS_MAX in all, before they are submitted."""
BATCH_SECONDS_MAX = 0.5
WAITING_CALLS_MAX = 100_000
"""Calls that wait to be submitted; `submit` waits while there are so many."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    future: concurrent.futures.Future[Any]
    function: Callable[..., Any]
    given: tuple[Any, ...]
    named: dict[str, Any]


@dataclass(slots=True, eq=False)
class _Batch:
    """Calls that are submitted together."""

    waiting: list[_Waiting]
    task: asyncio.Task[None] | None = None
    """What makes them, once the loop has begun it; to be touched there alone."""


class Executor(concurrent.futures.Executor):
    """Runs calls on the fleet, each in a process of its own there; what comes within a moment is one array.

    `fleet` is by default the one that `gpufleet.connect()` finds; `max_workers` how many calls of an array run at a
    time, by default as many as there is room for; `python` and `options` as of `Fleet.map`. A future runs from when its
    call is submitted, and can be cancelled before. An exception of a call is the future's, with the traceback of the
    node as its cause. May be used from any thread, and with `loop.run_in_executor`.

        with gpufleet.Executor(gpus=1) as executor:
            futures = [executor.submit(train, rate) for rate in (1e-2, 1e-3)]
            print([future.result() for future in futures])
    """

    def __init__(
        self,
        fleet: Fleet | None = None,
        *,
        max_workers: int | None = None,
        python: str | None = None,
        **options: Unpack[SubmitOptions],
    ) -> None:
        if max_workers is not None and max_workers < 1:
            raise invalid("max_workers", f"{max_workers} is less than 1", next_step="Leave it out for no limit.")
        job_options(options)
        if fleet is None:
            from .connecting import connect

            fleet = connect()
        self._fleet = fleet
        self._max_workers = max_workers or 0
        self._python = python
        self._options: dict[str, Any] = dict(options)
        self._changed = threading.Condition()
        self._waiting: deque[_Waiting] = deque()
        self._under_way: set[_Batch] = set()
        self._is_shut = False
        self._is_cancelled = False
        self._process = os.getpid()
        self._thread: threading.Thread | None = None

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> concurrent.futures.Future[R]:
        """Have a call made. What cannot be pickled is the future's exception, INVALID_ARGUMENT."""
        future: concurrent.futures.Future[R] = concurrent.futures.Future()
        with self._changed:
            self._changed.wait_for(lambda: self._is_shut or len(self._waiting) < WAITING_CALLS_MAX)
            if self._is_shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._waiting.append(_Waiting(future, fn, args, kwargs))
            if self._thread is None:
                loop_thread()  # so that it ends after this executor, when the program does
                atexit.register(self._end_with_program)
                self._thread = threading.Thread(target=self._send_all, name="gpufleet-executor", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls, and with `wait` return when all are done.

        With `cancel_futures` those that were not submitted yet are cancelled, and so are jobs that have not ended.
        """
        with self._changed:
            self._is_shut = True
            self._is_cancelled |= cancel_futures
            dropped = list(self._waiting) if cancel_futures else []
            if cancel_futures:
                self._waiting.clear()
            self._changed.notify_all()
        for each in dropped:
            each.future.cancel()
        if self._thread is None:
            return
        if cancel_futures:
            loop_thread().loop.call_soon_threadsafe(self._cancel_begun)
        if wait:
            self._thread.join()
            with self._changed:
                self._changed.wait_for(lambda: not self._under_way)
            atexit.unregister(self._end_with_program)

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            self.shutdown(wait=True, cancel_futures=kind is KeyboardInterrupt)
        except KeyboardInterrupt:
            self.shutdown(wait=True, cancel_futures=True)
            raise
        return None

    def _end_with_program(self) -> None:
        """Nobody waited for what is left: the program ends, and so do the connections that would bring it."""
        if os.getpid() != self._process:
            return  # a child that was forked has neither the thread nor the loop
        with self._changed:
            waiting = [*self._waiting, *(each for batch in self._under_way for each in batch.waiting)]
            left = sum(not each.future.done() for each in waiting)
        if left:
            log.warning(
                "the program ended before calls of an executor were done (%d), which are cancelled; wait for them by "
                "`with gpufleet.Executor(…)` or shutdown()",
                left,
            )
        self.shutdown(wait=True, cancel_futures=True)

    def _send_all(self) -> None:
        """Submit what comes, in batches, until there is nothing more and the executor is shut down."""
        while batch := self._next_batch():
            batch.waiting = [each for each in batch.waiting if each.future.set_running_or_notify_cancel()]
            loop_thread().loop.call_soon_threadsafe(self._begin, batch)

    def _begin(self, batch: _Batch) -> None:
        """Have a batch made, on the loop."""
        batch.task = asyncio.get_running_loop().create_task(self._run(batch.waiting))
        batch.task.add_done_callback(lambda task: self._settle(batch))
        if self._is_cancelled:
            batch.task.cancel()

    def _cancel_begun(self) -> None:
        with self._changed:
            begun = [batch.task for batch in self._under_way if batch.task is not None]
        for task in begun:
            task.cancel()

    def _next_batch(self) -> _Batch | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_shut)
            until = time.monotonic() + BATCH_SECONDS_MAX
            known = 0
            while known < len(self._waiting) < BATCH_CALLS_MAX and not self._is_shut and time.monotonic() < until:
                known = len(self._waiting)
                self._changed.wait(BATCH_SECONDS)
            if not self._waiting:
                return None
            count = min(len(self._waiting), BATCH_CALLS_MAX)
            batch = _Batch([self._waiting.popleft() for _ in range(count)])
            self._under_way.add(batch)
            self._changed.notify_all()
            return batch

    async def _run(self, batch: list[_Waiting]) -> None:
        """Make the calls, and give each future what its own gave."""
        made = [(each.function, each.given, each.named) for each in batch]
        try:
            calls = Calls(
                self._fleet._own, made, self._options, self._python, at_once=self._max_workers, refuse_each=True
            )
            async for outcome in calls.run(in_order=False):
                future = batch[outcome.number].future
                if outcome.error is None:
                    future.set_result(outcome.value)
                else:
                    future.set_exception(outcome.error)
        except Exception as problem:
            for each in batch:
                if not each.future.done():
                    each.future.set_exception(problem)

    def _settle(self, batch: _Batch) -> None:
        """It has ended; what it left undone was cancelled, perhaps before it began."""
        for each in batch.waiting:
            if not each.future.done():
                each.future.set_exception(concurrent.futures.CancelledError())
        with self._changed:
            self._under_way.discard(batch)
            self._changed.notify_all()
