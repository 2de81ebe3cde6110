"""No devices: the node has CPUs and memory only, and can say why."""

from __future__ import annotations

from .device import Device, DeviceSample, SourceStatus
from .tally import DeviceTally


class NoDevices:
    """A source of nothing that remembers why there is nothing."""

    def __init__(self, status: SourceStatus) -> None:
        self._status = status

    def list(self) -> tuple[Device, ...]:
        return ()

    def sample(self) -> tuple[DeviceSample, ...]:
        return ()

    def fresh(
        self, *, max_age_seconds: float, timeout_seconds: float, uuids: tuple[str, ...] | None = None
    ) -> tuple[DeviceSample, ...]:
        return ()

    def drain(self) -> dict[str, DeviceTally]:
        return {}

    def set_interval(self, seconds: float) -> None:
        pass

    def clear_troubles(self, uuids: tuple[str, ...]) -> None:
        pass

    def status(self) -> SourceStatus:
        return self._status

    def close(self) -> None:
        pass
