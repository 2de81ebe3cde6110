"""The values that describe devices, and the two small ports through which they come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Protocol

from .tally import DeviceTally


class Vendor(StrEnum):
    """Who made the device; it decides which environment variable shows it to a job."""

    NVIDIA = "nvidia"
    AMD = "amd"
    VIRTUAL = "virtual"


class TroubleKind(StrEnum):
    """What is wrong with a device; the names are stable."""

    VANISHED = "VANISHED"
    XID = "XID"
    ECC = "ECC"
    UNREADABLE = "UNREADABLE"
    SILENT = "SILENT"
    PARTITIONED = "PARTITIONED"


class Owner(StrEnum):
    """Whose a process on a device is; UNKNOWN when it has ended, or a container hides it from us."""

    OURS = "ours"
    FOREIGN = "foreign"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU, real or virtual, with the facts that do not change while it works.

    `index` counts in PCI bus order within its vendor. `memory_bytes` is what the device has in all; a device
    that shares the machine's memory counts that. `pci_bus_id` is empty for a virtual device.
    """

    uuid: str
    index: int
    name: str
    memory_bytes: int
    vendor: Vendor
    pci_bus_id: str = ""

    @property
    def is_virtual(self) -> bool:
        return self.vendor is Vendor.VIRTUAL


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProcess:
    """One process on a device; `memory_bytes` is None where the driver does not tell.

    A process that only draws (a desktop's X server) has `is_compute` False: it makes no device busy.
    """

    pid: int
    memory_bytes: int | None = None
    is_compute: bool = True
    owner: Owner = Owner.UNKNOWN
    attempt: str | None = None

    @property
    def is_foreign(self) -> bool:
        """Whether it computes here and belongs to no live attempt; unknown processes are given the doubt."""
        return self.is_compute and self.owner is Owner.FOREIGN


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One reason not to place work on a device: what, and one sentence with the way out."""

    kind: TroubleKind
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """One reading of one device. A counter that the device lacks is None.

    `age_seconds` is how old the reading was when it was handed out. `processes` is None when the list could
    not be read (not the same as empty). `throttle_reasons` are NVIDIA's names in snake case. `xid` is the
    last XID error since the agent opened the device, application errors included; only the others are a
    trouble. `ecc_uncorrected_count` counts since the driver was loaded, `energy_mj` (millijoules) likewise.
    """

    uuid: str
    age_seconds: float = 0.0
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    utilization_percent: int | None = None
    memory_utilization_percent: int | None = None
    temperature_c: int | None = None
    power_mw: int | None = None
    power_limit_mw: int | None = None
    energy_mj: int | None = None
    clock_sm_mhz: int | None = None
    clock_memory_mhz: int | None = None
    fan_percent: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    ecc_uncorrected_count: int | None = None
    xid: int | None = None
    processes: tuple[DeviceProcess, ...] | None = None
    troubles: tuple[Trouble, ...] = ()

    @property
    def is_healthy(self) -> bool:
        return not self.troubles

    @property
    def is_readable(self) -> bool:
        """Whether the reading says anything: not of a device that is gone, or that answers nothing."""
        return not any(trouble.kind in (TroubleKind.VANISHED, TroubleKind.UNREADABLE) for trouble in self.troubles)

    @property
    def unhealthy_reason(self) -> str:
        """All troubles in one line; empty when healthy."""
        return "; ".join(f"{trouble.kind}: {trouble.detail}" for trouble in self.troubles)


COUNTERS = tuple(each.name for each in fields(DeviceSample) if each.type == "int | None")
"""The fields of a sample that are a number each, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """What the node can say of its devices as a whole, for `doctor` and the log.

    `note` says why there are no devices, or what is odd about them; empty when all is well. `next_step` is
    what to type. `driver_version` and `cuda_version` are empty without a driver.
    """

    kind: str
    note: str = ""
    next_step: str = ""
    driver_version: str = ""
    cuda_version: str = ""


class DeviceSource(Protocol):
    """What the agent has of its devices. Only `fresh` and `close` may wait, each for a bounded time."""

    def list(self) -> tuple[Device, ...]:
        """The devices in index order, the same for the life of the source."""
        ...

    def sample(self) -> tuple[DeviceSample, ...]:
        """The newest reading of each device, with its age. A device that never answered yet has none."""
        ...

    def fresh(
        self, *, max_age_seconds: float, timeout_seconds: float, uuids: tuple[str, ...] | None = None
    ) -> tuple[DeviceSample, ...]:
        """Readings of these devices (None: all) no older than that when asked, read anew where there is none.

        Blocks up to `timeout_seconds`; a device that does not answer in time gives its newest one, or none.
        """
        ...

    def drain(self) -> Mapping[str, DeviceTally]:
        """The readings of each device since the last time, summed up, by UUID; without those that were not read."""
        ...

    def set_interval(self, seconds: float) -> None:
        """Read each device this often from now on."""
        ...

    def clear_troubles(self, uuids: tuple[str, ...]) -> None:
        """Forget past XID and ECC errors of devices that a person resumed; what still holds comes back."""
        ...

    def status(self) -> SourceStatus: ...

    def close(self) -> None:
        """Stop reading and let the driver go."""
        ...


class DeviceReader(Protocol):
    """One driver library. Every call may block or hang; none raises for what a device cannot do."""

    def list(self) -> tuple[Device, ...]: ...

    def read(self, device: Device) -> DeviceSample:
        """Read one device now. Called from one thread per device."""
        ...

    def clear_troubles(self, uuids: tuple[str, ...]) -> None: ...

    def status(self) -> SourceStatus: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Why a driver library gives no devices, and what to type; `is_expected` when no such GPU is in sight."""

    reason: str
    next_step: str = ""
    is_expected: bool = True
