"""Shares of devices: how much of a device a request takes, and whether that is free.

A share is counted twice over: in thousandths of the device, and in bytes of its memory. Both must be free by what was
given; and by the newest sample, as much memory must be free as the share may use.
"""

from collections.abc import Mapping

from ..state.attempts import Placement
from ..state.ids import DeviceUuid
from ..state.nodes import Device, DeviceSample
from ..state.shares import WHOLE_MILLI, DeviceShare
from ..state.specs import Resources

DRIVER_PART = 0.1
"""Of a share that is given by thousandths alone, this part of its memory may be missing: drivers keep some."""


def share_of(device: Device, resources: Resources) -> DeviceShare:
    """What the request takes of this device; the whole of it where no share is asked for."""
    if not resources.share_milli:
        return DeviceShare(WHOLE_MILLI, device.memory_bytes)
    memory_bytes = resources.min_memory_bytes
    if memory_bytes is None:
        memory_bytes = device.memory_bytes * resources.share_milli // WHOLE_MILLI
    return DeviceShare(resources.share_milli, memory_bytes)


def room_on(device: Device, given: DeviceShare, sample: DeviceSample | None = None) -> DeviceShare:
    """What is left of a device that is given in shares; what foreign processes hold by the sample is not."""
    foreign = () if sample is None else (each for each in sample.processes if each.is_foreign)
    foreign_bytes = sum(each.memory_bytes or 0 for each in foreign)
    return DeviceShare(WHOLE_MILLI, device.memory_bytes).less(given).less(DeviceShare(0, foreign_bytes))


def memory_to_find_bytes(share: DeviceShare, resources: Resources) -> int:
    """How much memory must be free on a device for this share of it by its newest sample."""
    if resources.min_memory_bytes is not None:
        return share.memory_bytes
    return int(share.memory_bytes * (1 - DRIVER_PART))


def shares_in(placement: Placement) -> dict[DeviceUuid, DeviceShare]:
    """The shares of a placement by their devices; empty for one of whole devices."""
    return {device.uuid: device.share for device in placement.devices if device.share is not None}


def milli_left(room: Mapping[DeviceUuid, DeviceShare], resources: Resources) -> int:
    """Thousandths that stay free on the devices that a request of shares would fill; for an order of nodes.

    `room` is what is free on each device that is not held whole.
    """
    milli, memory_bytes = resources.share_milli, resources.min_memory_bytes or 0
    left = sorted(each.milli - milli for each in room.values() if each.holds(DeviceShare(milli, memory_bytes)))
    return sum(left[: resources.gpus])
