"""Readings summed up as they come: what is kept of a million of them is as small as what is kept of one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

COUNTERS = ("utilization_percent", "memory_used_bytes", "temperature_c", "power_mw", "clock_sm_mhz")
"""Counters of a device that are summed up."""

IDLE_UTILIZATION_PERCENT = 5
"""Below it a device counts as idle."""

GAP_SECONDS_MAX = 10.0
"""The longest time between two readings over which power is taken to have been as it was at the second."""

THROTTLE_REASONS_MAX = 16


class Counters(Protocol):
    """One reading of a device; a counter that it lacks is None."""

    @property
    def utilization_percent(self) -> int | None: ...
    @property
    def memory_used_bytes(self) -> int | None: ...
    @property
    def memory_total_bytes(self) -> int | None: ...
    @property
    def temperature_c(self) -> int | None: ...
    @property
    def power_mw(self) -> int | None: ...
    @property
    def clock_sm_mhz(self) -> int | None: ...
    @property
    def energy_mj(self) -> int | None: ...
    @property
    def throttle_reasons(self) -> tuple[str, ...] | None: ...


@dataclass(slots=True)
class Tally:
    """Smallest, largest, sum and newest of the values of one counter; `count` 0: there was none."""

    count: int = 0
    low: float = 0.0
    high: float = 0.0
    total: float = 0.0
    last: float = 0.0

    @property
    def mean(self) -> float:
        """The mean of all values, 0 without any."""
        return self.total / self.count if self.count else 0.0

    def take(self, value: float) -> None:
        """One more value."""
        self.add(Tally(1, value, value, value, value))

    def add(self, other: Tally) -> None:
        """The values of another tally, which came later."""
        if not other.count:
            return
        self.low = min(self.low, other.low) if self.count else other.low
        self.high = max(self.high, other.high) if self.count else other.high
        self.count += other.count
        self.total += other.total
        self.last = other.last


@dataclass(slots=True)
class DeviceTally:
    """Readings of one device: each counter, how often it was idle, and the energy that it used, in millijoules.

    `span_seconds` goes from the first reading to the last; `energy_mj` is None until something told it.
    """

    count: int = 0
    idle_count: int = 0
    span_seconds: float = 0.0
    energy_mj: float | None = None
    memory_total_bytes: int | None = None
    counters: dict[str, Tally] = field(default_factory=dict)
    throttle_reasons: dict[str, None] = field(default_factory=dict)

    def take(self, reading: Counters, energy_mj: float | None = None, seconds: float = 0.0) -> None:
        """One more reading, so many seconds after the one before, with the energy used since then."""
        one = DeviceTally(count=1, span_seconds=max(0.0, seconds), energy_mj=energy_mj)
        for name in COUNTERS:
            value = getattr(reading, name)
            if value is not None:
                one.counters[name] = Tally(1, value, value, value, value)
        utilization = reading.utilization_percent
        one.idle_count = int(utilization is not None and utilization < IDLE_UTILIZATION_PERCENT)
        one.memory_total_bytes = reading.memory_total_bytes
        one.throttle_reasons = dict.fromkeys(reading.throttle_reasons or ())
        self.add(one)

    def add(self, other: DeviceTally) -> None:
        """The readings of another tally, which came later."""
        self.count += other.count
        self.idle_count += other.idle_count
        self.span_seconds += other.span_seconds
        if other.energy_mj is not None:
            self.energy_mj = (self.energy_mj or 0.0) + other.energy_mj
        if other.memory_total_bytes is not None:
            self.memory_total_bytes = other.memory_total_bytes
        for name, tally in other.counters.items():
            self.counters.setdefault(name, Tally()).add(tally)
        for reason in other.throttle_reasons:
            if len(self.throttle_reasons) < THROTTLE_REASONS_MAX:
                self.throttle_reasons[reason] = None


POINTS_MAX = 600
"""Points of a series; when there are more, each two neighbours become one."""

SERIES_COUNTERS = ("utilization_percent", "memory_used_bytes", "temperature_c", "power_mw")


@dataclass(frozen=True, slots=True)
class Point:
    """Means of SERIES_COUNTERS over the span that ends at `end_us`, of so many readings; None where there was none."""

    end_us: int
    count: int
    means: tuple[float | None, ...]

    def joined(self, later: Point) -> Point:
        """Both spans as one."""
        means = (_mean(self, later, place) for place in range(len(self.means)))
        return Point(later.end_us, self.count + later.count, tuple(means))


def _mean(one: Point, other: Point, place: int) -> float | None:
    first, second = one.means[place], other.means[place]
    if first is None or second is None:
        return second if first is None else first
    return (first * one.count + second * other.count) / (one.count + other.count)


@dataclass(slots=True)
class Series:
    """The course of a device, coarser the longer it is."""

    points: list[Point] = field(default_factory=list)

    def take(self, end_us: int, readings: DeviceTally) -> None:
        """What was read until then, since the last time."""
        if not readings.count:
            return
        tallies = (readings.counters.get(name) for name in SERIES_COUNTERS)
        means = tuple(None if tally is None or not tally.count else tally.mean for tally in tallies)
        # A clock that went back must not turn the order round.
        end_us = max(end_us, self.points[-1].end_us if self.points else 0)
        self.points.append(Point(end_us, readings.count, means))
        if len(self.points) > POINTS_MAX:
            pairs = zip(self.points[::2], self.points[1::2], strict=False)
            odd = self.points[-1:] if len(self.points) % 2 else []
            self.points = [first.joined(second) for first, second in pairs] + odd


@dataclass(slots=True)
class Meter:
    """Energy between readings: by the device's own count, or else by its power.

    A count that fell (the driver was loaded anew) tells nothing of the time between; a clock that went back adds none.
    """

    _at_seconds: float | None = None
    _energy_mj: int | None = None

    def between(self, reading: Counters, at_seconds: float) -> tuple[float | None, float]:
        """The energy in millijoules since the last reading, None where nothing tells it, and the seconds since then."""
        seconds = 0.0 if self._at_seconds is None else max(0.0, at_seconds - self._at_seconds)
        before, now = self._energy_mj, reading.energy_mj
        self._at_seconds, self._energy_mj = at_seconds, now
        if now is not None:
            return (float(now - before) if before is not None and now >= before else 0.0), seconds
        if reading.power_mw is None:
            return None, seconds
        return reading.power_mw * min(seconds, GAP_SECONDS_MAX), seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeReading:
    """A process and all below it: processor time and I/O since each began, resident memory now. I/O may be unknown."""

    cpu_seconds: float
    memory_bytes: int
    read_bytes: int | None = None
    write_bytes: int | None = None
    process_count: int = 1


@dataclass(slots=True)
class ProcessTally:
    """What a tree of processes used: sums never fall when a process of it ends."""

    cpu_seconds: float = 0.0
    read_bytes: int | None = None
    write_bytes: int | None = None
    cpu_percent: Tally = field(default_factory=Tally)
    memory_bytes: Tally = field(default_factory=Tally)
    _at_seconds: float | None = None

    def take(self, reading: TreeReading, at_seconds: float) -> None:
        """One more reading; its processor load is that since the last one."""
        used = max(0.0, reading.cpu_seconds - self.cpu_seconds)
        if self._at_seconds is not None and at_seconds > self._at_seconds:
            self.cpu_percent.take(100 * used / (at_seconds - self._at_seconds))
        self._at_seconds = at_seconds
        self.cpu_seconds += used
        self.memory_bytes.take(reading.memory_bytes)
        self.read_bytes = _larger(self.read_bytes, reading.read_bytes)
        self.write_bytes = _larger(self.write_bytes, reading.write_bytes)


@dataclass(slots=True, kw_only=True)
class AttemptTally:
    """What one rank used since its devices were given to it, at `begun_us`; `ended_us` is None while it lasts.

    `sampling_us`: how often it wants to be read; None as its node does.
    """

    begun_us: int
    devices: dict[str, DeviceTally]
    processes: ProcessTally = field(default_factory=ProcessTally)
    series: dict[str, Series] = field(default_factory=dict)
    sampling_us: int | None = None
    ended_us: int | None = None

    @property
    def sample_count(self) -> int:
        """Readings of the device that was read most often; of its processes, where it has no device."""
        return max((each.count for each in self.devices.values()), default=self.processes.memory_bytes.count)

    def span_us(self, now_us: int) -> int:
        """How long it was watched."""
        return max(0, (now_us if self.ended_us is None else self.ended_us) - self.begun_us)


def begun(begun_us: int, uuids: Iterable[str], sampling_us: int | None = None) -> AttemptTally:
    """The tally of a rank that has just been given these devices."""
    devices = {uuid: DeviceTally() for uuid in uuids}
    return AttemptTally(begun_us=begun_us, devices=devices, sampling_us=sampling_us)


def _larger(before: int | None, now: int | None) -> int | None:
    return now if before is None else before if now is None else max(before, now)
