"""What a job, or a monitor, used: from the sums to the message, and from the message to the JSON that scripts read.

`gpuctl stats`, `gpuctl monitor` and `gpufleet.monitor` all tell it by these, so that one script reads all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gpufleet.v1 import capacity_pb2, node_pb2

if TYPE_CHECKING:
    from .device import Device
    from .tally import AttemptTally, DeviceTally, ProcessTally, Series, Tally

MB = 10**6
MJ_PER_WH = 3_600_000
DECIMALS = 3


def statistics_of(
    tally: AttemptTally, devices: Mapping[str, Device], *, node: str, now_us: int
) -> capacity_pb2.GetJobStatsResponse:
    """What was summed up until now, in the form of a job's statistics; of `devices`, by UUID, in their order."""
    watched = [uuid for uuid in devices if uuid in tally.devices]
    told = capacity_pb2.GetJobStatsResponse(sample_count=tally.sample_count, is_final=tally.ended_us is not None)
    span_us = tally.span_us(now_us)
    told.monitoring_duration.FromMicroseconds(span_us)
    told.gpu_seconds = span_us / 1e6 * len(watched)
    readings = [tally.devices[uuid] for uuid in watched]
    for uuid, each in zip(watched, readings, strict=True):
        told.devices.append(_device(node, devices[uuid], each))
        if uuid in tally.series:
            told.devices[-1].series.CopyFrom(series_message(tally.series[uuid]))
    energies = [each.energy_mj for each in readings if each.energy_mj is not None]
    if energies:
        told.energy_wh = sum(energies) / MJ_PER_WH
    loads = sum(each.counters["utilization_percent"].count for each in readings if _has_load(each))
    if loads:
        told.idle_share = sum(each.idle_count for each in readings if _has_load(each)) / loads
    if tally.processes.memory_bytes.count:
        told.processes.append(_processes(node, tally.processes))
    return told


def _has_load(tally: DeviceTally) -> bool:
    return "utilization_percent" in tally.counters


def _device(node: str, device: Device, tally: DeviceTally) -> capacity_pb2.DeviceStats:
    counters, total = tally.counters, tally.memory_total_bytes
    memory = counters.get("memory_used_bytes")
    return capacity_pb2.DeviceStats(
        node=node,
        index=device.index,
        uuid=device.uuid,
        name=device.name,
        utilization_percent=_statistic(counters.get("utilization_percent")),
        memory_used_mb=_statistic(memory, MB),
        memory_usage_percent=_statistic(memory, total / 100) if total else None,
        temperature_c=_statistic(counters.get("temperature_c")),
        power_draw_w=_statistic(counters.get("power_mw"), 1000),
        energy_wh=None if tally.energy_mj is None else tally.energy_mj / MJ_PER_WH,
    )


def _processes(node: str, tally: ProcessTally) -> capacity_pb2.ProcessStats:
    return capacity_pb2.ProcessStats(
        node=node,
        cpu_seconds=tally.cpu_seconds,
        cpu_percent=_statistic(tally.cpu_percent),
        memory_mb=_statistic(tally.memory_bytes, MB),
        read_bytes=tally.read_bytes,
        write_bytes=tally.write_bytes,
    )


def _statistic(tally: Tally | None, unit: float = 1) -> capacity_pb2.Statistic | None:
    """A counter in another unit; None when it was never read."""
    if tally is None or not tally.count:
        return None
    low, high, mean = (round(value / unit, DECIMALS) for value in (tally.low, tally.high, tally.mean))
    return capacity_pb2.Statistic(min=low, max=high, mean=mean, count=tally.count)


def series_message(series: Series) -> node_pb2.DeviceSeries:
    """The course of a device; what nobody read is -1."""
    load, memory, temperature, power = ([point.means[place] for point in series.points] for place in range(4))
    return node_pb2.DeviceSeries(
        offset_ms=[point.end_us // 1000 for point in series.points],
        utilization_percent=_whole(load),
        memory_used_mb=_whole(memory, MB),
        temperature_c=_whole(temperature),
        power_draw_w=_whole(power, 1000),
    )


def _whole(means: Iterable[float | None], unit: int = 1) -> list[int]:
    return [-1 if mean is None else round(mean / unit) for mean in means]


def statistics_object(answer: capacity_pb2.GetJobStatsResponse) -> dict[str, Any]:
    """As JSON: GPUs by their index, or by node:index with several nodes; what nobody read is left out."""
    told: dict[str, Any] = {
        "monitoring_duration_seconds": answer.monitoring_duration.ToTimedelta().total_seconds(),
        "sample_count": answer.sample_count,
        "gpu_stats": {key: _device_object(each) for key, each in zip(device_keys(answer), answer.devices, strict=True)},
        "gpu_seconds": round(answer.gpu_seconds, 3),
    }
    if answer.HasField("energy_wh"):
        told["energy_wh"] = round(answer.energy_wh, 6)
    if answer.HasField("idle_share"):
        told["idle_share"] = round(answer.idle_share, 4)
    if answer.processes:
        told["process_stats"] = {str(each.rank): _process_object(each) for each in answer.processes}
    return told


def device_keys(answer: capacity_pb2.GetJobStatsResponse) -> list[str]:
    """What each device is called: its index, or node:index where there are several nodes."""
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
