"""The settings of the gateway: the one table that flags, variables, gateway.toml and its template follow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpufleet.config.kinds import ADDRESSES, BOOLEAN, INTEGER, PATH, SIZE, TEXT, TEXTS
from gpufleet.config.settings import data_folder, section, setting
from gpufleet.config.shared_settings import LogSettings, MetricsSettings, event_loop, listening_conflicts
from gpufleet.net.addresses import Address

GATEWAY_PORT = 7860

GIB = 2**30

HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
"""A host name in small letters."""


def _is_network(text: str) -> bool:
    import ipaddress  # most programs that read settings do without it

    try:
        return ipaddress.ip_network(text) is not None
    except ValueError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayTlsSettings:
    """The gateway's own certificate, for browsers."""

    cert_file: Path | None = setting(None, "The gateway's certificate and its chain, PEM.", PATH, default_text="no TLS")
    key_file: Path | None = setting(
        None, "The private key of the certificate, PEM, of mode 0600.", PATH, default_text="no TLS"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimitSettings:
    """Bounds that keep one browser or one machine from taking everything."""

    people_max: int = setting(
        20_000,
        "So many sessions may be connected; further ones are told to come later.",
        INTEGER,
        low=1,
        high=1_000_000,
        reloadable=True,
    )
    people_per_address_max: int = setting(
        500,
        "So many of them may come from one address. Behind one of the proxies it is the one that the proxy names.",
        INTEGER,
        low=1,
        high=1_000_000,
        reloadable=True,
    )
    messages_per_second_max: int = setting(
        3_000,
        "A browser that sends more is disconnected.",
        INTEGER,
        low=100,
        high=1_000_000,
        reloadable=True,
    )
    upload_bytes_max: int = setting(
        10 * GIB,
        "The files of one request of the HTTP API may be so long together; they wait in the data folder.",
        SIZE,
        low=0,
        high=2**50,
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """`gpuctl gateway` and gateway.toml."""

    host: str = setting(
        "127.0.0.1",
        "Where to listen; 0.0.0.0 is every network, and needs [tls] or insecure = true.",
        TEXT,
    )
    port: int = setting(GATEWAY_PORT, "The port to listen on; 0 takes any free one.", INTEGER, low=0, high=65_535)
    grpc_port: int | None = setting(
        None,
        "The port on which served programs answer the Open Inference Protocol over gRPC, at the same host and with the "
        "same certificate; 0 takes any free one.",
        INTEGER,
        low=0,
        high=65_535,
        default_text="no gRPC is served",
    )
    scheduler: tuple[Address, ...] = setting(
        (Address("127.0.0.1"),),
        "The scheduler's address, or several of one team's, tried in turn.",
        ADDRESSES,
        variable="GPUCTL_SCHEDULER",
    )
    data: Path = data_folder("gateway", "The folder of the log; each gateway of a machine has its own.")
    gateway_id: str = setting(
        "",
        "The gateway's name, under which it joins by a token that is traded for a credential; unique in the team.",
        TEXT,
        default_text="the host name",
    )
    token_file: Path | None = setting(
        None,
        "The file with the gateway's token. Gateways that hold the same token know each other's people.",
        PATH,
        default_text="GPUCTL_TOKEN, or a scheduler's on this machine",
    )
    ca_file: Path | None = setting(
        None,
        "The authority that signed the certificates of the scheduler and the workers, PEM.",
        PATH,
        default_text="the system's authorities",
    )
    client_cert_file: Path | None = setting(
        None,
        "The gateway's own certificate with its key, PEM, of mode 0600, for a scheduler that asks for one.",
        PATH,
        default_text="none",
    )
    insecure: bool = setting(
        False,
        "Listen, and speak to other machines, without encryption. Only for networks you trust.",
        BOOLEAN,
    )
    origins: tuple[str, ...] = setting(
        (), 'Pages elsewhere that may connect, such as "https://lab.example".', TEXTS, reloadable=True
    )
    proxies: tuple[str, ...] = setting(
        (),
        "Addresses and networks of reverse proxies before this gateway, such as 127.0.0.1 or 10.0.0.0/8. Theirs alone "
        "are the X-Forwarded-For and X-Forwarded-Proto that it believes.",
        TEXTS,
        default_text="nobody is believed",
    )
    program_hosts: tuple[str, ...] = setting(
        ("localhost",),
        "Host names of this gateway below which each served program has one of its own, NAME.gpus.example of "
        '"gpus.example", and each port of a job. They must lead here, as all names below localhost do on the machine '
        "itself.",
        TEXTS,
        reloadable=True,
    )
    event_loop: str = event_loop()
    log: LogSettings = section(LogSettings, "The gateway's own log.")
    metrics: MetricsSettings = section(MetricsSettings, "Metrics for Prometheus; see docs/metrics.md.")
    tls: GatewayTlsSettings = section(GatewayTlsSettings, "Encryption, for browsers on other machines.")
    limits: GatewayLimitSettings = section(
        GatewayLimitSettings, "Bounds that keep one browser or one machine from taking everything."
    )

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Values that do not fit together."""
        tls = self.tls
        if self.grpc_port and self.grpc_port == self.port:
            yield "grpc_port", f"{self.grpc_port} is the port of the page: each needs one of its own"
        for host in self.program_hosts:
            if not HOST_NAME.fullmatch(host):
                yield "program_hosts", f"{host!r} is no host name in small letters, without a port"
        for proxy in self.proxies:
            if not _is_network(proxy):
                yield "proxies", f"{proxy!r} is no IP address and no network such as 10.0.0.0/8"
        yield from listening_conflicts(self.host, tls.cert_file, tls.key_file, self.metrics, is_insecure=self.insecure)
