"""The settings of the gateway: the one table that flags, variables, gateway.toml and its template follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpufleet.addresses import Address
from gpufleet.kinds import ADDRESSES, BOOLEAN, INTEGER, PATH, TEXT, TEXTS
from gpufleet.listening_settings import certificate_conflicts, host_conflicts
from gpufleet.log_settings import LogSettings
from gpufleet.metrics_settings import MetricsSettings
from gpufleet.paths import state_dir
from gpufleet.settings import computed_setting, section, setting

GATEWAY_PORT = 7860


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
        "So many of them may come from one address. Behind a proxy on this machine it is the one that the proxy names.",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """`gpuctl gateway` and gateway.toml."""

    host: str = setting(
        "127.0.0.1",
        "Where to listen; 0.0.0.0 is every network, and needs [tls] or insecure = true.",
        TEXT,
    )
    port: int = setting(GATEWAY_PORT, "The port to listen on; 0 takes any free one.", INTEGER, low=0, high=65_535)
    scheduler: tuple[Address, ...] = setting(
        (Address("127.0.0.1"),),
        "The scheduler's address, or several of one team's, tried in turn.",
        ADDRESSES,
        variable="GPUCTL_SCHEDULER",
    )
    data: Path = computed_setting(
        lambda: state_dir("gateway"),
        "The folder of the log; each gateway of a machine has its own.",
        PATH,
        default_text="~/.local/state/gpufleet/gateway",
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
    insecure: bool = setting(
        False,
        "Listen, and speak to other machines, without encryption. Only for networks you trust.",
        BOOLEAN,
    )
    origins: tuple[str, ...] = setting(
        (), 'Pages elsewhere that may connect, such as "https://lab.example".', TEXTS, reloadable=True
    )
    log: LogSettings = section(LogSettings, "The gateway's own log.")
    metrics: MetricsSettings = section(MetricsSettings, "Metrics for Prometheus; see docs/metrics.md.")
    tls: GatewayTlsSettings = section(GatewayTlsSettings, "Encryption, for browsers on other machines.")
    limits: GatewayLimitSettings = section(
        GatewayLimitSettings, "Bounds that keep one browser or one machine from taking everything."
    )

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Values that do not fit together."""
        has_tls, is_insecure = self.tls.cert_file is not None, self.insecure
        yield from certificate_conflicts(self.tls.cert_file, self.tls.key_file)
        yield from host_conflicts("host", self.host, has_tls=has_tls, is_insecure=is_insecure)
        yield from self.metrics.conflicts(has_tls=has_tls, is_insecure=is_insecure)
