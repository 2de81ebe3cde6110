"""What the environment of a job needs from this machine: the account, a free port, and the devices' variables."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Iterable, Mapping

from gpufleet.devices import Device

from .core.environment import Account
from .visibility import visibility

LOOPBACK = "127.0.0.1"


def own_account() -> Account:
    """The account that runs the agent and with it the jobs; the uid's number where it has no name."""
    try:
        entry = pwd.getpwuid(os.geteuid())
    except KeyError:
        return Account(name=str(os.geteuid()), home="/")
    return Account(name=entry.pw_name, home=entry.pw_dir)


def free_port(host: str = LOOPBACK) -> int:
    """A port that nobody listens on at this moment; the job may find it taken, as with any such port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def shown_devices(devices: Iterable[Device]) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """The variables that show a job its real devices and hide all others, and the UUIDs of its virtual ones.

    A job that holds none, or only virtual ones, sees no real device: it must not use one that somebody else holds.
    """
    held = tuple(devices)
    return (
        visibility(device for device in held if not device.is_virtual),
        tuple(device.uuid for device in held if device.is_virtual),
    )
