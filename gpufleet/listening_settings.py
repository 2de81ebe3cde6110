"""What the settings of every program that listens must hold to: nothing leaves this machine unencrypted by mistake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpufleet.addresses import is_loopback


def certificate_conflicts(cert_file: Path | None, key_file: Path | None) -> Iterator[tuple[str, str]]:
    """The setting of [tls] that is missing beside the other one, and why."""
    if (cert_file is None) != (key_file is None):
        missing = "tls.key_file" if key_file is None else "tls.cert_file"
        yield missing, "a certificate and its key are set together or not at all"


def host_conflicts(setting: str, host: str, *, has_tls: bool, is_insecure: bool) -> Iterator[tuple[str, str]]:
    """The setting of a host beyond this machine that wants encryption, and why."""
    if not (is_loopback(host) or has_tls or is_insecure):
        yield (
            setting,
            f"{host} is beyond this machine: set tls.cert_file and tls.key_file, or say --insecure (insecure = true)",
        )
