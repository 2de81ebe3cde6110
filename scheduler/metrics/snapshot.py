"""What is taken of the devices for one page: plain values that another process can be given, and nothing else here."""

from typing import NamedTuple


class DeviceSnapshot(NamedTuple):
    """One device: its facts, its sample as its agent sent it (empty: none), the sample's age, and what jobs hold."""

    node: str
    hostname: str
    uuid: str
    gpu: int
    name: str
    pci_bus_id: str
    told: bytes
    age_s: float
    held: float


class Ordered(NamedTuple):
    """The end of what is taken: the program's own metrics as text, and how the page is to be.

    A sample that is older than `stale_s` says nothing about now. `left_out` devices had no room.
    """

    own: bytes
    left_out: int
    stale_s: float
    is_packed: bool
