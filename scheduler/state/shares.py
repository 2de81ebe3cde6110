"""Shares of devices: a part of a GPU that a job holds, in thousandths of the device and in bytes of its memory.

Shares are accounts: the scheduler gives no more than there is, and nothing on the node keeps a job within its
share yet.
"""

from typing import NamedTuple

WHOLE_MILLI = 1000
"""A whole device, in thousandths."""


class DeviceShare(NamedTuple):
    """A part of one device, or the sum of several: thousandths of it, and bytes of its memory."""

    milli: int = 0
    memory_bytes: int = 0

    def plus(self, other: "DeviceShare") -> "DeviceShare":
        """Both together."""
        return DeviceShare(self.milli + other.milli, self.memory_bytes + other.memory_bytes)

    def less(self, other: "DeviceShare") -> "DeviceShare":
        """What is left without the other; never less than nothing."""
        return DeviceShare(max(0, self.milli - other.milli), max(0, self.memory_bytes - other.memory_bytes))

    def holds(self, other: "DeviceShare") -> bool:
        """Whether the other has room in this one."""
        return other.milli <= self.milli and other.memory_bytes <= self.memory_bytes


def share_text(milli: int) -> str:
    """A share as people write it: 0.5."""
    return f"{milli / WHOLE_MILLI:g}"
