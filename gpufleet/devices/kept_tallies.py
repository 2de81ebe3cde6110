"""The tally of an attempt as JSON, so that the next start of the agent goes on with it.

What belongs to one start of the agent (when it read last) is left out: the time until the next one reads is a gap,
which counts neither as samples nor as energy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .tally import (
    COUNTERS,
    POINTS_MAX,
    SERIES_COUNTERS,
    AttemptTally,
    DeviceTally,
    Point,
    ProcessTally,
    Series,
    Tally,
)

VERSION = 1
"""Of this form. What another version wrote is not read: the figures begin anew then."""

DECIMALS = 3


def copy_of(tally: AttemptTally) -> AttemptTally:
    """A copy that nothing changes any more, for a thread; its points are shared, as they never change."""
    return replace(
        tally,
        devices={uuid: _copy_of_device(each) for uuid, each in tally.devices.items()},
        series={uuid: Series(list(each.points)) for uuid, each in tally.series.items()},
        processes=replace(
            tally.processes,
            cpu_percent=replace(tally.processes.cpu_percent),
            memory_bytes=replace(tally.processes.memory_bytes),
        ),
    )


def _copy_of_device(tally: DeviceTally) -> DeviceTally:
    counters = {name: replace(each) for name, each in tally.counters.items()}
    return replace(tally, counters=counters, throttle_reasons=dict(tally.throttle_reasons))


def to_json(tally: AttemptTally) -> dict[str, Any]:
    """A tally as JSON. Takes some milliseconds with many points."""
    processes = tally.processes
    return {
        "version": VERSION,
        "begun_us": tally.begun_us,
        "sampling_us": tally.sampling_us,
        "devices": {uuid: _of_device(each, tally.series.get(uuid)) for uuid, each in tally.devices.items()},
        "processes": {
            "cpu_seconds": processes.cpu_seconds,
            "read_bytes": processes.read_bytes,
            "write_bytes": processes.write_bytes,
            "cpu_percent": _of_tally(processes.cpu_percent),
            "memory_bytes": _of_tally(processes.memory_bytes),
        },
    }


def from_json(found: Mapping[str, Any]) -> AttemptTally:
    """The tally again. Raises LookupError, TypeError or ValueError for what is none."""
    if found["version"] != VERSION:
        raise ValueError(f"version {found['version']!r} is not {VERSION}")
    devices, processes = found["devices"], found["processes"]
    sampling_us = found["sampling_us"]
    return AttemptTally(
        begun_us=int(found["begun_us"]),
        sampling_us=None if sampling_us is None else int(sampling_us),
        devices={str(uuid): _device(each) for uuid, each in devices.items()},
        series={str(uuid): _series(each["series"]) for uuid, each in devices.items() if each["series"]},
        processes=ProcessTally(
            cpu_seconds=float(processes["cpu_seconds"]),
            read_bytes=_whole(processes["read_bytes"]),
            write_bytes=_whole(processes["write_bytes"]),
            cpu_percent=_tally(processes["cpu_percent"]),
            memory_bytes=_tally(processes["memory_bytes"]),
        ),
    )


def _of_device(tally: DeviceTally, series: Series | None) -> dict[str, Any]:
    return {
        "count": tally.count,
        "idle_count": tally.idle_count,
        "span_seconds": tally.span_seconds,
        "energy_mj": tally.energy_mj,
        "memory_total_bytes": tally.memory_total_bytes,
        "counters": {name: _of_tally(each) for name, each in tally.counters.items()},
        "throttle_reasons": list(tally.throttle_reasons),
        "series": [] if series is None else [_of_point(each) for each in series.points],
    }


def _device(found: Mapping[str, Any]) -> DeviceTally:
    energy_mj = found["energy_mj"]
    return DeviceTally(
        count=int(found["count"]),
        idle_count=int(found["idle_count"]),
        span_seconds=float(found["span_seconds"]),
        energy_mj=None if energy_mj is None else float(energy_mj),
        memory_total_bytes=_whole(found["memory_total_bytes"]),
        counters={name: _tally(found["counters"][name]) for name in COUNTERS if name in found["counters"]},
        throttle_reasons=dict.fromkeys(map(str, found["throttle_reasons"])),
    )


def _of_tally(tally: Tally) -> list[float]:
    return [tally.count, tally.low, tally.high, tally.total, tally.last]


def _tally(found: list[Any]) -> Tally:
    count, *values = found
    low, high, total, last = map(float, values)
    return Tally(int(count), low, high, total, last)


def _of_point(point: Point) -> list[Any]:
    return [point.end_us, point.count, *(None if each is None else round(each, DECIMALS) for each in point.means)]


def _series(found: list[list[Any]]) -> Series:
    points = []
    for end_us, count, *means in found[-POINTS_MAX:]:
        if len(means) != len(SERIES_COUNTERS):
            raise ValueError(f"a point has {len(means)} means, not {len(SERIES_COUNTERS)}")
        points.append(Point(int(end_us), int(count), tuple(None if each is None else float(each) for each in means)))
    return Series(points)


def _whole(found: Any) -> int | None:
    return None if found is None else int(found)
