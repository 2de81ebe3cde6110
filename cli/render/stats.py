"""What GPUs did and do: the table and JSON of an attempt, and the screen of `gpuctl monitor`, a GPU a line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from gpufleet.v1 import capacity_pb2

from gpufleet.devices.snapshots import DeviceSnapshot
from gpufleet.devices.statistics import MB, device_keys, statistics_object
from gpufleet.text.units import counted, format_duration, format_megabytes, format_size

from .table import ABSENT, Cell, Colour, Column, Look, draw

Used = tuple[str, capacity_pb2.DeviceStats]
"""A device by its key, and what it did."""


def stats_object(job_id: int, answer: capacity_pb2.GetJobStatsResponse) -> dict[str, Any]:
    """The JSON of `stats`."""
    of_job: dict[str, Any] = {"job_id": job_id, "attempt": answer.attempt, "is_final": answer.is_final}
    if answer.is_incomplete:
        of_job["is_incomplete"] = True
    return of_job | statistics_object(answer)


def stats_screen(
    job_id: int, answer: capacity_pb2.GetJobStatsResponse, look: Look, *, has_ended: bool = False
) -> list[str]:
    """The whole screen of `gpuctl stats`."""
    if not answer.attempt and has_ended:
        return [f"Job {job_id} ended without having run. See why with: gpuctl job {job_id}"]
    if not answer.attempt:
        return [f"Job {job_id} has not run yet. See why it waits with: gpuctl explain {job_id}"]
    so_far = "" if answer.is_final else " so far"
    if answer.is_incomplete:
        so_far = ", as far as its node told before it was lost"
    return used_lines(f"Job {job_id}, attempt {answer.attempt}{so_far}:", answer, look)


def used_lines(head: str, answer: capacity_pb2.GetJobStatsResponse, look: Look) -> list[str]:
    """What was used, behind a head that says by whom."""
    if not answer.sample_count:
        return [f"{head} nothing was read of it; what ends within a second often is not.", *_sums(answer)]
    watched = format_duration(answer.monitoring_duration.ToTimedelta())
    lines = [f"{head} watched for {watched}, {counted(answer.sample_count, 'sample')}.", *_sums(answer)]
    if answer.devices:
        lines += ["", *draw(GPU_COLUMNS, zip(device_keys(answer), answer.devices, strict=True), look)]
    if answer.processes:
        lines += ["", *(_process_line(each, are_many=len(answer.processes) > 1) for each in answer.processes)]
    return lines


def _sums(answer: capacity_pb2.GetJobStatsResponse) -> list[str]:
    parts = []
    if answer.gpu_seconds:
        parts.append(f"{format_duration(timedelta(seconds=answer.gpu_seconds))} of GPU time")
    if answer.HasField("energy_wh"):
        parts.append(f"{answer.energy_wh:,.1f} Wh")
    if answer.HasField("idle_share"):
        parts.append(f"idle (below 5 %) {answer.idle_share:.0%} of it")
    return [", ".join(parts)] if parts else []


def _figure(title: str, field: str, in_words: Callable[[capacity_pb2.Statistic], str]) -> Column[Used]:
    """A figure of a device, where it was read at all."""

    def show(used: Used) -> str:
        figures: capacity_pb2.Statistic = getattr(used[1], field)
        return in_words(figures) if figures.count else ABSENT

    return Column(title, show, is_right=True)


def _energy(used: Used) -> str:
    return f"{used[1].energy_wh:,.1f}Wh" if used[1].HasField("energy_wh") else ABSENT


GPU_COLUMNS: Sequence[Column[Used]] = (
    Column("GPU", lambda used: used[0]),
    _figure("LOAD", "utilization_percent", lambda load: f"{load.mean:.0f}%"),
    _figure("MAX", "utilization_percent", lambda load: f"{load.max:.0f}%"),
    _figure("MEMORY", "memory_used_mb", lambda memory: format_megabytes(round(memory.mean * MB))),
    _figure("MAX", "memory_used_mb", lambda memory: format_megabytes(round(memory.max * MB))),
    _figure("TEMP", "temperature_c", lambda temperature: f"{temperature.mean:.0f}°C"),
    _figure("POWER", "power_draw_w", lambda power: f"{power.mean:.0f}W"),
    Column("ENERGY", _energy, is_right=True),
    Column("NAME", lambda used: used[1].name, least=12),
)


def _process_line(each: capacity_pb2.ProcessStats, *, are_many: bool) -> str:
    parts = [f"{format_duration(timedelta(seconds=each.cpu_seconds))} of processor time"]
    if each.cpu_percent.count:
        parts.append(f"{each.cpu_percent.mean:.0f}% of a CPU")
    if each.memory_mb.count:
        parts.append(f"memory {format_size(round(each.memory_mb.max * MB))} at most")
    if each.HasField("read_bytes"):
        parts.append(f"read {format_size(each.read_bytes)}, wrote {format_size(each.write_bytes)}")
    return f"{f'Rank {each.rank} on {each.node}' if are_many else 'Processes'}: {', '.join(parts)}"


V = TypeVar("V")


def monitor_lines(devices: Sequence[DeviceSnapshot], users: Sequence[str], look: Look) -> list[str]:
    """The table, its heading first; below it what is wrong. `users`: whose each is; empty shows who computes there."""
    columns: list[Column[tuple[DeviceSnapshot, str]]] = [
        Column("GPU", lambda each: str(each[0].index), is_right=True),
        Column("LOAD", lambda each: _load(each[0]), is_right=True),
        Column("USED", lambda each: _told(each[0].memory_used_mb, _megabytes), is_right=True),
        Column("FREE", lambda each: _told(each[0].memory_free_mb, _megabytes), is_right=True),
        Column("TEMP", lambda each: _told(each[0].temperature_c, "{}°C".format), is_right=True),
        Column("POWER", lambda each: _told(each[0].power_draw_w, "{:.0f}W".format), is_right=True),
        Column("SCORE", lambda each: _told(each[0].availability_score, "{:.2f}".format), is_right=True),
        Column("USED BY", lambda each: each[1] or _processes(each[0]), least=10),
        Column("NAME", lambda each: each[0].name, least=8),
    ]
    wrong = [f"GPU {each.index}: {each.unhealthy_reason}" for each in devices if not each.is_healthy]
    held_down = [
        f"GPU {each.index} is slowed down: {', '.join(each.throttle_reasons)}"
        for each in devices
        if each.throttle_reasons
    ]
    return [*draw(columns, zip(devices, users, strict=True), look), *wrong, *held_down]


def _load(device: DeviceSnapshot) -> Cell | str:
    return _told(device.utilization_percent, "{}%".format) if device.is_healthy else Cell("unhealthy", Colour.BAD)


def _told(value: V | None, in_words: Callable[[V], str]) -> str:
    return ABSENT if value is None else in_words(value)


def _megabytes(size_mb: int) -> str:
    return format_size(size_mb * MB)


def _processes(device: DeviceSnapshot) -> str:
    if not device.processes:
        return ABSENT
    count = len(device.processes)
    return "1 process" if count == 1 else f"{count:,} processes"
