"""What carries the stream of a turn to its worker: gRPC everywhere, a local socket where both are on one machine.

The messages are those of Inference.Stream either way, and so is the ticket that opens it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any, Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc import status_pb2
from gpufleet.v1 import inference_pb2, inference_pb2_grpc, sessions_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gpufleet.net import local_stream
from gpufleet.net.limits import MESSAGE_BYTES_MAX
from gpufleet.net.local_stream import LocalStream, Lost, NotProved, connect_local

log = logging.getLogger(__name__)

HEALTH_S_MAX = 2.0
"""How long a worker may take to say that it is well, before it counts as not to be reached."""

CERTIFICATE_REFUSED = "CERTIFICATE_VERIFY_FAILED"
"""What gRPC says of a server with a certificate that is not the one to be trusted."""

LOCAL_VARIABLE = "GPUFLEET_LOCAL_STREAMS"
"""`off` has a gateway reach every worker by gRPC, as it does those of other machines."""

Up = inference_pb2.StreamRequest
Down = inference_pb2.StreamResponse


class Unreachable(Exception):
    """The worker cannot be reached from here, and its health check failed, too."""


class Carrier(Protocol):
    """One stream of a turn."""

    async def write(self, message: Up) -> None:
        """Send a message, once there is room for it. Errors: Lost; what came before that is still read."""
        ...

    async def read(self) -> Down | None:
        """The next message; None once the worker has ended the stream. Errors: Lost."""
        ...

    async def explain(self) -> None:
        """Say in the log why a stream did not open. Errors: Unreachable."""
        ...

    def cancel(self) -> None:
        """End it at once: who reads is told so, or cancelled."""
        ...


class GrpcCarrier:
    """A call of Inference.Stream."""

    def __init__(self, channel: grpc.aio.Channel, grant: sessions_pb2.TurnGrant) -> None:
        self._channel = channel
        self._grant = grant
        self._call: Any = inference_pb2_grpc.InferenceStub(channel).Stream()

    async def write(self, message: Up) -> None:
        """See Carrier."""
        try:
            await self._call.write(message)
        except asyncio.InvalidStateError as problem:
            raise Lost(str(problem)) from None

    async def read(self) -> Down | None:
        """See Carrier."""
        try:
            message: Any = await self._call.read()
        except grpc.aio.AioRpcError as problem:
            raise Lost(problem.details()) from None
        return None if message is grpc.aio.EOF else message

    async def explain(self) -> None:
        """A refusal is the worker's word, else its health decides if it is reachable."""
        code = await self._call.code()
        if code is not grpc.StatusCode.UNAVAILABLE:
            log.info("a turn was not opened: %s", await self._call.details())
            return
        try:
            health: Any = health_pb2_grpc.HealthStub(self._channel)
            await health.Check(health_pb2.HealthCheckRequest(), timeout=HEALTH_S_MAX)
        except grpc.aio.AioRpcError as problem:
            raise Unreachable(_why_unreachable(problem.details() or "", self._grant)) from None

    def cancel(self) -> None:
        """See Carrier."""
        self._call.cancel()


class LocalCarrier:
    """A connection to the worker's local socket."""

    def __init__(self, stream: LocalStream) -> None:
        self._stream = stream
        self._why = "it hung up"

    async def write(self, message: Up) -> None:
        """See Carrier."""
        await self._stream.write(message.SerializeToString())

    async def read(self) -> Down | None:
        """See Carrier."""
        kind, data = await self._stream.read()
        try:
            if kind == local_stream.MESSAGE:
                return Down.FromString(data)
            status = status_pb2.Status.FromString(data)
        except DecodeError:
            raise Lost("what came is no message of a stream") from None
        if status.code:
            self._why = status.message
            raise Lost(status.message)
        return None

    async def explain(self) -> None:
        """See Carrier. One that has gone meanwhile is found to be so by the next stream, which goes by gRPC."""
        log.info("a turn was not opened: %s", self._why)

    def cancel(self) -> None:
        """See Carrier."""
        self._stream.abort()


async def local_carrier(grant: sessions_pb2.TurnGrant) -> LocalCarrier | None:
    """A stream to the worker of a grant on this machine; None where it is on another one, or has no such socket."""
    if not grant.local_key or os.environ.get(LOCAL_VARIABLE) == "off":
        return None
    try:
        return LocalCarrier(await connect_local(grant.local_key, MESSAGE_BYTES_MAX))
    except NotProved as problem:
        log.warning("the local socket of the worker at %s is left alone: %s", grant.endpoint, problem)
    except Lost as problem:
        log.debug("the worker at %s is not reached locally: %s", grant.endpoint, problem)
    return None


def _why_unreachable(said: str, grant: sessions_pb2.TurnGrant) -> str:
    if grant.certificate and CERTIFICATE_REFUSED in said:
        return "what answers there holds another certificate than the worker told the scheduler; nothing was said to it"
    return f"it is not reached from here: {said}"
