"""What a worker serves: Inference, of which one call of Stream is one stream of a turn, health, reflection.

The same streams are served on its local socket, for gateways of this machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc import status_pb2
from gpufleet.v1 import inference_pb2, inference_pb2_grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from gpufleet.errors import GpufleetError, invalid
from gpufleet.net.addresses import Address
from gpufleet.net.channel import server_options
from gpufleet.net.decoding import DecodingInterceptor
from gpufleet.net.listening import listen
from gpufleet.net.local_stream import STATUS, LocalListener, LocalStream, Lost
from gpufleet.net.reflection import serve_reflection
from gpufleet.net.status import to_proto, to_status

from .encoding import ENCODINGS
from .streaming import serve_turn
from .worker import READY, Worker

REQUEST_BYTES_MAX = 64_000
"""No message up is longer: the longest holds 1,000 characters of text."""


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
        self, requests: AsyncIterator[inference_pb2.StreamRequest], context: Any
    ) -> None:
        """One turn's inputs up, and its frames down."""
        try:
            await serve_turn(self._worker, requests, context.write)
        except GpufleetError as error:
            await context.abort_with_status(to_status(error))


CALLS_MAX = 4_096
"""Calls at once; further ones are refused with RESOURCE_EXHAUSTED."""

_SERVICE = inference_pb2.DESCRIPTOR.services_by_name["Inference"]


class LocalService:
    """The same streams without gRPC: a message is one of Stream's, and the last one is how it ended."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def serve(self, stream: LocalStream) -> None:
        """One stream of a turn, until it ends. Errors: Lost."""

        async def write(message: inference_pb2.StreamResponse) -> None:
            await stream.write(message.SerializeToString())

        status = status_pb2.Status()
        try:
            await serve_turn(self._worker, _requests(stream), write)
        except GpufleetError as error:
            status = to_proto(error)
        await stream.write(status.SerializeToString(), STATUS)


async def _requests(stream: LocalStream) -> AsyncIterator[inference_pb2.StreamRequest]:
    """What comes, until the other side hangs up."""
    while True:
        try:
            _, data = await stream.read()
        except Lost:
            return
        try:
            yield inference_pb2.StreamRequest.FromString(data)
        except DecodeError:
            raise invalid("message", "is no StreamRequest") from None


class Server:
    """The servers of one worker: gRPC's, and the local socket."""

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
        self._local = LocalListener(
            LocalService(worker).serve, message_bytes_max=REQUEST_BYTES_MAX, streams_max=CALLS_MAX
        )

    def listen(self, address: Address, credentials: grpc.ServerCredentials | None) -> int:
        """Bind to the address; answers its port. Errors: PORT_TAKEN, ADDRESS_INVALID."""
        return listen(self._server, address, credentials)

    async def start(self) -> None:
        """Serve. Until the model is loaded, health says NOT_SERVING and streams are refused."""
        await self.tell_health()
        await self._server.start()

    async def listen_locally(self) -> bytes:
        """Serve streams on a local socket, too; answers its public key, or nothing where there is none."""
        return await self._local.listen()

    async def tell_health(self) -> None:
        """What grpc.health.v1 answers now: SERVING while the worker takes new turns."""
        is_ready = self._worker.state == READY
        status = health_pb2.HealthCheckResponse.SERVING if is_ready else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", _SERVICE.full_name):
            await self._health.set(name, status)

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, and end those that are open after the grace."""
        await asyncio.gather(self._local.stop(grace_s), self._server.stop(grace_s))
