"""One stream of a turn, whatever carries it: a call of Inference.Stream, or a connection to the local socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from gpufleet.v1 import inference_pb2

from gpufleet.errors import GpufleetError, invalid

from .turning import End, TurnStream
from .worker import Worker

OPEN_S_MAX = 5.0
"""How long a stream may take to bring its ticket."""

Requests = AsyncIterator[inference_pb2.StreamRequest]
Write = Callable[[inference_pb2.StreamResponse], Awaitable[None]]


async def serve_turn(worker: Worker, requests: Requests, write: Write) -> None:
    """A turn's inputs up, and its frames down, until it ends or the stream does. Errors: GpufleetError, a refusal."""
    ticket, wanted = await _first(worker, requests)
    stream = await worker.turning.open_soon(ticket, wanted)
    reader = asyncio.create_task(_read(worker, ticket.session, stream, requests))
    reader.add_done_callback(lambda _: stream.outbox.finish())
    try:
        while (message := await stream.outbox.take()) is not None:
            await write(message)
    finally:
        worker.turning.detach(ticket.session, stream)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
    if not reader.cancelled() and isinstance(problem := reader.exception(), GpufleetError):
        raise problem


async def _first(worker: Worker, requests: Requests) -> Any:
    try:
        async with asyncio.timeout(OPEN_S_MAX):
            first = await anext(requests, None)
    except TimeoutError:
        raise invalid("open", f"did not come within {OPEN_S_MAX:g} s") from None
    if first is None or first.WhichOneof("body") != "open":
        raise invalid("open", "must be the first message of a stream")
    return worker.ticket(first.open.ticket), first.open


async def _read(worker: Worker, session: str, stream: TurnStream, requests: Requests) -> None:
    """Take the client's messages until it sends no more, or another stream has the turn."""
    turning = worker.turning
    async for request in requests:
        held = turning.held_by(session, stream)
        if held is None:
            return
        match request.WhichOneof("body"):
            case "input":
                turning.add(held, request.input)
                if held.seat.inputs.is_full:
                    await turning.wait_for_room(held)
            case "shown":
                stream.sender.shown(request.shown.frame)
            case "still_here":
                turning.still_here(held)
            case "resized":
                turning.resize(held, request.resized)
            case "leave":
                turning.end(session, stream.epoch, End.LEFT)
                return
            case "open":
                raise invalid("open", "comes once, as the first message")
            case _:
                pass  # of a newer client
        if request.shown_frame:
            stream.sender.shown(request.shown_frame)
