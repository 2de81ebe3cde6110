"""All GPUs of the fleet, one a line: the screen of `gpuctl top`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpufleet.v1 import node_pb2

from gpufleet.units import format_size

from .table import Cell, Colour, Column, Look, Row, draw
from .words import counted

ABSENT = "–"
BAR_WIDTH = 8
FULL, EMPTY = "█", "·"

COLUMNS = (
    Column("NODE"),
    Column("GPU", is_right=True),
    Column("LOAD"),
    Column("MEMORY"),
    Column("POWER", is_right=True),
    Column("TEMP", is_right=True),
    Column("JOB", is_right=True),
    Column("USER"),
    Column("NAME", least=8),
)

Device = node_pb2.NodeDevice
Key = tuple[float | str, ...]


def _place(device: Device) -> Key:
    return (device.node, device.device.index)


def _load(device: Device) -> float:
    return device.sample.utilization_percent if device.sample.HasField("utilization_percent") else -1.0


def _memory_share(device: Device) -> float:
    total, sample = device.device.memory_bytes, device.sample
    return sample.memory_used_bytes / total if total and sample.HasField("memory_used_bytes") else -1.0


SORTS: dict[str, tuple[str, Callable[[Device], Key]]] = {
    "n": ("node", _place),
    "u": ("load", lambda device: (-_load(device), *_place(device))),
    "m": ("memory", lambda device: (-_memory_share(device), *_place(device))),
    "p": ("power", lambda device: (-device.sample.power_mw, *_place(device))),
    "t": ("temperature", lambda device: (-device.sample.temperature_c, *_place(device))),
    "j": ("job", lambda device: (not device.job_id, device.job_id, *_place(device))),
    "o": ("user", lambda device: (not device.user, device.user, *_place(device))),
}
"""Key → what it sorts by, and how: what is most of it first."""


def sorted_devices(devices: Sequence[Device], sort: str) -> list[Device]:
    """In the order of a key of SORTS."""
    return sorted(devices, key=SORTS[sort][1])


def top_lines(devices: Sequence[Device], look: Look) -> list[str]:
    """The table in the order given, its heading first."""
    return draw(COLUMNS, [_row(device) for device in devices], look)


def totals(devices: Sequence[Device]) -> str:
    """What all of them do, in a line."""
    loads = [_load(device) for device in devices if _load(device) >= 0]
    power_mw = sum(device.sample.power_mw for device in devices)
    parts = [counted(len(devices), "GPU"), f"{sum(device.is_free for device in devices):,} free"]
    if loads:
        parts.append(f"load {sum(loads) / len(loads):.0f}%")
    if power_mw:
        parts.append(f"{power_mw / 1e6:,.1f}kW")
    return ", ".join(parts)


def _row(device: Device) -> Row:
    sample, load, memory = device.sample, _load(device), _memory_share(device)
    used = format_size(sample.memory_used_bytes) if memory >= 0 else ""
    return [
        device.node,
        str(device.device.index),
        _bar(load, f"{load:.0f}%") if device.device.is_healthy else Cell("unhealthy", Colour.BAD),
        _bar(memory * 100, used),
        f"{sample.power_mw / 1000:.0f}W" if sample.HasField("power_mw") else ABSENT,
        f"{sample.temperature_c}°C" if sample.HasField("temperature_c") else ABSENT,
        str(device.job_id) if device.job_id else ",".join(str(held.job_id) for held in device.shares) or ABSENT,
        device.user or ABSENT,
        device.device.name,
    ]


def _bar(percent: float, label: str) -> Cell:
    if percent < 0:
        return Cell(ABSENT)
    full = min(BAR_WIDTH, round(percent / 100 * BAR_WIDTH))
    return Cell(f"{FULL * full}{EMPTY * (BAR_WIDTH - full)} {label}")
