"""The nodes below /dev by which a job uses the devices that it was given."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from gpufleet.devices.device import Device, Vendor

NVIDIA_COMMON = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
"""What every program on an NVIDIA GPU opens beside the GPU's own node."""

ALWAYS = ("infiniband",)
"""Folders of nodes that belong to no GPU: the fast network of a gang."""


def nodes_of(devices: Iterable[Device], root: Path = Path("/")) -> tuple[str, ...]:
    """The nodes of these devices, as paths below /dev; virtual ones have none. `root` has the machine's files."""
    found = [path for name in ALWAYS for path in sorted((root / "dev" / name).glob("*"))]
    for device in devices:
        if not device.is_virtual:
            found += _of_amd(device, root) if device.vendor is Vendor.AMD else _of_nvidia(device, root)
    return tuple(dict.fromkeys("/" + str(path.relative_to(root)) for path in found))


def _of_nvidia(device: Device, root: Path) -> list[Path]:
    folder = root / "dev"
    common = [folder / name for name in NVIDIA_COMMON if (folder / name).exists()]
    return [folder / f"nvidia{_minor_of(device, root)}", *common]


def _minor_of(device: Device, root: Path) -> int:
    """The number of its node: as the driver tells it, or else its index, which mostly is the same."""
    address = device.pci_bus_id.lower()[-12:]
    try:
        text = (root / "proc/driver/nvidia/gpus" / address / "information").read_text()
    except OSError:
        return device.index
    told = re.search(r"Device Minor:\s*(\d+)", text)
    return int(told[1]) if told else device.index


def _of_amd(device: Device, root: Path) -> list[Path]:
    address = device.pci_bus_id.lower()[-12:]
    drawn = (root / "sys/bus/pci/devices" / address / "drm").glob("*[0-9]")
    return [root / "dev/kfd", *sorted(root / "dev/dri" / path.name for path in drawn)]
