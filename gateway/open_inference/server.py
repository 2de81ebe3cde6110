"""Where the protocol is served: a port of its own beside the gateway's, with health and reflection."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from gpufleet.config.gateway_settings import GatewaySettings
from gpufleet.net.addresses import Address
from gpufleet.net.channel import server_options
from gpufleet.net.decoding import DecodingInterceptor
from gpufleet.net.listening import listen
from gpufleet.net.reflection import serve_reflection
from gpufleet.net.tls import server_credentials

from ..proxy.serving import Proxy
from .room import CALLS_MAX, CONNECTION_CALLS_MAX, MESSAGE_BYTES_MAX
from .service import SERVICE, OpenInference

log = logging.getLogger(__name__)

FLAG = "--grpc-port"


def channel_options() -> dict[str, Any]:
    """Options of the listening server, by name."""
    return dict(server_options(MESSAGE_BYTES_MAX)) | {
        "grpc.max_send_message_length": 2 * MESSAGE_BYTES_MAX,
        "grpc.max_concurrent_streams": CONNECTION_CALLS_MAX,
        # By default gRPC cancels calls by chance once 1,000 have come that the loop has not begun, without a word why.
        "grpc.server.max_pending_requests": CALLS_MAX,
        "grpc.server.max_pending_requests_hard_limit": CALLS_MAX,
    }


class Server:
    """Made inside the running loop, which it listens in at once; `running` answers. Raises PORT_TAKEN, ADDRESS_INVALID.

    Keepalive is as at the scheduler (gpufleet/net/channel.py): a peer that is gone is noticed within 30 s.
    """

    def __init__(self, settings: GatewaySettings, port: int, proxy: Proxy, is_ready: Callable[[], bool]) -> None:
        self._server = grpc.aio.server(
            interceptors=[DecodingInterceptor()],
            options=list(channel_options().items()),
            maximum_concurrent_rpcs=CALLS_MAX,
        )
        tls = settings.tls
        credentials = None
        if tls.cert_file is not None and tls.key_file is not None:
            credentials = server_credentials(tls.cert_file, tls.key_file)
        port = listen(self._server, Address(settings.host, port), credentials, flag=FLAG)
        self.address = Address(settings.host, port)
        self.service = OpenInference(proxy, is_ready, str(self.address), is_secure=credentials is not None)
        self._health = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue] (its stubs lack it)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        serve_reflection(self._server, SERVICE)
        self._server.add_generic_rpc_handlers(tuple(self.service.handlers()))

    @asynccontextmanager
    async def running(self, stop_s_max: float) -> AsyncIterator[None]:
        """Answer as long as it lasts; calls that are open at its end have so long to end."""
        await self._server.start()
        for name in ("", SERVICE.full_name):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        log.info("the Open Inference Protocol is answered over gRPC at %s", self.address)
        try:
            yield
        finally:
            await self._health.enter_graceful_shutdown()
            await self._server.stop(stop_s_max)
