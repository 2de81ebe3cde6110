"""Virtual devices: places for jobs on a machine without GPUs, backed by its CPU and plainly labelled so."""

from __future__ import annotations

from .device import Device, DeviceSample, SourceStatus, Vendor

VIRTUAL_GPU_NAME = "gpufleet virtual GPU"
VIRTUAL_GPU_MEMORY_BYTES = 16 * 10**9
VIRTUAL_GPUS_MAX = 128


class VirtualDevices:
    """`count` virtual devices of 16 GB each, named by the node: their UUIDs stay the same over restarts.

    Nothing measures them: memory is all free and utilisation 0 by definition, every other counter is absent.
    """

    def __init__(self, *, node: str, count: int) -> None:
        if not 1 <= count <= VIRTUAL_GPUS_MAX:
            raise ValueError(f"virtual GPUs: {count} is not between 1 and {VIRTUAL_GPUS_MAX}")
        self._devices = tuple(
            Device(
                uuid=f"VIRTUAL-{node}-{index}",
                index=index,
                name=VIRTUAL_GPU_NAME,
                memory_bytes=VIRTUAL_GPU_MEMORY_BYTES,
                vendor=Vendor.VIRTUAL,
            )
            for index in range(count)
        )

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

    def set_interval(self, seconds: float) -> None:
        pass

    def clear_troubles(self, uuids: tuple[str, ...]) -> None:
        pass

    def status(self) -> SourceStatus:
        return SourceStatus(kind="virtual")

    def close(self) -> None:
        pass
