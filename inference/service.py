"""What a worker serves: Inference, of which one call of Stream is one stream of a turn, health, reflection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
from gpufleet.v1 import inference_pb2, inference_pb2_grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from gpufleet.errors import GpufleetError, invalid
from gpufleet.net.addresses import Address
from gpufleet.net.channel import server_options
from gpufleet.net.decoding import DecodingInterceptor
from gpufleet.net.listening import listen
from gpufleet.net.reflection import serve_reflection
from gpufleet.net.status import to_status

from .encoding import ENCODINGS
from .turning import End, TurnStream
from .worker import READY, Worker

_log = logging.getLogger(__name__)

OPEN_S_MAX = 5.0
"""How long a stream may take to bring its ticket."""

REQUEST_BYTES_MAX = 64_000
"""No message up is longer: the longest holds 1,000 characters of text."""

Requests = AsyncIterator[inference_pb2.StreamRequest]


class InferenceService(inference_pb2_grpc.InferenceServicer):
    """Serves one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def GetModelInfo(self, request: Any, context: Any) -> inference_pb2.GetModelInfoResponse:
        """What is served; open to everybody."""
        answer = self._worker.info()
        answer.encodings.extend(ENCODINGS)
        return answer

    # It writes instead of yielding: a generator that is left while it is not waiting is closed only some time later.
    async def Stream(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self, requests: Requests, context: Any
    ) -> None:
        """One turn's inputs up, and its frames down."""
        try:
            ticket, wanted = await self._first(requests)
            stream = await self._worker.turning.open_soon(ticket, wanted)
        except GpufleetError as error:
            await context.abort_with_status(to_status(error))
            return
        reader = asyncio.create_task(self._read(ticket.session, stream, requests))
        reader.add_done_callback(lambda _: stream.outbox.finish())
        try:
            while (message := await stream.outbox.take()) is not None:
                await context.write(message)
        finally:
            self._worker.turning.detach(ticket.session, stream)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        if not reader.cancelled() and isinstance(problem := reader.exception(), GpufleetError):
            await context.abort_with_status(to_status(problem))

    async def _first(self, requests: Requests) -> Any:
        try:
            async with asyncio.timeout(OPEN_S_MAX):
                first = await anext(requests, None)
        except TimeoutError:
            raise invalid("open", f"did not come within {OPEN_S_MAX:g} s") from None
        if first is None or first.WhichOneof("body") != "open":
            raise invalid("open", "must be the first message of a stream")
        return self._worker.ticket(first.open.ticket), first.open

    async def _read(self, session: str, stream: TurnStream, requests: Requests) -> None:
        """Take the client's messages until it sends no more, or another stream has the turn."""
        turning = self._worker.turning
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


CALLS_MAX = 4_096
"""Calls at once; further ones are refused with RESOURCE_EXHAUSTED."""

_SERVICE = inference_pb2.DESCRIPTOR.services_by_name["Inference"]


class Server:
    """The gRPC server of one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._server = grpc.aio.server(
            interceptors=[DecodingInterceptor()],
            options=server_options(REQUEST_BYTES_MAX),
            maximum_concurrent_rpcs=CALLS_MAX,
        )
        inference_pb2_grpc.add_InferenceServicer_to_server(InferenceService(worker), self._server)
        self._health: Any = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue] (its stubs lack it)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        serve_reflection(self._server, _SERVICE)

    def listen(self, address: Address, credentials: grpc.ServerCredentials | None) -> int:
        """Bind to the address; answers its port. Errors: PORT_TAKEN, ADDRESS_INVALID."""
        return listen(self._server, address, credentials)

    async def start(self) -> None:
        """Serve. Until the model is loaded, health says NOT_SERVING and streams are refused."""
        await self.tell_health()
        await self._server.start()

    async def tell_health(self) -> None:
        """What grpc.health.v1 answers now: SERVING while the worker takes new turns."""
        is_ready = self._worker.state == READY
        status = health_pb2.HealthCheckResponse.SERVING if is_ready else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", _SERVICE.full_name):
            await self._health.set(name, status)

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, and end those that are open after the grace."""
        await self._server.stop(grace_s)
