"""What is told of a device, the same by OTLP and to Prometheus: one table, from a sample as agents send it.

Names, units and labels follow OpenTelemetry's conventions for hardware (1.44, "hw."); what these lack begins with
"gpufleet.device.". To Prometheus a device has the labels of NVIDIA's dcgm-exporter, so that the two can be joined.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gpufleet.telemetry.metrics import Instrument, InstrumentKind, Labels
from gpufleet.v1 import node_pb2

GPU: dict[str, str | int] = {"hw.type": "gpu"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMetric:
    """One metric of a device: its instrument, the counter of the sample times `scale`, and labels of its own."""

    instrument: Instrument
    counter: str
    scale: float = 1.0
    labels: Labels = field(default_factory=lambda: GPU)


def _metric(
    name: str,
    unit: str,
    doc: str,
    counter: str,
    scale: float = 1.0,
    kind: InstrumentKind = InstrumentKind.GAUGE,
    **labels: str,
) -> DeviceMetric:
    named: dict[str, str | int] = {key.replace("_", "."): value for key, value in labels.items()}
    instrument = Instrument(name=name, unit=unit, doc=doc, kind=kind)
    return DeviceMetric(instrument=instrument, counter=counter, scale=scale, labels=GPU | named)


USED = _metric("hw.gpu.memory.usage", "By", "Memory in use.", "memory_used_bytes", kind=InstrumentKind.SUM)
LIMIT = _metric("hw.gpu.memory.limit", "By", "Memory in all.", "memory_total_bytes", kind=InstrumentKind.SUM)
FILLED = _metric("hw.gpu.memory.utilization", "1", "Share of the memory that is in use.", "")
STATUS = _metric("hw.status", "1", "1 for the state that it is in: ok or failed.", "", kind=InstrumentKind.SUM)
PROCESSES = _metric("gpufleet.device.processes", "{process}", "Processes on it, whoever they belong to.", "")
THROTTLED = _metric("gpufleet.device.throttled", "", "Whether something but idleness holds its clocks down.", "")

COUNTERS = (
    _metric("hw.gpu.utilization", "1", "Share of time in which it computed.", "utilization_percent", 0.01),
    USED,
    LIMIT,
    _metric("hw.temperature", "Cel", "Temperature.", "temperature_c"),
    _metric("hw.power", "W", "Power drawn.", "power_mw", 1e-3),
    _metric("gpufleet.device.power.limit", "W", "Power that it may draw.", "power_limit_mw", 1e-3),
    _metric("hw.energy", "J", "Energy used since its driver was loaded.", "energy_mj", 1e-3, InstrumentKind.COUNT),
    _metric(
        "hw.errors",
        "{error}",
        "Uncorrected memory errors since its driver was loaded.",
        "ecc_uncorrected_count",
        kind=InstrumentKind.COUNT,
        error_type="uncorrected_ecc",
    ),
    _metric("gpufleet.device.fan", "1", "Fan speed, of its highest.", "fan_percent", 0.01),
    _metric("gpufleet.device.clock", "Hz", "Clock.", "clock_sm_mhz", 1e6, clock="sm"),
    _metric("gpufleet.device.clock", "Hz", "Clock.", "clock_memory_mhz", 1e6, clock="memory"),
    _metric(
        "gpufleet.device.memory.bus", "1", "Share of time in which memory moved.", "memory_utilization_percent", 0.01
    ),
)
"""Those that are one counter of the sample each; a device that lacks the counter lacks the metric."""

METRICS = (*COUNTERS, FILLED, STATUS, PROCESSES, THROTTLED)
INSTRUMENTS = tuple({each.instrument.name: each.instrument for each in METRICS}.values())

IDLE_REASONS = frozenset({"gpu_idle"})
"""Clocks that are down because there is nothing to do hold nobody up."""


def values_of(sample: node_pb2.DeviceSample) -> Iterator[tuple[DeviceMetric, float, Labels]]:
    """Everything that a sample says, each with the labels that it has beside those of the device."""
    for metric in COUNTERS:
        if sample.HasField(metric.counter):  # type: ignore[arg-type]
            yield metric, getattr(sample, metric.counter) * metric.scale, metric.labels
    if sample.memory_total_bytes and sample.HasField("memory_used_bytes"):
        yield FILLED, sample.memory_used_bytes / sample.memory_total_bytes, GPU
    for state, is_it in (("ok", sample.is_healthy), ("failed", not sample.is_healthy)):
        yield STATUS, float(is_it), GPU | {"hw.state": state}
    if sample.processes_are_known:
        yield PROCESSES, float(len(sample.processes)), GPU
    yield THROTTLED, float(not IDLE_REASONS.issuperset(sample.throttle_reasons)), GPU


def values_told(told: bytes) -> Iterator[tuple[DeviceMetric, float, Labels]]:
    """The same of a sample as its agent sent it."""
    return values_of(node_pb2.DeviceSample.FromString(told))


def otlp_labels(device: node_pb2.Device) -> Labels:
    """What tells a device from others over OTLP, beside the resource, which names its machine."""
    labels: dict[str, str | int] = {
        "hw.id": device.uuid,
        "hw.name": f"GPU {device.index}",
        "hw.model": device.name,
        "gpufleet.device.index": device.index,
    }
    if not device.is_virtual:
        labels["hw.vendor"] = device.name.partition(" ")[0]
    return labels


def prometheus_labels(uuid: str, index: int, *, name: str, pci_bus_id: str, node: str, hostname: str) -> dict[str, str]:
    """The same for Prometheus, as dcgm-exporter spells it, and the node by its name here."""
    return {
        "gpu": str(index),
        "UUID": uuid,
        "pci_bus_id": pci_bus_id,
        "modelName": name,
        "Hostname": hostname or node,
        "node": node,
    }
