"""What an attempt used: a table of its GPUs, and the JSON that scripts read."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from gpufleet.v1 import capacity_pb2

from gpufleet.statistics import MB, device_keys, statistics_object
from gpufleet.units import format_duration, format_megabytes, format_size

from .table import Column, Look, Row, draw
from .words import counted

ABSENT = "–"

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
        rows = [_gpu_row(key, device) for key, device in zip(device_keys(answer), answer.devices, strict=True)]
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
