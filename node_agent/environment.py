"""What the environment of a job needs from this machine: the account, a free port, and the devices' variables."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Iterable, Mapping

from gpufleet.devices.device import Device, Vendor

from .core.environment import Account

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


def visibility(devices: Iterable[Device]) -> dict[str, str]:
    """The variables for a job that holds `devices`, all of one node; with none, all GPUs are hidden from it.

    By UUID, so that the numbering of no tool matters. A virtual device's UUID matches no real GPU: the
    vendor's libraries then see none, and the job can tell from the name that it was given a virtual one.
    """
    held = tuple(devices)
    if any(device.vendor is Vendor.AMD for device in held):
        # AMD's runtime filters by UUID here, before HIP counts devices. HIP reads CUDA_VISIBLE_DEVICES too,
        # so that must stay unset.
        return {"ROCR_VISIBLE_DEVICES": ",".join(device.uuid for device in held)}
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(device.uuid for device in held),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
