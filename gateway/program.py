"""One run of the gateway: its port, its signals, and its end."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import uvicorn
from gpufleet.v1 import sessions_pb2

from gpufleet.config.gateway_settings import GatewaySettings
from gpufleet.config.live import Live
from gpufleet.errors import GpufleetError
from gpufleet.host.event_loop import running_loop_in_words
from gpufleet.host.facts import raise_open_files
from gpufleet.host.service_manager import ServiceManager
from gpufleet.net.addresses import Address, parse_address
from gpufleet.net.channel import Target
from gpufleet.net.http_server import QuietServer
from gpufleet.net.listening import bound
from gpufleet.telemetry.logs import ProgramLog, fields
from gpufleet.telemetry.metrics import Metrics, Readings
from gpufleet.telemetry.spans import Telemetry

from .app import Gateway
from .dashboard.serving import Dashboard
from .folder import GRPC_LISTENING_FILE, DataFolder
from .identity import Identities
from .measures import Measures
from .metrics import MetricsOutlet
from .open_inference.server import Server
from .options import credential_of
from .protocol import MESSAGE_BYTES_MAX
from .proxy.handover import Handover
from .sockets import Sockets

log = logging.getLogger(__name__)

BACKLOG = 2_048
"""Connections that may wait to be taken."""

SETTLE_PAUSE_S = 2.0
"""Between two tries to have a credential, while no scheduler answers."""

STOP_S_MAX = 3
"""How long connections may take to end once the gateway is told to stop."""


class Program:
    """Made inside the running loop. Raises what is wrong with the settings."""

    def __init__(
        self,
        live: Live[GatewaySettings],
        token: str,
        folder: DataFolder,
        program_log: ProgramLog,
        telemetry: Telemetry,
        metrics: Metrics,
    ) -> None:
        self._live = live
        self._folder = folder
        self._program_log = program_log
        self._service = ServiceManager()
        settings = live.now
        # What signs people's cookies follows from the token, which gateways share; calls are made as this one alone.
        self._credential = credential_of(settings)
        first, *others = settings.scheduler
        self._scheduler = replace(self._target(first, self._credential.token), others=tuple(others))
        dashboard = Dashboard(self._scheduler, token)
        self._gateway = Gateway(
            self._scheduler,
            Identities(token),
            self._worker_target,
            dashboard,
            Handover(token),
            lambda: live.now,
            telemetry,
            Measures(metrics),
        )
        self._metrics = MetricsOutlet(settings, metrics, self._scheduler, self._readings)
        self._sockets = Sockets(lambda: live.now.limits, self._gateway.choose, live.now.proxies)
        self._listening = bound(Address(settings.host, settings.port), backlog=BACKLOG)
        self._grpc: Server | None = None
        if settings.grpc_port is not None:
            gateway = self._gateway
            self._grpc = Server(settings, settings.grpc_port, gateway.programs, lambda: gateway.is_connected)
            gateway.beside = partial(self._grpc.running, STOP_S_MAX)

    def _readings(self) -> Readings:
        gateway = self._gateway
        return {
            "gpufleet.people": [(gateway.people, {})],
            "gpufleet.connected": [(float(gateway.is_connected), {})],
            **gateway.requests_read(),
        }

    def _target(self, address: Address, token: Callable[[], str] | None) -> Target:
        settings = self._live.now
        return Target(
            address=address,
            token=token,
            ca_file=settings.ca_file,
            client_cert_file=settings.client_cert_file,
            is_insecure=settings.insecure,
        )

    def _worker_target(self, worker: sessions_pb2.TurnGrant | sessions_pb2.WorkerInfo) -> Target:
        # A worker wants no token but the turn's own ticket, or the replica's key.
        target = self._target(parse_address(worker.endpoint), None)
        return replace(target, certificate=worker.certificate.encode(), client_cert_file=None)

    async def _settle(self) -> None:
        """Have a credential of its own where its token is for that; tried until a scheduler says so or answers no."""
        while not self._credential.is_settled:
            try:
                await self._credential.settle([self._scheduler])
            except (GpufleetError, OSError) as problem:
                log.error("this gateway does not join: %s", problem)
                return
            if not self._credential.is_settled:
                await asyncio.sleep(SETTLE_PAUSE_S)

    async def run(self) -> None:
        """Serve until told to stop."""
        settings = self._live.now
        # What every connection costs at info level is told at debug level, by ourselves.
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        raise_open_files()
        config = uvicorn.Config(
            self._gateway.app(),
            ssl_certfile=settings.tls.cert_file,
            ssl_keyfile=settings.tls.key_file,
            http=self._sockets.http,  # type: ignore[arg-type]
            ws=self._sockets.websocket,  # type: ignore[arg-type]
            ws_max_size=MESSAGE_BYTES_MAX,
            # Frames are encoded pictures: compressing them again costs time and saves nothing.
            ws_per_message_deflate=False,
            ws_ping_interval=None,
            access_log=False,
            log_config=None,
            # Not uvicorn's own default, which is this machine: whoever is on it could say to come from anywhere.
            forwarded_allow_ips=list(settings.proxies),
            timeout_graceful_shutdown=STOP_S_MAX,
        )
        server = QuietServer(config)
        address = Address(settings.host, self._listening.getsockname()[1])
        with self._signals(server):
            serving = asyncio.create_task(server.serve(sockets=[self._listening]))
            if self._grpc is not None:
                self._folder.tell_listening(self._grpc.address, GRPC_LISTENING_FILE)
            self._folder.tell_listening(address)
            log.info("listening on %s", address, extra=fields(event_loop=running_loop_in_words()))
            settling = asyncio.create_task(self._settle(), name="credential")
            telling = asyncio.create_task(self._metrics.run(), name="metrics")
            self._service.ready(f"listening on {address}")
            watching = asyncio.create_task(self._service.watch(), name="service-manager")
            beside = (telling, settling, watching)
            try:
                await serving
            finally:
                self._service.stopping()
                for task in beside:
                    task.cancel()
                await asyncio.gather(*beside, return_exceptions=True)

    @contextmanager
    def _signals(self, server: uvicorn.Server) -> Iterator[None]:
        loop = asyncio.get_running_loop()

        def stop() -> None:
            log.info("leaving; %d people are told to connect again", self._gateway.people)
            self._gateway.dashboard.leave()
            server.should_exit = True

        numbers = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: self._reload}
        for number, handler in numbers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _reload(self) -> None:
        try:
            reloaded = self._live.reload()
        except GpufleetError as error:
            log.error("the settings stay as they are: %s", error.message)
            return
        self._program_log.apply(self._live.now.log)
        applied, waiting = "; ".join(map(str, reloaded.applied)), "; ".join(map(str, reloaded.waiting))
        log.info(
            "settings read again", extra=fields(applied=applied or "nothing", after_a_restart=waiting or "nothing")
        )
