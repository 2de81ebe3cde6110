"""What `up` is asked for, and what it was asked for when something of it has died."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.addresses import DEFAULT_PORT, parse_address

from .folders import Folders, Record, folders_of
from .gateway import Gateway

NAMES = ("scheduler", "agent", "gateway")
"""In the order in which they are started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """What `gpuctl up` was asked for."""

    folders: Folders
    port: int = DEFAULT_PORT
    virtual_gpus: str = "auto"
    with_agent: bool = True
    gateway: Gateway | None = Gateway()
    """None: no gateway."""
    shares_account: bool = False
    """Whether the jobs of all users run as this account."""

    @property
    def names(self) -> tuple[str, ...]:
        """The programs that are to run."""
        return tuple(
            name
            for name, is_wanted in zip(NAMES, (True, self.with_agent, self.gateway is not None), strict=True)
            if is_wanted
        )

    def written(self) -> dict[str, Any]:
        """For the record: all but the folders, which the record lies in."""
        values = {
            each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("folders", "gateway")
        }
        return {**values, "gateway": None if self.gateway is None else asdict(self.gateway)}

    @classmethod
    def read(cls, folders: Folders, written: Mapping[str, Any]) -> UpOptions:
        """Those of a record."""
        gateway = written["gateway"]
        return cls(**{**written, "folders": folders, "gateway": None if gateway is None else Gateway(**gateway)})


def options_of_before(options: UpOptions, before: Record) -> UpOptions:
    """With what an `up` was started of which something has died; an `up` without options starts it again with them.

    Raises CONFLICT where others were typed: what runs goes on with its own.
    """
    was = UpOptions.read(options.folders, before.options) if before.options else options
    if options not in (was, UpOptions(folders=options.folders)):
        raise GpufleetError(
            Reason.CONFLICT,
            "what gpuctl up started still runs in part, and was started with other options",
            next_step=f"Start again what has died: {_without_options(options.folders)}. To change options: gpuctl down",
        )
    return was


def missing_of(record: Record, folders: Folders) -> list[str]:
    """The programs of an `up` that do not run."""
    started = [each.name for each in record.programs]
    wanted = UpOptions.read(folders, record.options).names if record.options else started
    running = {each.name for each in record.running()}
    return [name for name in wanted if name not in running]


def at_the_same_addresses(options: UpOptions, before: Record) -> UpOptions:
    """The options with the ports that were free ones then: what runs, and who has the page open, look there."""
    folders, gateway = options.folders, options.gateway
    if gateway is not None:
        port = _port_in(folders.listening("gateway")) or gateway.port
        grpc_port = _port_in(folders.grpc_listening) or gateway.given_grpc_port
        gateway = replace(gateway, port=port, given_grpc_port=grpc_port)
    return replace(options, port=parse_address(before.address).port, gateway=gateway)


def _without_options(folders: Folders) -> str:
    return "gpuctl up" if folders == folders_of(None) else f"gpuctl up --data {shlex.quote(str(folders.record))}"


def _port_in(file: Path) -> int:
    """The port that a program has written down, also one that was killed; 0 for none."""
    try:
        return parse_address(file.read_text()).port
    except (OSError, ValueError, GpufleetError):
        return 0
