"""Tells the scheduler what ended requests came to, batch after batch; one that was not answered is sent again."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from gpufleet.v1 import sessions_pb2

from gpufleet.errors import Code, GpufleetError
from gpufleet.net.channel import Target, token_now
from gpufleet.telemetry.logs import fields

from ..dashboard.calls import Scheduler
from .core.request_sums import Batch, EndedRequest, RequestSums

log = logging.getLogger(__name__)

GATHER_S = 5.0
"""What ends within so long is told together."""

PAUSE_S_MIN, PAUSE_S_MAX = 1.0, 30.0
"""The pause before a batch is sent again grows from the first to the second."""

LAST_S_MAX = 1.0
"""How long the last batches of a gateway that stops may take."""

REFUSED = frozenset({Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE})
"""A batch that is refused so is refused again however often it is sent."""


class Counting:
    """The requests of one gateway that have ended. `running` holds its way to the scheduler."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._start = secrets.token_hex(8)
        self._sums = RequestSums()
        self._has_more = asyncio.Event()
        self._is_full = False

    def add(self, model: str, user: str, request: EndedRequest) -> None:
        """A request has ended."""
        self._note(has_room=self._sums.add(model, user, request))

    def fell_back(self, model: str, user: str) -> None:
        """A request goes to a program's CPU model in its place."""
        self._note(has_room=self._sums.fell_back(model, user))

    def _note(self, *, has_room: bool) -> None:
        if not has_room and not self._is_full:
            log.warning("requests of further users count for nobody until the scheduler is heard")
        self._is_full = not has_room
        self._has_more.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Connected as long as it lasts; what has ended by then is told, if that is soon done."""
        scheduler = Scheduler(self._target)
        telling = asyncio.create_task(self._tell_always(scheduler), name="count-requests")
        try:
            yield
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_S_MAX):
                    await self._tell_all(scheduler)
            if not self._sums.is_empty:
                log.warning("the last requests of programs are not counted: the scheduler was not heard")
            await scheduler.close()

    async def _tell_always(self, scheduler: Scheduler) -> None:
        pause_s = PAUSE_S_MIN
        while True:
            await self._has_more.wait()
            await asyncio.sleep(GATHER_S)
            self._has_more.clear()
            if await self._tell_all(scheduler):
                pause_s = PAUSE_S_MIN
                continue
            self._has_more.set()
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(pause_s * 2, PAUSE_S_MAX)

    async def _tell_all(self, scheduler: Scheduler) -> bool:
        """Whether all was told."""
        while (batch := self._sums.batch()) is not None:
            try:
                await scheduler.call("CountRequests", self._request_of(batch), token_now(self._target))
            except GpufleetError as error:
                if error.code not in REFUSED:
                    log.info("requests are not counted yet", extra=fields(why=error.message))
                    return False
                log.error("a count of requests was refused", extra=fields(why=error.message, rows=len(batch.rows)))
            self._sums.stored(batch)
        return True

    def _request_of(self, batch: Batch) -> sessions_pb2.CountRequestsRequest:
        request = sessions_pb2.CountRequestsRequest(gateway_start=self._start, sequence=batch.sequence)
        for (model, user), sums in batch.rows:
            row = request.rows.add(
                model=model,
                user=user,
                request_count=sums.requests,
                failed_count=sums.failed,
                prompt_tokens=sums.prompt_tokens,
                completion_tokens=sums.completion_tokens,
                unknown_count=sums.unknown,
                fallback_count=sums.fallbacks,
            )
            row.duration.FromMicroseconds(round(sums.duration_s * 1e6))
        return request
