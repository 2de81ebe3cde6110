"""Calls of asyncio whose requests are a stream: they give every message that came, and then the server's own status.

A server may end a call while its client still sends. The client's next write then fails, and grpc.aio takes the call
for done with INTERNAL ("Internal error from Core"; grpc issue 36066), though messages that came before the end are not
read yet and the status waits behind them. Here a failed write says only that no more can be written: reading goes on
to the end, and the status is the one that came from the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

OF_A_FAILED_WRITE = "Failed "
"""How the debug text begins of a status that grpc.aio made up when a write failed. One that Core has, from the server
or because the connection broke, begins otherwise."""

LEFT = "Left after its end by who made it."
"""The status' details of a call that is cancelled behind a failed write; nobody but a debugger reads them."""


class CallEnded(asyncio.InvalidStateError):
    """Nothing more can be written to a call: it is over. How it ended is told by reading it to its end."""


@dataclass(slots=True)
class _End:
    """How a call ended, once that is known."""

    is_known: asyncio.Event = field(default_factory=asyncio.Event)
    has_failed_write: bool = False
    code: grpc.StatusCode = grpc.StatusCode.OK
    details: str = ""
    initial_metadata: grpc.aio.Metadata = field(default_factory=grpc.aio.Metadata)
    trailing_metadata: grpc.aio.Metadata = field(default_factory=grpc.aio.Metadata)
    debug_text: str = ""

    def note(self, call: Any) -> None:
        """A status has been set, which may happen twice: by a failed write, and when the server's comes."""
        debug_text = _at_once(call.debug_error_string()) or ""
        if _at_once(call.code()) is grpc.StatusCode.INTERNAL and debug_text.startswith(OF_A_FAILED_WRITE):
            self.has_failed_write = True
        elif not self.is_known.is_set():
            self.code = _at_once(call.code())
            self.details = _at_once(call.details()) or ""
            self.initial_metadata = _at_once(call.initial_metadata()) or grpc.aio.Metadata()
            self.trailing_metadata = _at_once(call.trailing_metadata()) or grpc.aio.Metadata()
            self.debug_text = debug_text
            self.is_known.set()

    def check(self) -> None:
        """Raise the status unless it is OK; only of an end that is known."""
        if self.code is not grpc.StatusCode.OK:
            raise grpc.aio.AioRpcError(
                self.code,
                self.initial_metadata,
                self.trailing_metadata,
                details=self.details,
                debug_error_string=self.debug_text,
            )


class _RequestStreamCall:
    """What both kinds have in common; used as the call of grpc.aio is, but for what `write` raises."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._end = _End()
        call.add_done_callback(self._end.note)

    def __del__(self) -> None:
        # The noting keeps the call itself alive for longer than whoever made it.
        with suppress(Exception):
            self.cancel()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    async def write(self, request: Any) -> None:
        """Send a message; waits while the server takes none. Errors: CallEnded."""
        if self._end.has_failed_write:
            raise CallEnded(self._why_ended())
        try:
            await self._call.write(request)
        except grpc.aio.AioRpcError:
            raise CallEnded(self._why_ended()) from None
        except asyncio.InvalidStateError:
            if not self._call.done():
                raise  # written to behind done_writing
            raise CallEnded(self._why_ended()) from None

    async def done_writing(self) -> None:
        """Say that no message follows; of a call that is over there is nothing to say."""
        with suppress(grpc.aio.AioRpcError, grpc.aio.InternalError):
            await self._call.done_writing()

    async def wait_for_connection(self) -> None:
        """Return once the call is on its way. Raises what it ended with before."""
        await self._told(self._call.wait_for_connection())

    def cancel(self) -> bool:
        """End it now, whatever was not read; False where it has ended."""
        if self._call.cancel():
            return True
        if self._end.is_known.is_set():
            return False
        # A write failed and grpc.aio takes the call for done, but Core holds it until what came is read.
        self._call._cython_call.cancel(LEFT)
        return True

    def done(self) -> bool:
        """Whether it is known how the call ended."""
        return self._end.is_known.is_set()

    async def code(self) -> grpc.StatusCode:
        """The status' code, once the call has ended and what came before is read."""
        await self._end.is_known.wait()
        return self._end.code

    async def details(self) -> str:
        """What the status says, once the call has ended; empty where it says nothing."""
        await self._end.is_known.wait()
        return self._end.details

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        """What came with the status, once the call has ended."""
        await self._end.is_known.wait()
        return self._end.trailing_metadata

    async def _told(self, step: Coroutine[Any, Any, Any]) -> Any:
        """What a step answers; where it fails, the status that the call has."""
        try:
            return await step
        except grpc.aio.AioRpcError:
            await self._end.is_known.wait()
            self._end.check()
            raise

    def _why_ended(self) -> str:
        return self._end.details or "the call is over"


class StreamCall(_RequestStreamCall):
    """A call with a stream each way."""

    def __init__(self, call: Any) -> None:
        super().__init__(call)
        self._is_left = False

    def __aiter__(self) -> StreamCall:
        return self

    async def __anext__(self) -> Any:
        message = await self.read()
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        return message

    def __await__(self) -> Generator[Any, None, None]:
        return self._ended().__await__()

    async def read(self) -> Any:
        """The next message; behind the last EOF, or the status where it is not OK, as often as it is asked."""
        if self._is_left:
            raise asyncio.CancelledError
        try:
            # Iterating, and not `call.read()`, which gives none of the messages once a write has failed.
            message = await anext(aiter(self._call), grpc.aio.EOF)
            if message is not grpc.aio.EOF:
                return message
        except grpc.aio.AioRpcError:
            pass
        except asyncio.CancelledError:
            self._is_left = True
            raise
        await self._end.is_known.wait()
        self._end.check()
        return grpc.aio.EOF

    async def _ended(self) -> None:
        """Drop what was not read; raises the status unless it is OK."""
        while await self.read() is not grpc.aio.EOF:
            pass


class UploadCall(_RequestStreamCall):
    """A call with a stream of requests and one answer, which it is awaited for."""

    def __await__(self) -> Generator[Any, None, Any]:
        return self._told(self._answer()).__await__()

    async def _answer(self) -> Any:
        return await self._call


def _at_once(question: Coroutine[Any, Any, Any]) -> Any:
    """What is known of a call that has ended; None where it would have to be waited for."""
    try:
        question.send(None)
    except StopIteration as answer:
        return answer.value
    question.close()
    return None
