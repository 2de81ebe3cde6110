"""What a launch expects of its devices, checked against a reading of them.

The scheduler decided on samples that are seconds old and may have been wrong; the node looks again at the
last moment and refuses what would fail or harm somebody else. A counter that a device lacks can refuse
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

SAMPLE_AGE_US_MAX = 1_000_000
"""A launch is checked with readings no older than this."""


class Unfit(StrEnum):
    """Why a node does not take a launch; the names are stable."""

    DEVICE_BUSY = "DEVICE_BUSY"
    DEVICE_UNHEALTHY = "DEVICE_UNHEALTHY"
    CWD_MISSING = "CWD_MISSING"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One device `age_us` ago. `foreign_pids` is empty where nobody can tell whose the processes are."""

    uuid: str
    age_us: int
    unhealthy_reason: str = ""
    memory_free_bytes: int | None = None
    foreign_pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectations:
    """`memory_free_bytes` must be free on each device; foreign processes only with `allow_busy`."""

    device_uuids: tuple[str, ...]
    memory_free_bytes: int = 0
    allow_busy: bool = False


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a launch is refused, and for which devices."""

    reason: Unfit
    sentence: str
    uuids: tuple[str, ...]


def are_recent(expectations: Expectations, readings: Iterable[Reading]) -> bool:
    """Whether there is a reading of each device that is new enough to check a launch with."""
    recent = {reading.uuid for reading in readings if reading.age_us <= SAMPLE_AGE_US_MAX}
    return recent.issuperset(expectations.device_uuids)


def misfit(expectations: Expectations, readings: Iterable[Reading]) -> Misfit | None:
    """The first reason against the launch, None when its devices are as expected."""
    by_uuid = {reading.uuid: reading for reading in readings}
    for uuid in expectations.device_uuids:
        if found := _trouble(uuid, by_uuid) or _business(by_uuid[uuid], expectations):
            return found
    return None


def _trouble(uuid: str, by_uuid: Mapping[str, Reading]) -> Misfit | None:
    reading = by_uuid.get(uuid)
    if reading is None:
        return Misfit(Unfit.DEVICE_UNHEALTHY, f"this node has no device {uuid}, or it never answered", (uuid,))
    if reading.unhealthy_reason:
        return Misfit(Unfit.DEVICE_UNHEALTHY, f"device {uuid}: {reading.unhealthy_reason}", (uuid,))
    if reading.age_us > SAMPLE_AGE_US_MAX:
        age_s = reading.age_us / 1e6
        return Misfit(Unfit.DEVICE_UNHEALTHY, f"device {uuid} does not answer: last read {age_s:.0f} s ago", (uuid,))
    return None


def _business(reading: Reading, expectations: Expectations) -> Misfit | None:
    free, wanted = reading.memory_free_bytes, expectations.memory_free_bytes
    if free is not None and free < wanted:
        return Misfit(
            Unfit.DEVICE_BUSY,
            f"device {reading.uuid}: {free // 10**6:,} MB are free, the job needs {-(-wanted // 10**6):,} MB",
            (reading.uuid,),
        )
    if reading.foreign_pids and not expectations.allow_busy:
        pids = ", ".join(str(pid) for pid in reading.foreign_pids[:5])
        return Misfit(
            Unfit.DEVICE_BUSY,
            f"device {reading.uuid} is used by a foreign process (pid {pids})",
            (reading.uuid,),
        )
    return None
