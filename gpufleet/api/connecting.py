"""Where the fleet is, found as gpuctl finds it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.fleet.settings import Settings, resolve

if TYPE_CHECKING:
    from .fleet import AsyncFleet
    from .sync import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What is said of it; all else is found."""

    scheduler: str | None = None
    context: str | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    client_cert_file: Path | None = None
    insecure: bool = False
    shared_root: Path | None = None
    connection_timeout: str | None = None


def connect(
    scheduler: str | None = None,
    *,
    context: str | None = None,
    token_file: str | Path | None = None,
    ca_file: str | Path | None = None,
    client_cert_file: str | Path | None = None,
    insecure: bool = False,
    shared_root: str | Path | None = None,
    connection_timeout: str | None = None,
) -> Fleet:
    """The fleet that gpuctl would speak to from here, with its token.

    Looked for as gpuctl does: what is said here, then GPUCTL_ variables, ./gpuctl.toml, the context in use, and inside
    a job its own scheduler. `scheduler` is HOST or HOST:PORT, and those of its standbys behind commas;
    `connection_timeout` is a text such as 30s. Nothing is asked before the first call. Raises GpufleetError,
    CONFIG_INVALID.

        with gpufleet.connect() as fleet:
            print(fleet.submit("nvidia-smi", gpus=1).id)
    """
    from .sync import Fleet

    return Fleet(
        _settings(scheduler, context, token_file, ca_file, client_cert_file, insecure, shared_root, connection_timeout)
    )


def connect_async(
    scheduler: str | None = None,
    *,
    context: str | None = None,
    token_file: str | Path | None = None,
    ca_file: str | Path | None = None,
    client_cert_file: str | Path | None = None,
    insecure: bool = False,
    shared_root: str | Path | None = None,
    connection_timeout: str | None = None,
) -> AsyncFleet:
    """The same for asyncio, to be used in one loop: `async with gpufleet.connect_async() as fleet`."""
    from .fleet import AsyncFleet

    return AsyncFleet(
        _settings(scheduler, context, token_file, ca_file, client_cert_file, insecure, shared_root, connection_timeout)
    )


def _settings(
    scheduler: str | None,
    context: str | None,
    token_file: str | Path | None,
    ca_file: str | Path | None,
    client_cert_file: str | Path | None,
    insecure: bool,
    shared_root: str | Path | None,
    connection_timeout: str | None,
) -> Settings:
    return resolve(
        Given(
            scheduler=scheduler,
            context=context,
            token_file=_path(token_file),
            ca_file=_path(ca_file),
            client_cert_file=_path(client_cert_file),
            insecure=insecure,
            shared_root=_path(shared_root),
            connection_timeout=connection_timeout,
        )
    )


def _path(given: str | Path | None) -> Path | None:
    return None if given is None else Path(given)
