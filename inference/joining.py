"""How a worker joins its fleet, whatever it serves: its secret, where it is reached and by which TLS, its hello."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpufleet.v1 import sessions_pb2

from gpufleet.config.paths import state_dir
from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.host.facts import first_installed
from gpufleet.net.addresses import Address, is_loopback, parse_address
from gpufleet.net.channel import Target
from gpufleet.net.program_credential import ProgramCredential
from gpufleet.net.routes import address_toward, is_every_address
from gpufleet.net.tls import check_protection, server_context

from .link import Link, LinkedWorker
from .options import schedulers_of, secret_of, token_of

if TYPE_CHECKING:
    from gpufleet.net.certificates import OwnCertificate

_log = logging.getLogger(__name__)

PORT_FIRST = 8001
PORTS_TRIED_MAX = 64
"""A worker without a port of its own listens on the first free one of so many, from 8001 + its device's number."""

LEAVE_S_MAX = 3.0
"""How long the last words to the scheduler may take; all of it where none is connected."""


class Joining:
    """What the flags say of a worker's place in its fleet. Raises what is wrong with them.

    `secret` signs the tickets of this start; `is_launched`: the scheduler has it already, from the launch.
    """

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self.schedulers = schedulers_of(given)
        if self.schedulers:
            token_of(given)  # without one no scheduler would ever take it
        self.secret, self.is_launched = secret_of(given)
        self._credential: ProgramCredential | None = None
        self._problem = ""
        self.version = first_installed(["gpufleet"])
        self.endpoint = ""
        self.certificate = ""
        self.local_key = b""
        """The public key of its local socket, where it has one."""
        self.has_files = _has_files(given)
        if self.has_files:
            server_context(given.tls_cert, given.tls_key)
        # Only a scheduler can tell gateways whom to trust.
        self._certifies_itself = not self.has_files and bool(self.schedulers) and not given.insecure
        has_tls = self.has_files or self._certifies_itself
        check_protection(given.host, has_tls=has_tls, is_insecure=given.insecure)

    async def listen(self, device: int, listen: Callable[[int, OwnCertificate | None], int]) -> Address:
        """Listen on the port that was named, or on the first free one; answers where.

        `listen` takes the port, and the certificate to make known where the worker has to make its own; it answers the
        port. Errors: PORT_TAKEN, ADDRESS_INVALID.
        """
        given = self._given
        reached = await self._reached()
        own = self._own_certificate(reached.host)
        address = Address(given.host, _first_free(given.port, device, lambda port: listen(port, own)))
        self.endpoint = str(replace(reached, port=reached.port or address.port))
        return address

    def link(self, worker: LinkedWorker, *, model: str, start: str) -> Link | None:
        """The line to the scheduler; None for a worker that stands alone."""

        def hello() -> sessions_pb2.WorkerHello:
            return sessions_pb2.WorkerHello(
                model=model,
                endpoint=self.endpoint,
                job_id=int(os.environ.get("GPUFLEET_JOB_ID", "0")) if self.is_launched else 0,
                attempt=int(os.environ.get("GPUFLEET_ATTEMPT", "0")) if self.is_launched else 0,
                ticket_secret=b"" if self.is_launched else self.secret,
                worker_start=start,
                certificate=self.certificate,
                local_key=self.local_key,
                worker_version=self.version,
            )

        if not self.schedulers:
            return None
        if not self.is_launched:
            self._credential = self._credential_of(model)
        return Link(worker, self.schedulers, target_of=self._target_of, hello=hello, before=self._settle)

    def _credential_of(self, model: str) -> ProgramCredential:
        """What a worker by hand proves itself by, kept in this account's folder under the worker's name."""
        given = self._given
        device = str(getattr(given, "device", "") or "0").removeprefix("cuda:")
        name = given.worker_id or f"{socket.gethostname()}-{model}-{device}"
        return ProgramCredential(state_dir("worker") / f"{name}.token", name, lambda: token_of(given), model)

    async def _settle(self) -> None:
        """Have a credential of its own, where its token is for that. What a scheduler refuses is told by the log."""
        credential = self._credential
        if credential is not None and not credential.is_settled:
            try:
                await credential.settle([self._target_of(address) for address in self.schedulers])
            except (GpufleetError, OSError) as problem:
                if str(problem) != self._problem:
                    self._problem = str(problem)
                    _log.error("this worker does not join: %s", problem)

    async def _reached(self) -> Address:
        """Where gateways reach this worker; port 0 where it is the one that it listens on."""
        given = self._given
        if given.advertise is not None:
            return parse_address(given.advertise, 0)
        if is_every_address(given.host) and self.schedulers:
            return Address(await address_toward(self.schedulers), 0)
        return Address(given.host, 0)

    def _own_certificate(self, host: str) -> OwnCertificate | None:
        """A certificate made for this start, which gateways are told; none on loopback."""
        if is_loopback(self._given.host) or not self._certifies_itself:
            return None
        from gpufleet.net.certificates import make_own_certificate

        made = make_own_certificate(host)
        self.certificate = made.certificate.decode()
        return made

    def _target_of(self, address: Address) -> Target:
        given = self._given
        token = token_of(given) if self._credential is None else self._credential.token()
        return Target(
            address=address,
            token=token,
            ca_file=given.ca_file,
            client_cert_file=given.client_cert_file,
            is_insecure=given.insecure,
        )


async def run_linked(life: Coroutine[Any, Any, None], link: Link | None) -> None:
    """Live a worker's life with its line to the scheduler, which then hears how it ended."""
    linked = asyncio.create_task(link.run()) if link is not None else None
    try:
        await life
    finally:
        if link is not None and linked is not None:
            await link.leave(LEAVE_S_MAX)
            linked.cancel()
            with suppress(asyncio.CancelledError):
                await linked


def _has_files(given: argparse.Namespace) -> bool:
    if (given.tls_cert is None) != (given.tls_key is None):
        raise invalid("--tls-cert", "and --tls-key belong together; one of them is missing")
    return given.tls_cert is not None


def _first_free(port: int | None, device: int, listen: Callable[[int], int]) -> int:
    if port is not None:
        return listen(port)
    first = PORT_FIRST + device
    for candidate in range(first, first + PORTS_TRIED_MAX):
        try:
            return listen(candidate)
        except GpufleetError as error:
            if error.reason is not Reason.PORT_TAKEN:
                raise
    raise GpufleetError(
        Reason.PORT_TAKEN,
        f"the ports {first} to {first + PORTS_TRIED_MAX - 1} are all taken",
        next_step="Choose one with --port.",
    )
