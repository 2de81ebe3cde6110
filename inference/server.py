"""What a worker serves: Inference, health, reflection."""

from __future__ import annotations

from typing import Any

import grpc.aio
from gpufleet.v1 import inference_pb2, inference_pb2_grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from gpufleet.addresses import Address
from gpufleet.channel import server_options
from gpufleet.errors import GpufleetError, Reason
from gpufleet.listening import listen

from .service import REQUEST_BYTES_MAX, InferenceService
from .worker import READY, Worker

PORT_FIRST = 8001
PORTS_TRIED_MAX = 64
"""A worker without a port of its own listens on the first free one of so many, from 8001 + the device's number."""

CALLS_MAX = 4_096
"""Calls at once; further ones are refused with RESOURCE_EXHAUSTED."""

_SERVICE = inference_pb2.DESCRIPTOR.services_by_name["Inference"]


class Server:
    """The gRPC server of one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._server = grpc.aio.server(options=server_options(REQUEST_BYTES_MAX), maximum_concurrent_rpcs=CALLS_MAX)
        inference_pb2_grpc.add_InferenceServicer_to_server(InferenceService(worker), self._server)
        self._health: Any = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue] (its stubs lack it)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (_SERVICE.full_name, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    def listen(self, host: str, port: int | None, device: int, credentials: grpc.ServerCredentials | None) -> Address:
        """Bind to the port, or to the first free one without; answers where. Errors: PORT_TAKEN, ADDRESS_INVALID."""
        if port is not None:
            return Address(host, listen(self._server, Address(host, port), credentials))
        first = PORT_FIRST + device
        for candidate in range(first, first + PORTS_TRIED_MAX):
            try:
                return Address(host, listen(self._server, Address(host, candidate), credentials))
            except GpufleetError as error:
                if error.reason is not Reason.PORT_TAKEN:
                    raise
        raise GpufleetError(
            Reason.PORT_TAKEN,
            f"the ports {first} to {first + PORTS_TRIED_MAX - 1} are all taken",
            next_step="Choose one with --port.",
        )

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
