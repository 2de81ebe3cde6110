"""What a rank used from its allocation to its end, as its node summed it up. It is stored with the end of the rank."""

from collections.abc import Callable
from dataclasses import dataclass

from .ids import DeviceUuid
from .units import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistic:
    """Smallest, largest and mean value of one counter, of so many readings."""

    low: float
    high: float
    mean: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """Readings of one device, in the units of its counters; None where the device lacks the counter.

    `idle_count` are the readings with a utilisation below 5 %. `energy_mj` is in millijoules.
    """

    uuid: DeviceUuid
    utilization_percent: Statistic | None = None
    memory_used_bytes: Statistic | None = None
    temperature_c: Statistic | None = None
    power_mw: Statistic | None = None
    memory_total_bytes: int | None = None
    energy_mj: int | None = None
    idle_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """Readings of the rank's process and all below it; the load is in percent of one CPU."""

    cpu_seconds: float = 0.0
    cpu_percent: Statistic | None = None
    memory_bytes: Statistic | None = None
    read_bytes: int | None = None
    write_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankUse:
    """What one rank used in `span`, by readings of its devices, or without devices of its processes.

    `is_last_told`: its end was never told, so that this is what its node had told last.
    """

    span: Span
    sample_count: int
    devices: tuple[DeviceUse, ...] = ()
    processes: ProcessUse | None = None
    is_last_told: bool = False


@dataclass(frozen=True, slots=True)
class ReportedUse:
    """What a rank used so far, as its agent sent it: a beat brings one for each rank, and hardly one is ever read.

    `read` makes of it what it says, and answers None for what cannot be read.
    """

    told: bytes
    read: Callable[[bytes], RankUse | None]

    @property
    def use(self) -> RankUse | None:
        """What it says."""
        return self.read(self.told)
