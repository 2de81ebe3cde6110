"""Which of a machine's devices a program sees, by the variables that hide devices from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .device import Device, Vendor

VARIABLES = {Vendor.NVIDIA: "CUDA_VISIBLE_DEVICES", Vendor.AMD: "ROCR_VISIBLE_DEVICES"}


def visible_devices(devices: Sequence[Device], environment: Mapping[str, str]) -> tuple[Device, ...]:
    """Those that CUDA_VISIBLE_DEVICES (for AMD ROCR_VISIBLE_DEVICES) names by UUID or number; all where it is not set.

    A list that cannot be understood hides nothing: numbers where CUDA counts by speed over unequal devices, and parts
    of a device. As CUDA does, it ends at the first entry that no device has. Virtual devices are never hidden.
    """
    return tuple(device for device in devices if device.is_virtual or _is_named(device, devices, environment))


def _is_named(device: Device, devices: Sequence[Device], environment: Mapping[str, str]) -> bool:
    listed = environment.get(VARIABLES.get(device.vendor, ""))
    if listed is None:
        return True
    alike = [other for other in devices if other.vendor is device.vendor]
    entries = [entry.strip() for entry in listed.split(",")] if listed.strip() else []
    if any(entry.startswith("MIG-") for entry in entries):
        return True
    counts_by_bus = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or device.vendor is Vendor.AMD
    if any(entry.isdigit() for entry in entries) and not counts_by_bus and len({each.name for each in alike}) > 1:
        return True
    for entry in entries:
        found = [other for other in alike if _matches(entry, other)]
        if len(found) != 1:
            return False
        if found[0] is device:
            return True
    return False


def _matches(entry: str, device: Device) -> bool:
    """A number, or the beginning of a UUID that is long enough to be one."""
    return int(entry) == device.index if entry.isdigit() else bool(entry) and device.uuid.startswith(entry)
