"""Which environment shows a job exactly its own devices, and hides all others."""

from __future__ import annotations

from collections.abc import Iterable

from gpufleet.devices import Device, Vendor


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
