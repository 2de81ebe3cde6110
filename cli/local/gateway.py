"""The gateway of `up`: where it listens, whether it is well, and where people find its page."""

from __future__ import annotations

import os
import socket
import ssl
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ipaddress import ip_address

from gpufleet.config.gateway_settings import GATEWAY_PORT, GatewaySettings
from gpufleet.config.merged import load_program
from gpufleet.config.paths import program_config_file
from gpufleet.net.addresses import Address, is_loopback, parse_address

HEALTH_S_MAX = 5.0
PORT_MAX = 65_535
ELSEWHERE = ("192.0.2.1", 9)
"""An address that nobody has (RFC 5737): the way there tells this machine's own address, and nothing is sent."""


@dataclass(frozen=True)
class Gateway:
    """The gateway that `up` was asked for."""

    host: str = "127.0.0.1"
    port: int = GATEWAY_PORT
    given_grpc_port: int | None = None
    """None: that of gateway.toml, or the one after the page's."""

    is_insecure: bool = False

    @property
    def flags(self) -> list[str]:
        """What its command line says of it."""
        insecure = ["--insecure"] if self.is_insecure else []
        return ["--host", self.host, "--port", str(self.port), "--grpc-port", str(self.grpc_port), *insecure]

    @cached_property
    def grpc_port(self) -> int:
        """Where it answers over gRPC; 0 takes a free port."""
        if self.given_grpc_port is not None:
            return self.given_grpc_port
        if self.settings.grpc_port is not None:
            return self.settings.grpc_port
        return self.port + 1 if 0 < self.port < PORT_MAX else 0

    @cached_property
    def settings(self) -> GatewaySettings:
        """What it will start with, gateway.toml included. Raises CONFIG_INVALID, before anything is started."""
        flags = {"host": self.host, "port": str(self.port), "insecure": self.is_insecure or None}
        if self.given_grpc_port is not None:
            flags["grpc_port"] = str(self.given_grpc_port)
        file = program_config_file("gateway")
        return load_program(
            GatewaySettings, "gateway", flags=flags, environment=os.environ, file=file, file_is_named=False
        ).settings

    @property
    def has_tls(self) -> bool:
        """Whether browsers speak TLS to it."""
        return self.settings.tls.cert_file is not None

    def is_well(self, listens_at: str) -> bool:
        """Whether it answers, and hears the scheduler."""
        where = parse_address(listens_at)
        try:
            return status_of(_reachable(where.host), where.port, has_tls=self.has_tls) == HTTPStatus.OK
        except (OSError, HTTPException):
            return False

    def shown(self, listens_at: str) -> str:
        """HOST:PORT as people of this machine write it."""
        where = parse_address(listens_at)
        return str(Address(_shown(where.host), where.port))

    def pages(self, listens_at: str) -> list[str]:
        """Where its page is, for this machine first; and, where it listens to every network, for the others."""
        where = parse_address(listens_at)
        hosts = [_shown(where.host)]
        if _is_any(where.host):
            hosts += _own_addresses()
        scheme = "https" if self.has_tls else "http"
        return [f"{scheme}://{Address(host, where.port)}" for host in hosts]


def status_of(host: str, port: int, *, has_tls: bool) -> int:
    """The HTTP status by which a gateway says how it is. Errors: OSError, HTTPException."""
    connection = HTTPConnection(host, port, timeout=HEALTH_S_MAX)
    if has_tls:
        # Nothing secret is sent, only whether it answers counts: its certificate is for other names than this one.
        context = ssl._create_unverified_context()
        connection = HTTPSConnection(host, port, timeout=HEALTH_S_MAX, context=context)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status
    finally:
        connection.close()


def _is_any(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def _shown(host: str) -> str:
    return "localhost" if is_loopback(host) or _is_any(host) else host


def _reachable(host: str) -> str:
    if _is_any(host):
        return "::1" if ":" in host else "127.0.0.1"
    return host


def _own_addresses() -> list[str]:
    """This machine's address in the network that leads outside; none where there is no such network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(ELSEWHERE)
            host = str(probe.getsockname()[0])
        except OSError:
            return []
    return [] if is_loopback(host) else [host]
