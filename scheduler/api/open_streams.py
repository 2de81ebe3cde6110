"""Streams that are being served, each with the token that opened it: when the token ends, so does the stream, by name.

A handler that waits for something to tell is interrupted. One that is just sending is left to finish that message, as a
write that is cut off half-way would keep the call from ever ending; it is ended behind it. So a caller whose token was
revoked learns nothing that happens later than CHECK_SECONDS after it.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.refusing import refuse

from ..listeners import Listeners, add, drop
from ..state.ids import TokenId

CHECK_SECONDS = 1.0
"""How often it is seen whose token has been revoked, or has expired."""


@dataclass(slots=True, eq=False)
class _OpenStream:
    """One stream. `is_waiting`: its handler may be interrupted now; `is_ended`: its token is good for nothing."""

    is_waiting: bool = False
    is_ended: bool = False
    task: asyncio.Task[Any] = field(default_factory=lambda: _this_task())

    def end(self) -> None:
        """The token has ended."""
        if not self.is_ended:
            self.is_ended = True
            if self.is_waiting:
                self.task.cancel()


class OpenStreams:
    """All streams by token. `is_good` says whether a token may still be used."""

    def __init__(self, is_good: Callable[[TokenId], bool]) -> None:
        self._is_good = is_good
        self._by_token: dict[TokenId, Listeners[_OpenStream]] = {}

    async def end_revoked_for_ever(self) -> None:
        """Look after the streams until cancelled."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self.end_revoked()

    def end_revoked(self) -> None:
        """End every stream whose token is not good any more."""
        for token, streams in list(self._by_token.items()):
            if not self._is_good(token):
                for stream in streams:
                    stream.end()

    def guarded(self, handler: Any, token: TokenId) -> Any:
        """The handler of a streaming call, which ends when the token does; any other handler as it is."""
        for kind in ("unary_stream", "stream_unary", "stream_stream"):
            method = getattr(handler, kind)
            if method is not None:
                is_generator = inspect.isasyncgenfunction(method)
                guard = self._guarded_generator if is_generator else self._guarded_coroutine
                return handler._replace(**{kind: guard(method, token)})
        return handler

    def _guarded_generator(self, method: Any, token: TokenId) -> Any:
        async def serve(request: Any, context: Any) -> AsyncIterator[Any]:
            stream = self._join(token)
            messages = method(request, context)
            try:
                while not stream.is_ended:
                    stream.is_waiting = True
                    message = await anext(messages, None)
                    stream.is_waiting = False
                    if message is None:
                        return
                    yield message
                await messages.aclose()  # it may still be reading what the caller sends
                await refuse(context, _ended(), request)
            except asyncio.CancelledError:
                await self._refuse_if_interrupted(stream, request, context)
                raise
            finally:
                self._leave(token, stream)
                await messages.aclose()

        return serve

    def _guarded_coroutine(self, method: Any, token: TokenId) -> Any:
        async def serve(request: Any, context: Any) -> Any:
            # What it sends on its own task, it ends by itself: the handler may be interrupted wherever it waits.
            stream = self._join(token)
            stream.is_waiting = True
            try:
                return await method(request, context)
            except asyncio.CancelledError:
                await self._refuse_if_interrupted(stream, request, context)
                raise
            finally:
                self._leave(token, stream)

        return serve

    async def _refuse_if_interrupted(self, stream: _OpenStream, request: Any, context: Any) -> None:
        if stream.is_ended and not context.cancelled():
            stream.is_waiting = False
            stream.task.uncancel()
            with suppress(grpc.aio.UsageError):  # it was just being refused for another reason
                await refuse(context, _ended(), request)

    def _join(self, token: TokenId) -> _OpenStream:
        stream = _OpenStream()
        add(self._by_token, token, stream)
        return stream

    def _leave(self, token: TokenId, stream: _OpenStream) -> None:
        stream.is_waiting = False
        drop(self._by_token, token, stream)


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None, "a handler runs in a task"
    return task


def _ended() -> GpufleetError:
    return GpufleetError(Reason.TOKEN_REVOKED)
