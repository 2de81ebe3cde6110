"""What a gateway and the scheduler tell each other of served programs: replicas down, numbers of requests up."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from copy import copy
from dataclasses import dataclass
from typing import Any

import grpc.aio
from gpufleet.v1 import sessions_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.channel import Metadata, Target, bearer, token_now
from gpufleet.net.status import from_rpc_error
from gpufleet.telemetry.logs import fields

from ..dashboard.calls import Scheduler
from .service import Service

log = logging.getLogger(__name__)

PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 3.0
"""The pause before a stream is tried again grows from the first to the second."""

FIRST_S_MAX = 5.0
"""How long a request waits for the first news of its program."""

UNUSED_S_MAX = 60.0
"""A program that nobody asked for in this time is watched no longer."""

WATCHED_MAX = 1_000
"""Programs that are watched; of more the one that was asked for the longest ago is not, if it has no request."""

MISSING_S, MISSING_MAX = 0.5, 10_000
"""A name that the scheduler does not know, or knows as a class, is not asked about again for so long, which is less
than a program needs to become ready; so many are remembered. One that was served until now is asked about at once:
somebody may serve it again."""

LISTED_S = 2.0
"""A list of all programs is good for so long."""

PAGE_MODELS, PAGES_MAX = 1_000, 20
"""Models on a page of it, and its longest; programs behind that are not listed."""

REPORT_S_MIN, REPORT_S_MAX = 0.2, 5.0
"""How soon after a report the next one may follow, and how late it must."""


@dataclass(slots=True, eq=False)
class _Watched:
    service: Service
    first: asyncio.Future[None]
    task: asyncio.Task[None] | None = None
    users: int = 0
    timer: asyncio.TimerHandle | None = None
    used_s: float = 0.0

    async def heard(self) -> Service:
        """The program, once the scheduler has said something of it. Raises what it refuses."""
        if not self.first.done():
            try:
                async with asyncio.timeout(FIRST_S_MAX):
                    await asyncio.shield(self.first)
            except TimeoutError:
                raise GpufleetError(Reason.SCHEDULER_UNREACHABLE, "the scheduler is not heard") from None
        self.first.result()
        return self.service

    def end_use(self) -> None:
        """One user less."""
        self.users -= 1
        self.used_s = asyncio.get_running_loop().time()


class _Use(AbstractAsyncContextManager[Service]):
    """The block of one that uses a program. Every request has one, and a generator would cost three times as much."""

    __slots__ = ("_name", "_watched", "_watching")

    def __init__(self, watching: Watching, name: str) -> None:
        self._watching = watching
        self._name = name
        self._watched: _Watched

    async def __aenter__(self) -> Service:
        self._watched = self._watching.begin_use(self._name)
        try:
            return await self._watched.heard()
        except BaseException:
            self._watched.end_use()
            raise

    async def __aexit__(self, *raised: object) -> None:
        self._watched.end_use()


class Watching:
    """The programs that are asked for. Made inside the running loop; `running` holds its streams."""

    def __init__(self, target: Target, worker_target: Callable[[sessions_pb2.WorkerInfo], Target]) -> None:
        self._scheduler = Scheduler(target)
        self._target = target
        self._worker_target = worker_target
        self._watched: OrderedDict[str, _Watched] = OrderedDict()
        self._missing: OrderedDict[str, tuple[float, GpufleetError]] = OrderedDict()
        self._has_changed = asyncio.Event()
        self._listing = asyncio.Lock()
        self._listed: tuple[float, list[sessions_pb2.Model]] = (float("-inf"), [])

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Connected as long as it lasts."""
        reporting = asyncio.create_task(self._report(), name="served-requests")
        try:
            yield
        finally:
            tasks = [reporting, *(each.task for each in self._watched.values() if each.task is not None)]
            for name in list(self._watched):
                self._drop(name)
            reporting.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._scheduler.close()

    def service(self, name: str) -> AbstractAsyncContextManager[Service]:
        """A program, watched at least as long as the block. Raises MODEL_NOT_FOUND, and what the scheduler refuses."""
        return _Use(self, name)

    def services(self) -> list[Service]:
        """The programs that were asked for lately."""
        return [each.service for each in self._watched.values()]

    def waiting(self) -> int:
        """Requests of all programs that wait."""
        return sum(each.service.waiting for each in self._watched.values())

    async def programs(self) -> list[sessions_pb2.Model]:
        """All programs that are served, by name, as of a moment ago. Raises what the scheduler refuses."""
        async with self._listing:  # those who ask at once share an answer
            now_s = asyncio.get_running_loop().time()
            if now_s - self._listed[0] >= LISTED_S:
                self._listed = now_s, await self._list()
            return self._listed[1]

    async def _list(self) -> list[sessions_pb2.Model]:
        found: list[sessions_pb2.Model] = []
        request = sessions_pb2.ListModelsRequest(page_size=PAGE_MODELS)
        for _ in range(PAGES_MAX):
            answer: Any = await self._scheduler.call("ListModels", request, token_now(self._target))
            found += (each for each in answer.models if each.HasField("http"))
            if not answer.next_page_token:
                break
            request.page_token = answer.next_page_token
        return found

    def _metadata(self) -> Metadata:
        return bearer(token_now(self._target))

    # --- replicas

    def _check_missing(self, name: str) -> None:
        until_s, error = self._missing.get(name, (0.0, None))
        if error is not None and until_s > asyncio.get_running_loop().time():
            raise copy(error)  # one that is raised again and again grows with each traceback

    def begin_use(self, name: str) -> _Watched:
        """A program with one user more, until its `end_use`. Raises MODEL_NOT_FOUND."""
        self._check_missing(name)
        watched = self._watched.get(name) or self._watch(name)
        watched.users += 1
        self._watched.move_to_end(watched.service.name)
        return watched

    def _watch(self, name: str) -> _Watched:
        loop = asyncio.get_running_loop()
        if len(self._watched) >= WATCHED_MAX:
            oldest = next((name for name, each in self._watched.items() if not each.users), None)
            if oldest is None:
                raise GpufleetError(Reason.TOO_MANY_STREAMS, f"this gateway serves {WATCHED_MAX:,} programs now")
            self._drop(oldest)
        service = Service(name, self._worker_target, self.waiting, self._has_changed.set)
        watched = self._watched[name] = _Watched(service, loop.create_future())
        watched.task = asyncio.create_task(self._follow(watched), name=f"watch {name}")
        watched.timer = loop.call_later(UNUSED_S_MAX, self._look, watched)
        return watched

    def _look(self, watched: _Watched) -> None:
        """Watch it no longer if nobody asks for it; else look again."""
        loop = asyncio.get_running_loop()
        rest_s = UNUSED_S_MAX if watched.users else watched.used_s + UNUSED_S_MAX - loop.time()
        if rest_s <= 0:
            self._drop(watched.service.name)
        else:
            watched.timer = loop.call_later(rest_s, self._look, watched)

    def _drop(self, name: str, why: GpufleetError | None = None) -> None:
        """Watch it no more; where it is not served any more, `why` is the answer to all that wait for it."""
        watched = self._watched.pop(name)
        if watched.timer is not None:
            watched.timer.cancel()
        if watched.task is not None:
            watched.task.cancel()
        watched.first.cancel()
        watched.service.close(why)

    async def _follow(self, watched: _Watched) -> None:
        """Hold the stream of one program until cancelled, or until there is no such program."""
        name, pause_s = watched.service.name, PAUSE_S_MIN
        while True:
            call: Any = self._scheduler.method("WatchWorkers")(
                sessions_pb2.WatchWorkersRequest(model=name), metadata=self._metadata()
            )
            try:
                async for news in call:
                    pause_s = PAUSE_S_MIN
                    if not news.HasField("http"):
                        raise _class_is_played_elsewhere(name)
                    watched.service.update(news)
                    if not watched.first.done():
                        watched.first.set_result(None)
            except grpc.aio.AioRpcError as problem:
                error = from_rpc_error(problem)
                if error.reason is Reason.MODEL_NOT_FOUND:
                    self._has_no(watched, error)
                    return
                log.warning("a program's replicas are not told", extra=fields(model=name, why=error.message))
            except GpufleetError as error:
                self._has_no(watched, error)
                return
            finally:
                call.cancel()
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(pause_s * 2, PAUSE_S_MAX)

    def _has_no(self, watched: _Watched, error: GpufleetError) -> None:
        name = watched.service.name
        if not watched.first.done():
            self._missing[name] = (asyncio.get_running_loop().time() + MISSING_S, error)
            self._missing.move_to_end(name)
            if len(self._missing) > MISSING_MAX:
                self._missing.popitem(last=False)
            watched.first.set_exception(error)
            watched.first.exception()  # seen, even where nobody waits for it any more
        watched.task = None
        if self._watched.get(name) is watched:
            self._drop(name, error)

    # --- requests

    async def _report(self) -> None:
        """Tell how many requests there are, from the first one on."""
        pause_s, loop = PAUSE_S_MIN, asyncio.get_running_loop()
        while True:
            await self._has_changed.wait()
            call: Any = self._scheduler.method("ReportRequests")(metadata=self._metadata())
            call.add_done_callback(lambda _: self._has_changed.set())
            began_s = loop.time()
            try:
                with suppress(asyncio.InvalidStateError):
                    await self._tell(call)
                await call  # raises why it is over
                log.warning("the scheduler has ended the stream of programs' requests")
            except grpc.aio.AioRpcError as problem:
                error = from_rpc_error(problem)
                log.warning("requests of programs are not told to the scheduler", extra=fields(why=error.message))
            finally:
                call.cancel()
            pause_s = PAUSE_S_MIN if loop.time() - began_s > REPORT_S_MAX else min(pause_s * 2, PAUSE_S_MAX)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            self._has_changed.set()

    async def _tell(self, call: Any) -> None:
        while True:
            self._has_changed.clear()
            await call.write(report_of(each.service for each in self._watched.values()))
            await asyncio.sleep(REPORT_S_MIN)
            with suppress(TimeoutError):
                async with asyncio.timeout(REPORT_S_MAX - REPORT_S_MIN):
                    await self._has_changed.wait()


def report_of(services: Iterable[Service]) -> sessions_pb2.ReportRequestsRequest:
    """What a gateway has; of a program that is not named there is none."""
    return sessions_pb2.ReportRequestsRequest(models=[each.report() for each in services if not each.is_idle])


def _class_is_played_elsewhere(name: str) -> GpufleetError:
    return GpufleetError(
        Reason.MODEL_NOT_FOUND,
        f"{name!r} is a model that people hold sessions with, and no program with an HTTP port",
        next_step="Play it on this gateway's first page: /",
    )
