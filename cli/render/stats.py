"""What an attempt used: a table of its GPUs, and the JSON that scripts read."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from gpufleet.v1 import capacity_pb2

from gpufleet.units import format_duration, format_megabytes, format_size

from .table import Column, Look, Row, draw

ABSENT = "–"
MB = 10**6

GPU_COLUMNS = (
    Column("GPU"),
    Column("LOAD", is_right=True),
    Column("MAX", is_right=True),
    Column("MEMORY", is_right=True),
    Column("MAX", is_right=True),
    Column("TEMP", is_right=True),
    Column("POWER", is_right=True),
    Column("ENERGY", is_right=True),
    Column("NAME", least=12),
)


def stats_object(job_id: int, answer: capacity_pb2.GetJobStatsResponse) -> dict[str, Any]:
    """The JSON of `stats`: GPUs by their index, or by node:index with several nodes; what nobody read is left out."""
    told: dict[str, Any] = {
        "job_id": job_id,
        "attempt": answer.attempt,
        "is_final": answer.is_final,
        "monitoring_duration_seconds": answer.monitoring_duration.ToTimedelta().total_seconds(),
        "sample_count": answer.sample_count,
        "gpu_stats": {key: _device_object(device) for key, device in zip(_keys(answer), answer.devices, strict=True)},
        "gpu_seconds": round(answer.gpu_seconds, 3),
    }
    if answer.HasField("energy_wh"):
        told["energy_wh"] = round(answer.energy_wh, 6)
    if answer.HasField("idle_share"):
        told["idle_share"] = round(answer.idle_share, 4)
    if answer.processes:
        told["process_stats"] = {str(each.rank): _process_object(each) for each in answer.processes}
    return told


def _keys(answer: capacity_pb2.GetJobStatsResponse) -> list[str]:
    are_many = len({device.node for device in answer.devices}) > 1
    return [f"{device.node}:{device.index}" if are_many else str(device.index) for device in answer.devices]


def _device_object(device: capacity_pb2.DeviceStats) -> dict[str, Any]:
    told: dict[str, Any] = {"name": device.name, "uuid": device.uuid}
    if device.HasField("utilization_percent"):
        told["utilization"] = {**_spread(device.utilization_percent), "samples": device.utilization_percent.count}
    for name, statistic in (
        ("memory_used_mb", device.memory_used_mb),
        ("memory_usage_percent", device.memory_usage_percent),
        ("temperature_c", device.temperature_c),
        ("power_draw_w", device.power_draw_w),
    ):
        if statistic.count:
            told[name] = _spread(statistic)
    if device.HasField("energy_wh"):
        told["energy_wh"] = round(device.energy_wh, 6)
    if device.series.offset_ms:
        told["series"] = _series_object(device)
    return told


def _series_object(device: capacity_pb2.DeviceStats) -> dict[str, list[float | None]]:
    """The course of a GPU: the seconds at which each span ends, and the means over it; null where nobody read."""
    course = device.series
    told: dict[str, list[float | None]] = {"seconds": [offset / 1000 for offset in course.offset_ms]}
    for name in ("utilization_percent", "memory_used_mb", "temperature_c", "power_draw_w"):
        told[name] = [None if value < 0 else value for value in getattr(course, name)]
    return told


def _process_object(each: capacity_pb2.ProcessStats) -> dict[str, Any]:
    told: dict[str, Any] = {"node": each.node, "cpu_seconds": round(each.cpu_seconds, 3)}
    for name, statistic in (("cpu_percent", each.cpu_percent), ("memory_mb", each.memory_mb)):
        if statistic.count:
            told[name] = _spread(statistic)
    if each.HasField("read_bytes"):
        told["read_bytes"], told["write_bytes"] = each.read_bytes, each.write_bytes
    return told


def _spread(statistic: capacity_pb2.Statistic) -> dict[str, float]:
    return {"min": statistic.min, "max": statistic.max, "mean": statistic.mean}


def stats_screen(job_id: int, answer: capacity_pb2.GetJobStatsResponse, look: Look) -> list[str]:
    """The whole screen of `gpuctl stats`."""
    if not answer.attempt:
        return [f"Job {job_id} has not run yet. See why it waits with: gpuctl explain {job_id}"]
    so_far = "" if answer.is_final else " so far"
    head = f"Job {job_id}, attempt {answer.attempt}{so_far}:"
    if not answer.sample_count:
        return [f"{head} nothing was read of it; what ends within a second often is not.", *_sums(answer)]
    watched = format_duration(answer.monitoring_duration.ToTimedelta())
    lines = [f"{head} watched for {watched}, {answer.sample_count:,} samples.", *_sums(answer)]
    if answer.devices:
        rows = [_gpu_row(key, device) for key, device in zip(_keys(answer), answer.devices, strict=True)]
        lines += ["", *draw(GPU_COLUMNS, rows, look)]
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


def _gpu_row(key: str, device: capacity_pb2.DeviceStats) -> Row:
    load, memory = device.utilization_percent, device.memory_used_mb
    return [
        key,
        f"{load.mean:.0f}%" if load.count else ABSENT,
        f"{load.max:.0f}%" if load.count else ABSENT,
        format_megabytes(round(memory.mean * MB)) if memory.count else ABSENT,
        format_megabytes(round(memory.max * MB)) if memory.count else ABSENT,
        f"{device.temperature_c.mean:.0f}°C" if device.temperature_c.count else ABSENT,
        f"{device.power_draw_w.mean:.0f}W" if device.power_draw_w.count else ABSENT,
        f"{device.energy_wh:,.1f}Wh" if device.HasField("energy_wh") else ABSENT,
        device.name,
    ]


def _process_line(each: capacity_pb2.ProcessStats, *, are_many: bool) -> str:
    parts = [f"{format_duration(timedelta(seconds=each.cpu_seconds))} of processor time"]
    if each.cpu_percent.count:
        parts.append(f"{each.cpu_percent.mean:.0f}% of a CPU")
    if each.memory_mb.count:
        parts.append(f"memory {format_size(round(each.memory_mb.max * MB))} at most")
    if each.HasField("read_bytes"):
        parts.append(f"read {format_size(each.read_bytes)}, wrote {format_size(each.write_bytes)}")
    return f"{f'Rank {each.rank} on {each.node}' if are_many else 'Processes'}: {', '.join(parts)}"
