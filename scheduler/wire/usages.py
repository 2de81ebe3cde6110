"""What ranks used: from what agents tell to the state's values, and to what people are shown."""

import math
from collections.abc import Iterable

from gpufleet.v1 import capacity_pb2, node_agent_pb2, node_pb2

from gpufleet.errors import GpufleetError, invalid

from ..series.points import DEVICE
from ..series.queries import History
from ..state.attempts import Attempt, EndedAttempt, Placement
from ..state.ids import DeviceUuid, RankKey
from ..state.shares import WHOLE_MILLI
from ..state.units import MB, MILLISECOND, NEVER, SECOND, Instant, Span
from ..state.used import DeviceUse, ProcessUse, RankUse, ReportedUse, Statistic
from ..state.warnings import MEMORY_JUDGED_SPAN, MemoryPeak
from .convert import rank_key
from .validate import span_of

DEVICES_MAX = 1_024
"""Devices of one rank of which a use is kept."""
UUID_CHARS_MAX = 200
MJ_PER_WH = 3_600_000


def rank_use(usage: node_agent_pb2.AttemptUsage) -> RankUse:
    """What a rank used, as its agent told it. Numbers that are none are left out: they could not be stored."""
    if len(usage.devices) > DEVICES_MAX:
        raise invalid("usage.devices", f"holds {len(usage.devices):,} devices; at most {DEVICES_MAX:,}")
    return RankUse(
        span=Span(max(0, span_of(usage.duration))),
        sample_count=max(0, usage.sample_count),
        devices=tuple(_device_use(each) for each in usage.devices),
        processes=_process_use(usage.processes) if usage.HasField("processes") else None,
    )


def memory_peaks(
    usages: Iterable[node_agent_pb2.AttemptUsage], judged_from: Span
) -> tuple[tuple[RankKey, MemoryPeak], ...]:
    """The memory that ranks used which are judged by it now: most are too young, or were judged."""
    found: list[tuple[RankKey, MemoryPeak]] = []
    for usage in usages if judged_from else ():
        span = Span(span_of(usage.duration))
        if judged_from <= span < judged_from + MEMORY_JUDGED_SPAN:
            found.append((rank_key(usage.key), memory_peak(span, usage)))
    return tuple(found)


def memory_peak(span: Span, usage: node_agent_pb2.AttemptUsage) -> MemoryPeak:
    """The most memory that was in use on each device of a rank that told any."""
    used = {
        DeviceUuid(each.uuid): round(each.memory_used_bytes.max)
        for each in usage.devices
        if each.memory_used_bytes.count and math.isfinite(each.memory_used_bytes.max)
    }
    return MemoryPeak(span=span, used_bytes=used)


def reported_use(usage: node_agent_pb2.AttemptUsage) -> ReportedUse:
    """What a rank used so far, to be read when somebody wants to know."""
    return ReportedUse(usage.SerializeToString(), _read_use)


def _read_use(told: bytes) -> RankUse | None:
    try:
        return rank_use(node_agent_pb2.AttemptUsage.FromString(told))
    except GpufleetError:
        return None


def _device_use(usage: node_agent_pb2.DeviceUsage) -> DeviceUse:
    return DeviceUse(
        uuid=DeviceUuid(usage.uuid[:UUID_CHARS_MAX]),
        utilization_percent=_statistic(usage.utilization_percent),
        memory_used_bytes=_statistic(usage.memory_used_bytes),
        temperature_c=_statistic(usage.temperature_c),
        power_mw=_statistic(usage.power_mw),
        memory_total_bytes=usage.memory_total_bytes if usage.HasField("memory_total_bytes") else None,
        energy_mj=usage.energy_mj if usage.HasField("energy_mj") else None,
        idle_count=usage.idle_count,
    )


def _process_use(usage: node_agent_pb2.ProcessUsage) -> ProcessUse:
    return ProcessUse(
        cpu_seconds=usage.cpu_seconds if math.isfinite(usage.cpu_seconds) else 0.0,
        cpu_percent=_statistic(usage.cpu_percent),
        memory_bytes=_statistic(usage.memory_bytes),
        read_bytes=usage.read_bytes if usage.HasField("read_bytes") else None,
        write_bytes=usage.write_bytes if usage.HasField("write_bytes") else None,
    )


def _statistic(summary: node_pb2.Summary) -> Statistic | None:
    """A counter; None when it was never read."""
    values = (summary.min, summary.max, summary.mean)
    if summary.count < 1 or not all(map(math.isfinite, values)):
        return None
    return Statistic(low=summary.min, high=summary.max, mean=summary.mean, count=summary.count)


Part = tuple[Placement, RankUse | None]
"""A rank's place, and what it used, None where nobody knows."""


def stats_proto(
    attempt: Attempt | EndedAttempt, parts: Iterable[Part], now: Instant
) -> capacity_pb2.GetJobStatsResponse:
    """What an attempt used, all ranks together and device by device."""
    ended_at = attempt.ended_at if isinstance(attempt, EndedAttempt) else now
    told = capacity_pb2.GetJobStatsResponse(attempt=attempt.number, is_final=isinstance(attempt, EndedAttempt))
    span, energies, idle, loads, held_milli = Span(0), [], 0, 0, 0
    for rank, (placement, use) in enumerate(parts):
        held_milli += sum(device.share_milli or WHOLE_MILLI for device in placement.devices)
        if use is None:
            continue
        told.is_incomplete |= use.is_last_told
        span = max(span, use.span)
        told.sample_count += use.sample_count
        by_uuid = {device.uuid: device for device in placement.devices}
        for device in use.devices:
            placed = by_uuid.get(device.uuid)
            if placed is None:
                continue
            told.devices.append(_device_stats(placement.node, placed.index, placed.name, device))
            energies += [] if device.energy_mj is None else [device.energy_mj]
            if device.utilization_percent is not None:
                idle, loads = idle + device.idle_count, loads + device.utilization_percent.count
        if use.processes is not None:
            told.processes.append(_process_stats(placement.node, rank, use.processes))
    told.monitoring_duration.FromMicroseconds(span)
    held_since = ended_at if attempt.held_since is None else attempt.held_since
    told.gpu_seconds = max(0, ended_at - held_since) / SECOND * held_milli / WHOLE_MILLI
    if energies:
        told.energy_wh = sum(energies) / MJ_PER_WH
    if loads:
        told.idle_share = idle / loads
    return told


def add_courses(told: capacity_pb2.GetJobStatsResponse, payloads: Iterable[bytes]) -> None:
    """The course of each device, from what was kept of its rank."""
    by_uuid = {
        device.uuid: device.series
        for payload in payloads
        for device in node_agent_pb2.AttemptUsage.FromString(payload).devices
    }
    for device in told.devices:
        if device.uuid in by_uuid:
            device.series.CopyFrom(by_uuid[device.uuid])


def add_courses_of_histories(
    devices: Iterable[capacity_pb2.DeviceStats], courses: History, placed_at: Instant, until: Instant = NEVER
) -> None:
    """The course of each of these devices from the histories, in the same order, of steps that end by `until`."""
    for device, (_, readings) in zip(devices, courses.told, strict=True):
        for number, step in enumerate(readings):
            end = courses.begin + (number + 1) * courses.step
            if step is None or end > until:
                continue
            device.series.offset_ms.append((end - placed_at) // MILLISECOND)
            for counter, (_, _, mean) in zip(DEVICE.counters, step, strict=True):
                getattr(device.series, counter.name).append(round(mean))


def _device_stats(node: str, index: int, name: str, use: DeviceUse) -> capacity_pb2.DeviceStats:
    total = use.memory_total_bytes
    return capacity_pb2.DeviceStats(
        node=node,
        index=index,
        uuid=use.uuid,
        name=name,
        utilization_percent=_shown(use.utilization_percent),
        memory_used_mb=_shown(use.memory_used_bytes, MB),
        memory_usage_percent=_shown(use.memory_used_bytes, total / 100) if total else None,
        temperature_c=_shown(use.temperature_c),
        power_draw_w=_shown(use.power_mw, 1000),
        energy_wh=None if use.energy_mj is None else use.energy_mj / MJ_PER_WH,
    )


def _process_stats(node: str, rank: int, use: ProcessUse) -> capacity_pb2.ProcessStats:
    return capacity_pb2.ProcessStats(
        node=node,
        rank=rank,
        cpu_seconds=use.cpu_seconds,
        cpu_percent=_shown(use.cpu_percent),
        memory_mb=_shown(use.memory_bytes, MB),
        read_bytes=use.read_bytes,
        write_bytes=use.write_bytes,
    )


def _shown(statistic: Statistic | None, unit: float = 1) -> capacity_pb2.Statistic | None:
    """A counter in another unit, to three decimals; None when it was never read."""
    if statistic is None:
        return None
    low, high, mean = (round(value / unit, 3) for value in (statistic.low, statistic.high, statistic.mean))
    return capacity_pb2.Statistic(min=low, max=high, mean=mean, count=statistic.count)
