"""What GPUs did while a row ran: means and maxima of the readings that the fleet had of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

QUANTITIES = ("utilization_percent", "memory_used_bytes", "power_w", "temperature_c")


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """One look at a device; a quantity that it cannot tell is None."""

    uuid: str
    node: str
    index: int
    model: str
    values: Mapping[str, float | None]


@dataclass(slots=True)
class _Device:
    reading: DeviceReading
    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)


class DeviceSums:
    """Of all devices on which the model ran. Looks are taken at even times, so that their mean is one over time."""

    def __init__(self) -> None:
        self._devices: dict[str, _Device] = {}

    def add(self, readings: Iterable[DeviceReading]) -> None:
        """One look at them."""
        for reading in readings:
            device = self._devices.setdefault(reading.uuid, _Device(reading))
            for name in QUANTITIES:
                value = reading.values.get(name)
                if value is not None:
                    device.sums[name] = device.sums.get(name, 0.0) + value
                    device.counts[name] = device.counts.get(name, 0) + 1
                    device.maxima[name] = max(device.maxima.get(name, value), value)

    def as_dict(self) -> dict[str, Any] | None:
        """As JSON: for each device the mean and the maximum of each quantity, or None of one that nobody told.

        None where no device was seen.
        """
        if not self._devices:
            return None
        order = sorted(self._devices.values(), key=lambda each: (each.reading.node, each.reading.index))
        return {"devices": [_told(each) for each in order]}


def _told(device: _Device) -> dict[str, Any]:
    reading = device.reading
    said: dict[str, Any] = {
        "node": reading.node,
        "index": reading.index,
        "uuid": reading.uuid,
        "model": reading.model,
        "looks": max(device.counts.values(), default=0),
    }
    for name in QUANTITIES:
        count = device.counts.get(name, 0)
        said[name] = {"mean": device.sums[name] / count, "max": device.maxima[name]} if count else None
    return said
