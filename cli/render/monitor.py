"""The screen of `gpuctl monitor`: a machine's GPUs, one a line."""

from __future__ import annotations

from collections.abc import Sequence

from gpufleet.devices.snapshots import MB, DeviceSnapshot
from gpufleet.units import format_size

from .table import Cell, Colour, Column, Look, Row, draw

ABSENT = "–"

COLUMNS = (
    Column("GPU", is_right=True),
    Column("LOAD", is_right=True),
    Column("USED", is_right=True),
    Column("FREE", is_right=True),
    Column("TEMP", is_right=True),
    Column("POWER", is_right=True),
    Column("SCORE", is_right=True),
    Column("USED BY", least=10),
    Column("NAME", least=8),
)


def monitor_lines(devices: Sequence[DeviceSnapshot], users: Sequence[str], look: Look) -> list[str]:
    """The table, its heading first; below it what is wrong. `users`: whose each is; empty shows who computes there."""
    rows = [_row(device, user) for device, user in zip(devices, users, strict=True)]
    wrong = [f"GPU {each.index}: {each.unhealthy_reason}" for each in devices if not each.is_healthy]
    held_down = [
        f"GPU {each.index} is slowed down: {', '.join(each.throttle_reasons)}"
        for each in devices
        if each.throttle_reasons
    ]
    return [*draw(COLUMNS, rows, look), *wrong, *held_down]


def _row(device: DeviceSnapshot, user: str) -> Row:
    load = device.utilization_percent
    return [
        str(device.index),
        Cell("unhealthy", Colour.BAD) if not device.is_healthy else _told(load, f"{load}%"),
        _megabytes(device.memory_used_mb),
        _megabytes(device.memory_free_mb),
        _told(device.temperature_c, f"{device.temperature_c}°C"),
        _told(device.power_draw_w, f"{device.power_draw_w or 0:.0f}W"),
        _told(device.availability_score, f"{device.availability_score or 0:.2f}"),
        user or _processes(device),
        device.name,
    ]


def _told(value: float | None, text: str) -> str:
    return ABSENT if value is None else text


def _megabytes(size_mb: int | None) -> str:
    return ABSENT if size_mb is None else format_size(size_mb * MB)


def _processes(device: DeviceSnapshot) -> str:
    if not device.processes:
        return ABSENT
    count = len(device.processes)
    return "1 process" if count == 1 else f"{count:,} processes"
