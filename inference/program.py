"""One run of a worker: what its flags say, its server, and its line to the scheduler."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import grpc
from gpufleet.v1 import sessions_pb2

from gpufleet.addresses import Address, is_loopback, parse_address
from gpufleet.channel import Target
from gpufleet.errors import GpufleetError, invalid
from gpufleet.machine_facts import first_installed
from gpufleet.metrics import OFF, Metrics
from gpufleet.routes import address_toward, is_every_address
from gpufleet.telemetry import Telemetry
from gpufleet.tls import check_protection, server_credentials

from .link import Link
from .options import device_number, schedulers_of, secret_of, token_of, wanted_of
from .server import Server
from .worker import Described, Worker

LEAVE_S_MAX = 3.0
"""How long the last words to the scheduler may take; all of it where none is connected."""

STREAMS_END_S_MAX = 1.0
"""How long streams may take to hear of their end."""

_log = logging.getLogger(__name__)


class Program:
    """Made inside the running loop. Raises what is wrong with the flags."""

    def __init__(self, given: argparse.Namespace, traces: Telemetry, metrics: Metrics = OFF) -> None:
        self._given = given
        self._schedulers = schedulers_of(given)
        if self._schedulers:
            token_of(given)  # without one no scheduler would ever take it
        secret, self._is_launched = secret_of(given)
        wanted = wanted_of(given)
        self._device = device_number(wanted)
        self._credentials = _credentials(given.tls_cert, given.tls_key)
        self._certificate = ""
        # Only a scheduler can tell gateways whom to trust.
        self._certifies_itself = self._credentials is None and bool(self._schedulers) and not given.insecure
        has_tls = self._credentials is not None or self._certifies_itself
        check_protection(given.host, has_tls=has_tls, is_insecure=given.insecure)
        version = first_installed(["gpufleet"])
        self.worker = Worker(
            Described(wanted=wanted, name=given.name, secret=secret, version=version), traces=traces, metrics=metrics
        )
        self._endpoint = ""

    def _own_credentials(self, host: str) -> grpc.ServerCredentials | None:
        """A certificate made for this start, which gateways are told; none on loopback."""
        if is_loopback(self._given.host) or not self._certifies_itself:
            return self._credentials
        from gpufleet.certificates import make_own_certificate

        made = make_own_certificate(host)
        self._certificate = made.certificate.decode()
        return grpc.ssl_server_credentials([(made.key, made.certificate)])

    def stop(self) -> None:
        """End its turns, and then the program."""
        _log.info("stopping")
        self.worker.stop()

    async def run(self) -> GpufleetError | None:
        """Serve until stopped, drained or failed; answers why it failed."""
        given, worker = self._given, self.worker
        server = Server(worker)
        reached = await self._reached()
        address = server.listen(given.host, given.port, self._device, self._own_credentials(reached.host))
        self._endpoint = str(replace(reached, port=reached.port or address.port))
        await server.start()
        _log.info("listening on %s, start %s", address, worker.described.start)
        if self._certificate:
            _log.info("gateways are told the certificate that was made for this start")
        if not self._schedulers:
            _log.info("standing alone: whoever can sign a ticket is admitted")
        link = self._link() if self._schedulers else None
        linked = asyncio.create_task(link.run()) if link is not None else None
        health = asyncio.create_task(_follow_health(server, worker))
        try:
            await worker.run()
        finally:
            if link is not None:
                await link.leave(LEAVE_S_MAX)
            for task in (linked, health):
                if task is not None:
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task
            await server.stop(STREAMS_END_S_MAX)
        return worker.failure

    async def _reached(self) -> Address:
        """Where gateways reach this worker; port 0 where it is the one that it listens on."""
        given = self._given
        if given.advertise is not None:
            return parse_address(given.advertise, 0)
        if is_every_address(given.host) and self._schedulers:
            return Address(await address_toward(self._schedulers), 0)
        return Address(given.host, 0)

    def _link(self) -> Link:
        return Link(self.worker, self._schedulers, target_of=self._target_of, hello=self._hello)

    def _target_of(self, address: Address) -> Target:
        given = self._given
        return Target(address=address, token=token_of(given), ca_file=given.ca_file, is_insecure=given.insecure)

    def _hello(self) -> sessions_pb2.WorkerHello:
        described = self.worker.described
        return sessions_pb2.WorkerHello(
            model=described.model,
            endpoint=self._endpoint,
            job_id=int(os.environ.get("GPUFLEET_JOB_ID", "0")) if self._is_launched else 0,
            attempt=int(os.environ.get("GPUFLEET_ATTEMPT", "0")) if self._is_launched else 0,
            ticket_secret=b"" if self._is_launched else described.secret,
            worker_start=described.start,
            entry_point=described.wanted.entry_point,
            version=described.version,
            certificate=self._certificate,
        )


def _credentials(cert: Path | None, key: Path | None) -> grpc.ServerCredentials | None:
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise invalid("--tls-cert", "and --tls-key belong together; one of them is missing")
    return server_credentials(cert, key)


async def _follow_health(server: Server, worker: Worker) -> None:
    state = None
    while True:
        if worker.state != state:
            state = worker.state
            await server.tell_health()
        await worker.state_changed.wait()
        worker.state_changed.clear()
