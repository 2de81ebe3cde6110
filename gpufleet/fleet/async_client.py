"""Calls to the scheduler for commands that stay: `run`, `logs`, `wait`, `queue -w`. See `client.py`.

What a call can end with besides an answer is sorted here: a refusal, a lost connection, or a fault of this program.
grpc.aio tells most failures as an RpcError. A call can also end in its InternalError (a batch of operations that Core
did not take, as when the server's status races what is still being sent), in an InvalidStateError (written to after
its end) and in a CancelledError that nobody asked for (the call was let go of under its reader). All of these are
the connection's trouble: the same call may pass when it is made again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import grpc
import grpc.aio

from gpufleet.errors import GpufleetError, Reason, UnavailableError
from gpufleet.net.channel import Metadata, connect_async

from .client import BegunCall, PagedAnswer, PagedRequest, async_scheduler_of, may_be_repeated, pauses_of, translated
from .settings import Settings

Q = TypeVar("Q")
A = TypeVar("A")
P = TypeVar("P", bound=PagedRequest)
R = TypeVar("R", bound=PagedAnswer)


class AsyncClient:
    """A scheduler to call from within the running loop."""

    def __init__(self, settings: Settings, channel: grpc.aio.Channel) -> None:
        self.settings = settings
        self.scheduler = async_scheduler_of(channel)

    async def call(self, method: grpc.aio.UnaryUnaryMultiCallable[Q, A], request: Q, metadata: Metadata = ()) -> A:
        """One answer, or a GpufleetError. Of several addresses one is waited for that serves: see `may_be_repeated`."""
        pauses = pauses_of(self.settings, time.monotonic())
        while True:
            try:
                return await self._asked(method, request, metadata)
            except UnavailableError as problem:
                if not may_be_repeated(problem, self.settings, request):
                    raise
                if (pause_s := pauses.after(problem, time.monotonic())) is None:
                    raise
            await asyncio.sleep(pause_s)

    async def _asked(self, method: grpc.aio.UnaryUnaryMultiCallable[Q, A], request: Q, metadata: Metadata) -> A:
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
        begun: BegunCall[A] | None = None,
    ) -> A:
        """The same for a request that is done once however often it arrives: asked again while it may pass.

        `begun` is the first time, where it is on its way already.
        """
        pauses = pauses_of(self.settings, clock())
        while True:
            try:
                if begun is None:
                    return await self._asked(method, request, metadata)
                first, begun = begun, None
                return await self._result_of(first)
            except UnavailableError as problem:
                pause_s = pauses.after(problem, clock())
                if pause_s is None:
                    raise (pauses.unknown or problem) from None
            await asyncio.sleep(pause_s)

    async def _result_of(self, begun: BegunCall[A]) -> A:
        is_done = asyncio.Event()
        tell = asyncio.get_running_loop().call_soon_threadsafe
        begun.call_when_done(lambda: tell(is_done.set))
        try:
            await is_done.wait()
            return begun.result()
        except grpc.RpcError as problem:
            raise self.translated(problem) from None
        finally:
            begun.close()

    async def all_pages(self, method: grpc.aio.UnaryUnaryMultiCallable[P, R], request: P) -> AsyncIterator[R]:
        """Every page; the request's own page token is moved on."""
        while True:
            answer = await self.call(method, request)
            yield answer
            if not answer.next_page_token:
                return
            request.page_token = answer.next_page_token

    def translated(self, problem: grpc.RpcError) -> GpufleetError:
        """The error behind a failed call."""
        return translated(problem, self.settings)


@asynccontextmanager
async def connected_async(settings: Settings) -> AsyncIterator[AsyncClient]:
    """A client for the length of one command."""
    async with connect_async(settings.target()) as channel:
        yield AsyncClient(settings, channel)


LOST = (grpc.aio.InternalError, asyncio.InvalidStateError, asyncio.CancelledError)
"""What grpc.aio raises, besides an RpcError, when a call is lost."""


def understood(failure: BaseException, translate: Callable[[grpc.RpcError], GpufleetError]) -> Exception:
    """The failure as the error that it is; of a group the first that will not pass. Raises what ends the program."""
    match failure:
        case grpc.RpcError():
            try:
                return translate(failure)
            except Exception as fault:  # a status like none that is known must not be lost either
                return fault
        case asyncio.CancelledError() | grpc.aio.InternalError() | asyncio.InvalidStateError():
            return lost(failure)
        case BaseExceptionGroup():
            errors = [understood(each, translate) for each in failure.exceptions]
            return next((error for error in errors if not may_pass(error)), errors[0])
        case Exception():
            return failure
        case _:
            raise failure


def lost(failure: BaseException) -> GpufleetError:
    """The error of a call that was lost in a way for which grpc has no status."""
    what = str(failure) or type(failure).__name__
    return GpufleetError(
        Reason.OUTCOME_UNKNOWN,
        f"the connection broke before the answer came: {what}",
        next_step="Try again; see why with: gpuctl doctor",
        metadata={"grpc": what},
    )


def may_pass(problem: Exception) -> bool:
    """Whether the same call may succeed later: the connection's trouble, not a refusal and no fault of ours."""
    if not isinstance(problem, GpufleetError):
        return False
    if isinstance(problem, UnavailableError) or problem.reason is Reason.TOO_MANY_STREAMS:
        return True
    # A connection that is cut in the middle of a message comes out as one of these, made by grpc itself.
    return problem.reason in (Reason.INTERNAL, Reason.UNKNOWN) and "grpc" in problem.metadata


def is_told_to_end() -> bool:
    """Whether the running task itself is cancelled: a CancelledError that it meets otherwise is a call's."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
