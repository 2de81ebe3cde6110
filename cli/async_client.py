"""Calls to the scheduler for commands that stay: `run`, `logs`, `wait`, `queue -w`. See `client.py`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import grpc
import grpc.aio

from gpufleet.channel import Metadata, connect_async
from gpufleet.errors import GpufleetError, UnavailableError

from .call_failures import LOST, is_told_to_end, lost
from .client import RetryPauses, translated
from .settings import Settings
from .stub import async_scheduler_of

Q = TypeVar("Q")
A = TypeVar("A")


class AsyncClient:
    """A scheduler to call from within the running loop."""

    def __init__(self, settings: Settings, channel: grpc.aio.Channel) -> None:
        self.settings = settings
        self.scheduler = async_scheduler_of(channel)

    async def call(self, method: grpc.aio.UnaryUnaryMultiCallable[Q, A], request: Q, metadata: Metadata = ()) -> A:
        """One answer, or a GpufleetError."""
        try:
            return await method(request, timeout=self.settings.connection_timeout_s, metadata=metadata)
        except grpc.RpcError as problem:
            raise self.translated(problem) from None
        except LOST as problem:
            if is_told_to_end():
                raise
            raise lost(problem) from None

    async def call_again(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[Q, A],
        request: Q,
        clock: Callable[[], float] = time.monotonic,
        metadata: Metadata = (),
    ) -> A:
        """The same for a request that is done once however often it arrives: asked again while it may pass."""
        pauses = RetryPauses(self.settings.connection_timeout_s, clock())
        while True:
            try:
                return await self.call(method, request, metadata)
            except UnavailableError as problem:
                pause_s = pauses.after(problem, clock())
                if pause_s is None:
                    raise (pauses.unknown or problem) from None
            await asyncio.sleep(pause_s)

    def translated(self, problem: grpc.RpcError) -> GpufleetError:
        """The error behind a failed call."""
        return translated(problem, self.settings)


@asynccontextmanager
async def connected_async(settings: Settings) -> AsyncIterator[AsyncClient]:
    """A client for the length of one command."""
    async with connect_async(settings.target()) as channel:
        yield AsyncClient(settings, channel)
