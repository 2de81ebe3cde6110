"""Starts the gateway: `python -P -m gpufleet.gateway`, or `gpuctl gateway`.

Exit codes: 0 stopped, 1 it cannot start.
"""

from __future__ import annotations

import argparse
import logging
import socket
import sys
from collections.abc import Sequence

from gpufleet.addresses import Address, parse_address
from gpufleet.channel import Target
from gpufleet.errors import GpufleetError, Reason, as_lines
from gpufleet.listening import why_not
from gpufleet.log_settings import LogSettings
from gpufleet.logs import ProgramLog
from gpufleet.tls import check_protection

from .options import parser, schedulers_of, token_of

log = logging.getLogger(__name__)

BACKLOG = 2_048
"""Connections that may wait to be taken."""

STOP_S_MAX = 3
"""How long connections may take to end once the gateway is told to stop."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; answers its exit code."""
    given = parser().parse_args(arguments)
    settings = LogSettings(level="debug" if given.verbose else given.log_level, format=given.log_format)
    try:
        with ProgramLog("gateway", settings, None):
            _serve(given)
    except GpufleetError as error:
        print(as_lines(error), file=sys.stderr)
        return 1
    return 0


def _serve(given: argparse.Namespace) -> None:
    try:
        import uvicorn

        from .app import Gateway
        from .identity import Identities
        from .protocol import MESSAGE_BYTES_MAX
    except ImportError as problem:
        raise GpufleetError(
            Reason.EXTRA_MISSING,
            f"a gateway needs {problem.name}",
            next_step="Install it with: pip install 'gpufleet[gateway]'",
        ) from None
    has_tls = given.tls_cert is not None and given.tls_key is not None
    check_protection(given.host, has_tls=has_tls, is_insecure=given.insecure)
    token = token_of(given)

    def scheduler(address: Address) -> Target:
        return Target(address=address, token=token, ca_file=given.ca_file, is_insecure=given.insecure)

    def worker(endpoint: str) -> Target:
        # A worker wants no token but the turn's own ticket.
        return Target(address=parse_address(endpoint), ca_file=given.ca_file, is_insecure=given.insecure)

    gateway = Gateway(
        [scheduler(address) for address in schedulers_of(given)], Identities(token), worker, frozenset(given.origin)
    )
    listening = _listen(given.host, given.port)
    log.info("listening on %s", Address(given.host, listening.getsockname()[1]))
    config = uvicorn.Config(
        gateway.app(),
        ssl_certfile=given.tls_cert,
        ssl_keyfile=given.tls_key,
        ws="websockets-sansio",
        ws_max_size=MESSAGE_BYTES_MAX,
        # Frames are encoded pictures: compressing them again costs time and saves nothing.
        ws_per_message_deflate=False,
        ws_ping_interval=None,
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=STOP_S_MAX,
    )
    uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as problem:
        listening.close()
        known = why_not(Address(host, port))
        raise known or GpufleetError(Reason.ADDRESS_INVALID, f"{host}:{port}: {problem.strerror}") from None
    return listening


if __name__ == "__main__":
    sys.exit(main())
