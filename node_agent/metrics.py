"""What the agent tells OpenTelemetry of its machine: each device, the host, and the attempts that run here."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from gpufleet.device_metrics import INSTRUMENTS as OF_DEVICES
from gpufleet.device_metrics import otlp_labels, values_of
from gpufleet.devices import DeviceSource
from gpufleet.devices.host import HostReader
from gpufleet.metrics import Instrument, Kind, Metrics, Reading, Readings
from gpufleet.metrics_reading import on_loop

from .core.outcome import AttemptView
from .machine import device_to_proto, sample_to_proto

SAMPLE_S_MAX = 30.0
"""A device whose newest reading is older tells nothing."""

OF_HOST = (
    Instrument(name="system.cpu.utilization", unit="1", doc="Share of the CPUs' time in which they worked."),
    Instrument(name="system.memory.usage", unit="By", doc="Memory in use.", kind=Kind.SUM),
    Instrument(name="gpufleet.spool.free", unit="By", doc="Room on the disk of the spool.", kind=Kind.SUM),
    Instrument(name="gpufleet.attempts", unit="{attempt}", doc="Attempts whose processes may run.", kind=Kind.SUM),
)


def tell_node(
    metrics: Metrics,
    source: DeviceSource,
    spool_folder: Path,
    live: Callable[[], Iterable[AttemptView]],
) -> None:
    """Have the node's metrics read from now on. To be called inside the running loop."""
    if not metrics.is_on:
        return
    host = HostReader()

    async def read() -> Readings:
        readings = _devices(source)
        sample = host.sample()
        if sample.cpu_percent is not None:
            readings["system.cpu.utilization"] = [(sample.cpu_percent / 100, {})]
        if sample.memory_used_bytes is not None:
            readings["system.memory.usage"] = [(sample.memory_used_bytes, {"system.memory.state": "used"})]
        with suppress(OSError):  # the disk's trouble is told elsewhere
            readings["gpufleet.spool.free"] = [(shutil.disk_usage(spool_folder).free, {})]
        readings["gpufleet.attempts"] = [(sum(1 for _ in live()), {})]
        return readings

    instruments: Sequence[Instrument] = (*OF_DEVICES, *OF_HOST)
    metrics.observe(instruments, on_loop(asyncio.get_running_loop(), read))


def _devices(source: DeviceSource) -> dict[str, list[Reading]]:
    readings: dict[str, list[Reading]] = {}
    devices = {device.uuid: device for device in source.list()}
    for sample in source.sample():
        if sample.age_seconds > SAMPLE_S_MAX:
            continue
        labels = otlp_labels(device_to_proto(devices[sample.uuid], sample))
        for metric, value, own in values_of(sample_to_proto(sample)):
            readings.setdefault(metric.instrument.name, []).append((value, {**labels, **own}))
    return readings
