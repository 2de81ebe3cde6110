"""From a beat's samples to readings for the histories: what each device did since the beat before."""

import math
from collections.abc import Iterable, Iterator

from gpufleet.v1 import node_pb2

from ..series.points import NOT_READ, Reading
from ..series.recorder import DeviceReading
from ..state.ids import DeviceUuid
from ..state.units import MB, SECOND, Instant
from .validate import span_of

READING_SECONDS_MAX = 3_600
"""A reading of a longer span is told of its end."""


def device_readings(samples: Iterable[node_pb2.DeviceSample], now: Instant) -> Iterator[DeviceReading]:
    """Each device's readings summed up, or its single one; in the order of the histories' counters."""
    for sample in samples:
        end = max(1, -(-(now - max(0, span_of(sample.age))) // SECOND))
        if sample.HasField("summary"):
            summary = sample.summary
            length = min(READING_SECONDS_MAX, max(1, round(span_of(summary.span) / SECOND) + 1))
            counters = (
                (summary.utilization_percent, 1),
                (summary.memory_used_bytes, MB),
                (summary.power_mw, 1_000),
                (summary.temperature_c, 1),
            )
            readings = tuple([_reading(counter, unit) for counter, unit in counters])
            last = _second_ones(counters, readings) if length == 2 else None
            yield DeviceReading(DeviceUuid(sample.uuid), end - length, end, readings, last)
        else:
            readings = (
                _single(sample.utilization_percent, 1) if sample.HasField("utilization_percent") else NOT_READ,
                _single(sample.memory_used_bytes, MB) if sample.HasField("memory_used_bytes") else NOT_READ,
                _single(sample.power_mw, 1_000) if sample.HasField("power_mw") else NOT_READ,
                _single(sample.temperature_c, 1) if sample.HasField("temperature_c") else NOT_READ,
            )
            yield DeviceReading(DeviceUuid(sample.uuid), end - 1, end, readings)


def _second_ones(
    counters: Iterable[tuple[node_pb2.Summary, float]], readings: tuple[Reading, ...]
) -> tuple[float, ...] | None:
    """Of two readings the second one, counter by counter; None where there were more, or fewer."""
    found: list[float] = []
    for (counter, unit), (low, high, _) in zip(counters, readings, strict=True):
        last = counter.last / unit if low >= 0 else low
        if low >= 0 and (counter.count != 2 or last not in (low, high)):
            return None
        found.append(last)
    return tuple(found)


def _reading(summary: node_pb2.Summary, unit: float) -> Reading:
    """A counter summed up, in another unit; what is no number, or below 0, was not read."""
    low, high, mean = summary.min, summary.max, summary.mean
    if not summary.count or not 0 <= low <= high < math.inf or math.isnan(mean):
        return NOT_READ
    return (low / unit, high / unit, min(max(low, mean), high) / unit)


def _single(value: int, unit: float) -> Reading:
    return NOT_READ if value < 0 else (value / unit, value / unit, value / unit)
