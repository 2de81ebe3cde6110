"""What a program is shown of a device: figures in the units that people use, and how good it is to take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, overload

from .device import COUNTERS, Device, DeviceSample, Owner

MB = 10**6

FREE_MEMORY_WEIGHT, IDLENESS_WEIGHT = 0.6, 0.4
"""What the score is made of: the free share of the memory, and the idle share of the time (docs/rules/jobs.md 3.4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSnapshot:
    """A process on a device; `memory_mb` is None where the driver does not tell.

    `is_own`: it is this process, one below it, or of the same job. `is_foreign`: it computes here and is not our own;
    one that cannot be seen from here (it has ended, or a container hides it) is neither.
    """

    pid: int
    memory_mb: int | None
    is_own: bool
    is_foreign: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSnapshot:
    """One GPU at one moment. MB are 10^6 bytes; a counter that the device lacks is None, never 0.

    `availability_score`, 0 to 1, is 0.6 × the free part of its memory + 0.4 × its idle part, None where the memory is
    not told. `processes` is None when they could not be listed. `unhealthy_reason` is empty when it is healthy.
    """

    index: int
    uuid: str
    name: str
    age_seconds: float
    availability_score: float | None
    utilization_percent: int | None
    memory_total_mb: int | None
    memory_used_mb: int | None
    memory_free_mb: int | None
    temperature_c: int | None
    power_draw_w: float | None
    power_limit_w: float | None
    clock_sm_mhz: int | None
    clock_memory_mhz: int | None
    fan_percent: int | None
    throttle_reasons: tuple[str, ...]
    ecc_uncorrected_count: int | None
    xid: int | None
    processes: tuple[ProcessSnapshot, ...] | None
    is_healthy: bool
    unhealthy_reason: str
    is_virtual: bool

    def as_dict(self) -> dict[str, Any]:
        """As what becomes JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(Sequence[DeviceSnapshot]):
    """All devices at one moment, in index order.

    `reason` says why there are none, or what is odd about them, and `next_step` what to do about it; both are empty
    when all is well.
    """

    devices: tuple[DeviceSnapshot, ...]
    reason: str = ""
    next_step: str = ""

    def __len__(self) -> int:
        return len(self.devices)

    @overload
    def __getitem__(self, place: int) -> DeviceSnapshot: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[DeviceSnapshot, ...]: ...
    def __getitem__(self, place: int | slice) -> DeviceSnapshot | tuple[DeviceSnapshot, ...]:
        return self.devices[place]

    def __iter__(self) -> Iterator[DeviceSnapshot]:
        return iter(self.devices)


def snapshot_of(device: Device, sample: DeviceSample) -> DeviceSnapshot:
    """A sample of a device, as it is shown."""
    return DeviceSnapshot(
        index=device.index,
        uuid=device.uuid,
        name=device.name,
        age_seconds=round(sample.age_seconds, 3),
        availability_score=score_of(device, sample),
        memory_total_mb=_mb(sample.memory_total_bytes),
        memory_used_mb=_mb(sample.memory_used_bytes),
        memory_free_mb=_mb(sample.memory_free_bytes),
        power_draw_w=_watts(sample.power_mw),
        power_limit_w=_watts(sample.power_limit_mw),
        throttle_reasons=sample.throttle_reasons or (),
        processes=None
        if sample.processes is None
        else tuple(
            ProcessSnapshot(
                pid=process.pid,
                memory_mb=_mb(process.memory_bytes),
                is_own=process.owner is Owner.OURS,
                is_foreign=process.is_foreign,
            )
            for process in sample.processes
        ),
        is_healthy=sample.is_healthy,
        unhealthy_reason=sample.unhealthy_reason,
        is_virtual=device.is_virtual,
        **{each.name: getattr(sample, each.name) for each in fields(DeviceSnapshot) if each.name in COUNTERS},
    )


def score_of(device: Device, sample: DeviceSample) -> float | None:
    """How good a device is to take, 0 to 1; None where its free memory is not told."""
    if sample.memory_free_bytes is None or not device.memory_bytes:
        return None
    free_share, idle_share = sample.memory_free_bytes / device.memory_bytes, 1 - (sample.utilization_percent or 0) / 100
    score = FREE_MEMORY_WEIGHT * free_share + IDLENESS_WEIGHT * idle_share
    return round(min(1.0, max(0.0, score)), 4)


def free_of(
    shown: Sequence[DeviceSnapshot], *, min_memory_bytes: int = 0, max_utilization_percent: int = 100
) -> tuple[DeviceSnapshot, ...]:
    """Those that are healthy, that nobody else computes on, with so much memory free and no more load; best first.

    What is not told is given the doubt: without telemetry a device counts as idle, and all its memory as free.
    """
    free = [
        each
        for each in shown
        if each.is_healthy
        and not any(process.is_foreign for process in each.processes or ())
        and (each.utilization_percent or 0) <= max_utilization_percent
        and (each.memory_free_mb is None or each.memory_free_mb * MB >= min_memory_bytes)
    ]
    return tuple(sorted(free, key=lambda each: (-(each.availability_score or 0.0), each.index)))


def _mb(size_bytes: int | None) -> int | None:
    return None if size_bytes is None else size_bytes // MB


def _watts(power_mw: int | None) -> float | None:
    return None if power_mw is None else power_mw / 1000
