"""Calls of asyncio with a stream each way: they tell the status that the server gave.

A server may end a call while its client still sends. The client's next write then fails, and grpc.aio puts INTERNAL
("Internal error from Core") in the place of the status that has just arrived (grpc issue 36066). The first status of
a call is the true one: it is noted when it arrives, and raised.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio


@dataclass(slots=True)
class _Noted:
    """The first status of a call, as the error that it is; None before it, and for a call that went well."""

    error: grpc.aio.AioRpcError | None = None

    def note(self, call: Any) -> None:
        """The call has just ended."""
        code = _at_once(call.code())
        if self.error is None and code is not None and code is not grpc.StatusCode.OK:
            self.error = grpc.aio.AioRpcError(
                code,
                _at_once(call.initial_metadata()) or grpc.aio.Metadata(),
                _at_once(call.trailing_metadata()) or grpc.aio.Metadata(),
                details=_at_once(call.details()),
                debug_error_string=_at_once(call.debug_error_string()),
            )


class StreamCall:
    """A call of grpc.aio with a stream each way, used as that call is; what it raises is the server's status."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._noted = _Noted()
        self._messages: AsyncIterator[Any] | None = None
        call.add_done_callback(self._noted.note)

    def __del__(self) -> None:
        # The noting keeps the call itself alive for longer than whoever made it.
        with suppress(Exception):
            self._call.cancel()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    def __aiter__(self) -> AsyncIterator[Any]:
        if self._messages is None:
            self._messages = self._all()
        return self._messages

    async def read(self) -> Any:
        """The next message, or EOF."""
        return await self._true(self._call.read())

    async def write(self, request: Any) -> None:
        """Send a message."""
        await self._true(self._call.write(request))

    async def done_writing(self) -> None:
        """Say that no message follows."""
        await self._true(self._call.done_writing())

    async def wait_for_connection(self) -> None:
        """Return once the call is on its way."""
        await self._true(self._call.wait_for_connection())

    async def code(self) -> grpc.StatusCode:
        """The status' code, once the call has ended."""
        code: grpc.StatusCode = await self._call.code()
        return code if self._noted.error is None else self._noted.error.code()

    async def details(self) -> str:
        """What the status says, once the call has ended; empty where it says nothing."""
        details: str | None = await self._call.details()
        return (details if self._noted.error is None else self._noted.error.details()) or ""

    async def _all(self) -> AsyncIterator[Any]:
        messages = aiter(self._call)
        end = object()
        while (message := await self._true(_next(messages, end))) is not end:
            yield message

    async def _true(self, step: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await step
        except grpc.aio.AioRpcError:
            if self._noted.error is None:
                raise
            error = self._noted.error
        raise error


async def _next(messages: AsyncIterator[Any], end: object) -> Any:
    return await anext(messages, end)


def _at_once(question: Coroutine[Any, Any, Any]) -> Any:
    """What is known of a call that has ended; None where it would have to be waited for."""
    try:
        question.send(None)
    except StopIteration as answer:
        return answer.value
    question.close()
    return None
