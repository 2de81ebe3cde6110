"""A stream of requests and their answers: computed side by side, and answered in the order of the requests.

    messages ─▶ _read: room, a task each ─▶ queue, in order ─▶ answer: the next one's answer or error ─▶ context

The order lets clients tell errors apart, since some show their users no more of one than its sentence. What is not
read at the other end holds up `answer`, then fills the queue, and so stops `_read`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, suppress
from typing import Any

from gpufleet.v1.open_inference import open_inference_pb2 as pb

from gpufleet.errors import Code, GpufleetError, Reason

from .requests import SHOWN_MAX, HttpRequest, request_in, request_of
from .room import Room
from .statuses import PROBLEMS, status_of

REQUESTS_MAX = 64
"""Requests of a stream that are under way, or answered and not yet sent; then no more is read."""

IDLE_S_MAX = 600.0
"""A stream with nothing under way ends when no request comes for so long, and one whose answers are not read."""

FINAL_WANTED, FINAL = "triton_enable_empty_final_response", "triton_final_response"
"""Parameters of a request and its answer: each request has one answer, which is the last, and is marked where that
is asked for."""

Answering = Callable[[str, HttpRequest], Awaitable[pb.ModelInferResponse]]


class Stream:
    """One call of a caller from an address. `infer` answers a request to a model, or raises one of the
    PROBLEMS."""

    def __init__(self, room: Room, caller: str, address: str, infer: Answering, *, is_known: bool) -> None:
        self._room = room
        self._caller = caller
        self._address = address
        self._infer = infer
        self._is_known = is_known
        self._under_way: asyncio.Queue[asyncio.Task[pb.ModelStreamInferResponse] | None] = asyncio.Queue()
        self._places = asyncio.Semaphore(REQUESTS_MAX)
        self._tasks: dict[asyncio.Task[pb.ModelStreamInferResponse], ExitStack] = {}

    async def answer(self, messages: AsyncIterator[bytes], context: Any) -> None:
        """Answer what comes until its end. Raises DEADLINE for who neither asks nor reads, QUOTA_EXCEEDED."""
        reader = asyncio.create_task(self._read(messages))
        try:
            while (task := await self._under_way.get()) is not None:
                said = await task
                held = self._tasks[task]
                size = said.ByteSize()
                held.enter_context(self._room.hold(self._caller, size, is_known=self._is_known))
                try:
                    async with asyncio.timeout(IDLE_S_MAX):
                        await context.write(said.SerializeToString())
                except TimeoutError:
                    raise GpufleetError(Reason.DEADLINE, f"no answer was read for {IDLE_S_MAX:g} s") from None
                del self._tasks[task]
                held.close()
                self._places.release()
            await reader
        finally:
            for each in (reader, *self._tasks):
                each.cancel()
            await asyncio.gather(reader, *self._tasks, return_exceptions=True)
            for held in self._tasks.values():
                held.close()

    async def _read(self, messages: AsyncIterator[bytes]) -> None:
        """Begin what is asked. `answer` hears of its end, and gets its error, once all answers are sent."""
        try:
            while (message := await self._next(messages)) is not None:
                held = ExitStack()
                held.enter_context(self._room.hold(self._caller, len(message), is_known=self._is_known))
                task = asyncio.create_task(self._one(message))
                self._tasks[task] = held
                self._under_way.put_nowait(task)
                del message
        finally:
            self._under_way.put_nowait(None)

    async def _next(self, messages: AsyncIterator[bytes]) -> bytes | None:
        """The next message, once there is a place and room for it; None at the end."""
        await self._places.acquire()
        while True:
            try:
                await self._room.wait(self._caller, is_known=self._is_known)
                break
            except GpufleetError:
                if not self._tasks:
                    raise
        reading = asyncio.ensure_future(_one_of(messages))
        try:
            while not reading.done():
                done, _ = await asyncio.wait({reading}, timeout=IDLE_S_MAX)
                if not done and not self._tasks:
                    raise GpufleetError(Reason.DEADLINE, f"no request came for {IDLE_S_MAX:g} s: begin another stream")
            return reading.result()
        finally:
            if not reading.done():
                reading.cancel()
                with suppress(asyncio.CancelledError):
                    await reading

    async def _one(self, message: bytes) -> pb.ModelStreamInferResponse:
        name = ident = ""
        try:
            request = request_in(message)
            name, ident = request.model_name, request.id
            is_final_wanted = FINAL_WANTED in request.parameters and request.parameters[FINAL_WANTED].bool_param
            if FINAL_WANTED in request.parameters:
                del request.parameters[FINAL_WANTED]
            body = request_of(request)
            # Each is as long as the request.
            del message, request
            with self._room.call(self._address):
                answer = await self._infer(name, body)
            if is_final_wanted:
                answer.parameters[FINAL].bool_param = True
            return pb.ModelStreamInferResponse(infer_response=answer)
        except PROBLEMS as problem:
            status = status_of(problem)
        about = f"[request id: {ident[:SHOWN_MAX]}] " if ident else ""
        said = pb.ModelStreamInferResponse(error_message=f"{about}{status.details or 'failed'}")
        said.infer_response.id, said.infer_response.model_name = ident, name
        said.infer_response.parameters["code"].string_param = Code(status.code.value[0]).name
        return said


async def _one_of(messages: AsyncIterator[bytes]) -> bytes | None:
    async for message in messages:
        return message
    return None
