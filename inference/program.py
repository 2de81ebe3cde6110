"""One run of a worker: what its flags say, its server, and its line to the scheduler."""

from __future__ import annotations

import argparse
import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import grpc

from gpufleet.errors import GpufleetError
from gpufleet.host.event_loop import running_loop_in_words
from gpufleet.net.addresses import Address
from gpufleet.net.tls import server_credentials
from gpufleet.telemetry.metrics import OFF, Metrics
from gpufleet.telemetry.spans import Telemetry

from .joining import Joining, run_linked
from .options import device_number, wanted_of
from .service import Server
from .worker import Described, Worker

if TYPE_CHECKING:
    from gpufleet.net.certificates import OwnCertificate

STREAMS_END_S_MAX = 1.0
"""How long streams may take to hear of their end."""

_log = logging.getLogger(__name__)


class Program:
    """Made inside the running loop. Raises what is wrong with the flags."""

    def __init__(self, given: argparse.Namespace, traces: Telemetry, metrics: Metrics = OFF) -> None:
        self._given = given
        self._joining = joining = Joining(given)
        wanted = wanted_of(given)
        self._device = device_number(wanted)
        described = Described(wanted=wanted, name=given.name, secret=joining.secret, version=joining.version)
        self.worker = Worker(described, traces=traces, metrics=metrics)

    def stop(self) -> None:
        """End its turns, and then the program."""
        _log.info("stopping")
        self.worker.stop()

    async def run(self) -> GpufleetError | None:
        """Serve until stopped, drained or failed; answers why it failed."""
        worker, joining, described = self.worker, self._joining, self.worker.described
        server = Server(worker)
        address = await joining.listen(self._device, lambda port, own: server.listen(self._at(port), self._tls(own)))
        await server.start()
        joining.local_key = await server.listen_locally()
        _log.info("listening on %s, start %s; event loop %s", address, described.start, running_loop_in_words())
        if joining.certificate:
            _log.info("gateways are told the certificate that was made for this start")
        if not joining.schedulers:
            _log.info("standing alone: whoever can sign a ticket is admitted")
        link = joining.link(worker, model=described.model, start=described.start)
        health = asyncio.create_task(_follow_health(server, worker))
        try:
            await run_linked(worker.run(), link)
        finally:
            health.cancel()
            with suppress(asyncio.CancelledError):
                await health
            await server.stop(STREAMS_END_S_MAX)
        return worker.failure

    def _at(self, port: int) -> Address:
        return Address(self._given.host, port)

    def _tls(self, own: OwnCertificate | None) -> grpc.ServerCredentials | None:
        if own is not None:
            return grpc.ssl_server_credentials([(own.key, own.certificate)])
        given = self._given
        return server_credentials(given.tls_cert, given.tls_key) if self._joining.has_files else None


async def _follow_health(server: Server, worker: Worker) -> None:
    state = None
    while True:
        if worker.state != state:
            state = worker.state
            await server.tell_health()
        await worker.state_changed.wait()
        worker.state_changed.clear()
