"""The two clients that people use: one for asyncio, and one for threads, whose engine runs on a loop of its own."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future
from concurrent.futures import wait as wait_for_futures
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from .core.outcomes import InferenceFailed, Result
from .core.sums import Figures
from .engine import Engine, Fallback, closed
from .metrics import ClientMetrics
from .routes import routes_of
from .settings import ClientSettings, GivenSettings, load_settings

T = TypeVar("T")

CLOSE_S_MAX = 10.0
"""How long the end of a client's loop is waited for."""


class _Client:
    """What both have: the settings, the workers, and how a deadline is read."""

    def __init__(self, address: str, fallback: Fallback | None, given: GivenSettings) -> None:
        if address:
            given = {**given, "addresses": (address, *given.get("addresses", ()))}
        self.settings: ClientSettings = load_settings(given)
        """All settings, those that were not given with their defaults."""

        self._fallback = fallback
        self._routes = routes_of(self.settings, has_callable=fallback is not None)
        self._is_closed = False

    def _engine(self) -> Engine:
        return Engine(self.settings, self._routes, self._fallback)

    def _deadline_s(self, deadline_s: float | None) -> float:
        if deadline_s is None:
            return self.settings.deadline_s
        if not 0 < deadline_s < float("inf"):
            raise ValueError(f"deadline_s: {deadline_s} is not a number of seconds above 0")
        return deadline_s


class AsyncInferenceClient(_Client):
    """Batch inference for programs on asyncio; the docstring of `gpufleet.client` shows how it is used.

    `address` is one worker without a gateway, beside `addresses`; `fallback` the callable that answers where no worker
    does; `given` any setting by its name. Raises GpufleetError, CONFIG_INVALID, for settings that will not do.
    """

    def __init__(self, *, address: str = "", fallback: Fallback | None = None, **given: Unpack[GivenSettings]) -> None:
        super().__init__(address, fallback, given)
        self._running: Engine | None = None

    async def predict(self, items: Sequence[Any], *, deadline_s: float | None = None) -> list[Result]:
        """One result for each item, in their order: a value or an error, never an exception for an item's sake.

        Items are bytes, NumPy arrays or JSON values, or mappings of these by the model's inputs. Cancelling it ends
        what it has under way. Raises InferenceFailed of a client that is closed.
        """
        return await self._here().predict(list(items), self._deadline_s(deadline_s))

    async def stream(
        self, items: Iterable[Any] | AsyncIterable[Any], *, in_order: bool = True, deadline_s: float | None = None
    ) -> AsyncGenerator[Result, None]:
        """Results of any number of items, as they come or in order; `index` counts them. The deadline is each batch's.

        `stream_batches` batches are held at a time: more items are read as results are fetched.
        """
        deadline_s = self._deadline_s(deadline_s)
        engine = self._here()
        batches = _batches_async(items, self.settings.batch_size)
        under_way: dict[asyncio.Task[list[Result]], int] = {}
        start, has_more = 0, True
        try:
            while has_more or under_way:
                while has_more and len(under_way) < self.settings.stream_batches:
                    batch = await anext(batches, None)
                    if batch is None:
                        has_more = False
                        break
                    under_way[asyncio.create_task(engine.predict(batch, deadline_s))] = start
                    start += len(batch)
                if not under_way:
                    break
                first = next(iter(under_way))
                done, _ = await asyncio.wait(
                    [first] if in_order else list(under_way), return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    offset = under_way.pop(task)
                    for result in task.result():
                        yield replace(result, index=offset + result.index)
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
            await batches.aclose()

    async def metrics(self) -> ClientMetrics:
        """Figures of the client and of each worker, since it was made or first used in this loop."""
        return self._here().metrics()

    async def close(self) -> None:
        """End what is under way, and every connection."""
        self._is_closed = True
        engine, self._running = self._running, None
        if engine is not None and engine.loop is asyncio.get_running_loop():
            await engine.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _here(self) -> Engine:
        """The engine of the running loop; one of an earlier loop is forgotten with that loop."""
        if self._is_closed:
            raise closed()
        if self._running is None or self._running.loop is not asyncio.get_running_loop():
            self._running = self._engine()
        return self._running


class InferenceClient(_Client):
    """Batch inference for programs without asyncio; the docstring of `gpufleet.client` shows how it is used.

    It may be used from several threads at once. Settings and `fallback` as of AsyncInferenceClient.
    """

    def __init__(self, *, address: str = "", fallback: Fallback | None = None, **given: Unpack[GivenSettings]) -> None:
        super().__init__(address, fallback, given)
        self._lock = threading.Lock()
        self._loop: _LoopThread | None = None

    def predict(self, items: Sequence[Any], *, deadline_s: float | None = None) -> list[Result]:
        """One result for each item, in their order: a value or an error, never an exception for an item's sake.

        Items are bytes, NumPy arrays or JSON values, or mappings of these by the model's inputs. Raises InferenceFailed
        of a client that is closed.
        """
        here = self._here()
        return here.result(here.start(here.engine.predict(list(items), self._deadline_s(deadline_s))))

    def stream(
        self, items: Iterable[Any], *, in_order: bool = True, deadline_s: float | None = None
    ) -> Iterator[Result]:
        """Results of any number of items, as they come or in order; `index` counts them. The deadline is each batch's.

        `stream_batches` batches are held at a time: more items are read as results are fetched.
        """
        deadline_s = self._deadline_s(deadline_s)
        here = self._here()
        batches = _batches(items, self.settings.batch_size)
        under_way: dict[Future[list[Result]], int] = {}
        start = 0
        try:
            while True:
                for batch in islice(batches, self.settings.stream_batches - len(under_way)):
                    under_way[here.start(here.engine.predict(batch, deadline_s))] = start
                    start += len(batch)
                if not under_way:
                    return
                first = next(iter(under_way))
                done, _ = wait_for_futures([first] if in_order else list(under_way), return_when=FIRST_COMPLETED)
                for future in done:
                    offset = under_way.pop(future)
                    for result in here.result(future):
                        yield replace(result, index=offset + result.index)
        finally:
            for future in under_way:
                future.cancel()

    def metrics(self) -> ClientMetrics:
        """Figures of the client and of each worker, since it was first used."""
        with self._lock:
            here = self._loop
        if here is None or here.process != os.getpid():
            return ClientMetrics(figures=Figures())
        return here.result(here.start(_metrics(here.engine)))

    def close(self) -> None:
        """End what is under way, its connections and its thread. What waits in other threads raises InferenceFailed."""
        with self._lock:
            self._is_closed = True
            here, self._loop = self._loop, None
        if here is not None and here.process == os.getpid():
            here.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _here(self) -> _LoopThread:
        """The loop of this process: a child made by fork has none of its parent's threads, and starts its own."""
        with self._lock:
            if self._is_closed:
                raise closed()
            if self._loop is None or self._loop.process != os.getpid():
                self._loop = _LoopThread(self)
            return self._loop


class _LoopThread:
    """An event loop on a thread of its own, and an engine on it. It ends with `close`, its client, or the program."""

    def __init__(self, client: InferenceClient) -> None:
        self.process = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=_run, args=(self.loop,), name="inference-client", daemon=True)
        self.thread.start()
        try:
            self.engine: Engine = self.result(self.start(_made(client._engine)))
        except BaseException:  # a file of authorities that is not there, say
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(CLOSE_S_MAX)
            raise
        # A client that nobody holds any more ends its thread.
        self._unheld = weakref.finalize(client, _stop, self.loop, self.engine)
        self._unheld.atexit = False

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run it on the loop. Raises InferenceFailed where that has ended."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError:  # the loop is closed
            work.close()
            raise closed() from None

    def result(self, future: Future[T]) -> T:
        """What it gave. An interrupt by the keyboard ends it. Raises InferenceFailed where the loop ended first."""
        try:
            return future.result()
        except CancelledError:
            raise closed() from None
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the engine, the loop and the thread."""
        self._unheld.detach()
        with suppress(RuntimeError, InferenceFailed):  # the loop has ended
            self.start(self.engine.close()).result(CLOSE_S_MAX)
            self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(CLOSE_S_MAX)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        try:
            loop.run_until_complete(_end_all())
        finally:
            loop.close()


async def _end_all() -> None:
    """Who waits for what came as the loop ended, or for what ended it, waits no more."""
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _made(make: Any) -> Engine:
    engine: Engine = make()
    return engine


async def _metrics(engine: Engine) -> ClientMetrics:
    return engine.metrics()


def _stop(loop: asyncio.AbstractEventLoop, engine: Engine) -> None:
    async def end() -> None:
        await engine.close()
        loop.stop()

    with suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(lambda: loop.create_task(end()))


def _batches(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


async def _batches_async(items: Iterable[Any] | AsyncIterable[Any], size: int) -> AsyncGenerator[list[Any], None]:
    if not isinstance(items, AsyncIterable):
        for batch in _batches(items, size):
            yield batch
        return
    gathered: list[Any] = []
    async for item in items:
        gathered.append(item)
        if len(gathered) == size:
            yield gathered
            gathered = []
    if gathered:
        yield gathered
