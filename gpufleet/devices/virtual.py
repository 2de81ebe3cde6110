"""Virtual devices, or none: places for jobs on a machine without GPUs, backed by its CPU and plainly labelled so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from .device import Device, DeviceSample, SourceStatus, Vendor
from .tally import DeviceTally

VIRTUAL_GPU_NAME = "gpufleet virtual GPU"
VIRTUAL_GPU_MEMORY_BYTES = 16 * 10**9
VIRTUAL_GPUS_MAX = 128
INTERVAL_SECONDS = 2.0


class _Unmeasured:
    """Devices that nothing measures: memory is all free and utilisation 0 by definition, every other counter absent."""

    def __init__(
        self,
        devices: Iterable[Device],
        status: SourceStatus,
        interval_seconds: float = INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._devices = tuple(devices)
        self._status = status
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._drained_at = clock()

    def list(self) -> tuple[Device, ...]:
        return self._devices

    def sample(self) -> tuple[DeviceSample, ...]:
        return tuple(
            DeviceSample(
                uuid=device.uuid,
                memory_total_bytes=device.memory_bytes,
                memory_used_bytes=0,
                memory_free_bytes=device.memory_bytes,
                utilization_percent=0,
                processes=(),
            )
            for device in self._devices
        )

    def fresh(
        self, *, max_age_seconds: float, timeout_seconds: float, uuids: tuple[str, ...] | None = None
    ) -> tuple[DeviceSample, ...]:
        return tuple(sample for sample in self.sample() if uuids is None or sample.uuid in uuids)

    def drain(self) -> dict[str, DeviceTally]:
        """One reading of each, once in an interval: what nothing measures is the same at every moment."""
        now = self._clock()
        if now < self._drained_at + self._interval_seconds:
            return {}
        self._drained_at = now
        drained = {}
        for sample in self.sample():
            drained[sample.uuid] = DeviceTally()
            drained[sample.uuid].take(sample)
        return drained

    def set_interval(self, seconds: float) -> None:
        self._interval_seconds = seconds

    def clear_troubles(self, uuids: tuple[str, ...]) -> None:
        pass

    def status(self) -> SourceStatus:
        return self._status

    def close(self) -> None:
        pass


class VirtualDevices(_Unmeasured):
    """`count` virtual devices of 16 GB each, named by the node: their UUIDs stay the same over restarts."""

    def __init__(
        self,
        *,
        node: str,
        count: int,
        interval_seconds: float = INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 1 <= count <= VIRTUAL_GPUS_MAX:
            raise ValueError(f"virtual GPUs: {count} is not between 1 and {VIRTUAL_GPUS_MAX}")
        devices = (
            Device(
                uuid=f"VIRTUAL-{node}-{index}",
                index=index,
                name=VIRTUAL_GPU_NAME,
                memory_bytes=VIRTUAL_GPU_MEMORY_BYTES,
                vendor=Vendor.VIRTUAL,
            )
            for index in range(count)
        )
        super().__init__(devices, SourceStatus(kind="virtual"), interval_seconds, clock)


class NoDevices(_Unmeasured):
    """A source of nothing that remembers why there is nothing: the node has CPUs and memory only."""

    def __init__(self, status: SourceStatus) -> None:
        super().__init__((), status)
