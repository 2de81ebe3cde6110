"""A fleet as a `concurrent.futures.Executor`, for libraries that take one."""

from __future__ import annotations

import concurrent.futures
import logging
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
        self._under_way: set[concurrent.futures.Future[None]] = set()
        self._is_shut = False
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
            dropped = list(self._waiting) if cancel_futures else []
            if cancel_futures:
                self._waiting.clear()
            under_way = list(self._under_way)
            self._changed.notify_all()
        for each in dropped:
            each.future.cancel()
        if cancel_futures:
            for batch in under_way:
                batch.cancel()
        if wait and self._thread is not None:
            self._thread.join()
            with self._changed:
                self._changed.wait_for(lambda: not self._under_way)

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self.shutdown(wait=True, cancel_futures=kind is KeyboardInterrupt)
        return None

    def _send_all(self) -> None:
        """Submit what comes, in batches, until there is nothing more and the executor is shut down."""
        while batch := self._next_batch():
            taken = [each for each in batch if each.future.set_running_or_notify_cancel()]
            if not taken:
                continue
            work = loop_thread().start(self._run(taken))
            with self._changed:
                self._under_way.add(work)
            work.add_done_callback(self._settle)

    def _next_batch(self) -> list[_Waiting]:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_shut)
            until = time.monotonic() + BATCH_SECONDS_MAX
            known = 0
            while known < len(self._waiting) < BATCH_CALLS_MAX and not self._is_shut and time.monotonic() < until:
                known = len(self._waiting)
                self._changed.wait(BATCH_SECONDS)
            count = min(len(self._waiting), BATCH_CALLS_MAX)
            batch = [self._waiting.popleft() for _ in range(count)]
            self._changed.notify_all()
            return batch

    async def _run(self, batch: list[_Waiting]) -> None:
        """Make the calls, and give each future what its own gave."""
        left = dict(enumerate(batch))
        try:
            made = [(each.function, each.given, each.named) for each in batch]
            calls = Calls(self._fleet._own, made, self._options, self._python, at_once=self._max_workers)
            async for outcome in calls.run(in_order=False):
                future = left.pop(outcome.number).future
                if outcome.error is None:
                    future.set_result(outcome.value)
                else:
                    future.set_exception(outcome.error)
        except BaseException as problem:
            is_cancelled = not isinstance(problem, Exception)
            for each in left.values():
                each.future.set_exception(concurrent.futures.CancelledError() if is_cancelled else problem)
            if is_cancelled:
                raise

    def _settle(self, done: concurrent.futures.Future[None]) -> None:
        with self._changed:
            self._under_way.discard(done)
            self._changed.notify_all()
