"""Settings that several programs have: their log, metrics for Prometheus, and what holds for all that listen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpufleet.config.kinds import INTEGER, SIZE, TEXT, one_of
from gpufleet.config.settings import setting
from gpufleet.host import event_loop as loops
from gpufleet.net.addresses import is_loopback

GB = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The program's own log, on stderr and in a rotated file."""

    level: str = setting(
        "info",
        "The least serious lines that are logged.",
        one_of("debug", "info", "warning", "error"),
        reloadable=True,
    )
    format: str = setting(
        "text", "Lines for people, or one JSON object a line.", one_of("text", "json"), reloadable=True
    )
    file_bytes_max: int = setting(
        10_000_000, "The log file is renamed and begun anew at this size.", SIZE, low=100_000, high=10 * GB
    )
    old_files_max: int = setting(5, "So many renamed log files are kept.", INTEGER, low=0, high=100)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """Where Prometheus finds /metrics."""

    port: int | None = setting(
        None,
        "The port on which /metrics is served; 0 takes any free one. Reading it wants a token, a viewer's suffices.",
        INTEGER,
        low=0,
        high=65_535,
        default_text="no metrics are served",
    )
    host: str = setting("127.0.0.1", "Where /metrics is served; beyond this machine as host.", TEXT)


def event_loop() -> str:
    """The field `event_loop` of a program's settings."""
    return setting(
        loops.AUTO,
        "What the program waits with: uvloop, which takes less processor time and comes with gpufleet[uvloop], or "
        "asyncio, which Python has. auto is uvloop where it is installed.",
        one_of(*loops.CHOICES),
        variable=loops.EVENT_LOOP_VARIABLE,
    )


def listening_conflicts(
    host: str, cert_file: Path | None, key_file: Path | None, metrics: MetricsSettings, *, is_insecure: bool
) -> Iterator[tuple[str, str]]:
    """Settings of a program that listens, and why they will not do: nothing leaves the machine in clear by mistake."""
    if (cert_file is None) != (key_file is None):
        missing = "tls.key_file" if key_file is None else "tls.cert_file"
        yield missing, "a certificate and its key are set together or not at all"
    hosts = {"host": host} if metrics.port is None else {"host": host, "metrics.host": metrics.host}
    for key, each in hosts.items():
        if not (is_loopback(each) or cert_file is not None or is_insecure):
            way_out = "set tls.cert_file and tls.key_file, or say --insecure (insecure = true)"
            yield key, f"{each} is beyond this machine: {way_out}"
