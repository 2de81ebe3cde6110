"""Virtual devices that play back a recorded load, over and over: for demonstrations, and for tests of what is shown.

The load is a file of JSON lines, each one reading from that second on until the next of its device:

    {"seconds": 0, "utilization_percent": 0, "memory_used_bytes": 0, "temperature_c": 30, "power_mw": 70000}
    {"seconds": 10, "gpu": 1, "utilization_percent": 97, "memory_used_bytes": 12000000000, "trouble": "XID"}

Without `gpu` it holds for every device. A counter that a line does not name is absent, as on a device that lacks it.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .device import COUNTERS, Device, DeviceSample, SourceStatus, Trouble, TroubleKind

RECORDED = frozenset(COUNTERS) - {"memory_total_bytes", "memory_free_bytes"}
LINES_MAX = 1_000_000
LAST_SECONDS = 1.0
"""How long the last reading holds before the load begins anew."""

Line = Mapping[str, Any]


class Load:
    """A recorded load: of each device, or of all (None), the readings by their seconds."""

    def __init__(self, lines: Mapping[int | None, list[tuple[float, Line]]]) -> None:
        self._lines = {gpu: sorted(found, key=lambda each: each[0]) for gpu, found in lines.items()}
        self.seconds = max(found[-1][0] for found in self._lines.values()) + LAST_SECONDS

    @property
    def gpu_count(self) -> int:
        """How many devices it speaks of, one at least."""
        return max((gpu + 1 for gpu in self._lines if gpu is not None), default=1)

    def at(self, gpu: int, seconds: float) -> Line:
        """The reading of a device so long after the beginning; the load goes round."""
        found = self._lines.get(gpu) or self._lines.get(None) or [(0.0, {})]
        place = bisect_right(found, seconds % self.seconds, key=lambda each: each[0])
        return found[place - 1][1] if place else {}


def read_load(file: Path) -> Load:
    """Read a recorded load. Raises ValueError with the line that is wrong, OSError where the file cannot be read."""
    lines: dict[int | None, list[tuple[float, Line]]] = {}
    with file.open(encoding="utf-8") as text:
        for number, line in enumerate(text, 1):
            if number > LINES_MAX:
                raise ValueError(f"{file}: has more than {LINES_MAX:,} lines")
            if line.strip():
                gpu, seconds, reading = _parsed(f"{file}, line {number}", line)
                lines.setdefault(gpu, []).append((seconds, reading))
    if not lines:
        raise ValueError(f"{file}: holds no reading")
    return Load(lines)


def _parsed(where: str, line: str) -> tuple[int | None, float, Line]:
    try:
        values = json.loads(line)
    except ValueError as problem:
        raise ValueError(f"{where}: is no JSON: {problem}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{where}: is no object")
    gpu, seconds, trouble = values.pop("gpu", None), values.pop("seconds", None), values.pop("trouble", None)
    reasons = values.pop("throttle_reasons", [])
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds < 1e9:
        raise ValueError(f'{where}: "seconds" must be a number from 0 on')
    if gpu is not None and (not isinstance(gpu, int) or gpu < 0):
        raise ValueError(f'{where}: "gpu" must be the index of a device')
    if trouble is not None and trouble not in set(TroubleKind):
        raise ValueError(f'{where}: "trouble" must be one of {", ".join(TroubleKind)}')
    if not isinstance(reasons, list) or not all(isinstance(each, str) for each in reasons):
        raise ValueError(f'{where}: "throttle_reasons" must be a list of texts')
    for name, value in values.items():
        if name not in RECORDED:
            raise ValueError(f'{where}: "{name}" is no counter; there are {", ".join(sorted(RECORDED))}')
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**62:
            raise ValueError(f'{where}: "{name}" must be a whole number from 0 on')
    return gpu, float(seconds), {**values, "throttle_reasons": tuple(reasons), "trouble": trouble}


class PlaybackReader:
    """Virtual devices with a load, as a DeviceReader."""

    def __init__(self, devices: tuple[Device, ...], load: Load, clock: Callable[[], float] = time.monotonic) -> None:
        self._devices = devices
        self._load = load
        self._clock = clock
        self._began = clock()

    def list(self) -> tuple[Device, ...]:
        return self._devices

    def read(self, device: Device) -> DeviceSample:
        reading = dict(self._load.at(device.index, max(0.0, self._clock() - self._began)))
        trouble = reading.pop("trouble", None)
        used = reading.get("memory_used_bytes")
        found = Trouble(kind=TroubleKind(trouble), detail="as the recorded load has it") if trouble else None
        return DeviceSample(
            uuid=device.uuid,
            memory_total_bytes=device.memory_bytes,
            memory_free_bytes=None if used is None else max(0, device.memory_bytes - used),
            processes=(),
            troubles=() if found is None else (found,),
            **reading,
        )

    def clear_troubles(self, uuids: tuple[str, ...]) -> None:
        pass

    def status(self) -> SourceStatus:
        return SourceStatus(kind="virtual")

    def close(self) -> None:
        pass
