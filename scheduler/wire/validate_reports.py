"""From what agents report to the state's values: whoever is wrong is told the field; the way back is `convert_*.py`."""

import math
from collections.abc import Iterable, Iterator

from gpufleet.v1 import node_agent_pb2, node_pb2

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.jobs.run_protos import STOP_CAUSE_OF, exit_from_proto, runs_from_proto

from ..series.points import NOT_READ, Reading
from ..series.recorder import DeviceReading
from ..state.attempts import OutputEnd, OutputStream, RankExit, RefusalKind
from ..state.events import (
    Preparation,
    ReportedExited,
    ReportedRefused,
    ReportedRunning,
    ReportedStarting,
    ReportedState,
)
from ..state.ids import DeviceUuid, JobId, UserName
from ..state.nodes import Device, DeviceProcess, DeviceSample, HostSample, JobAccounts, NodeContainers, NodeInfo, RunsAs
from ..state.units import MB, SECOND, Instant, Span
from ..state.warnings import SLOWED_BY
from .convert import rank_key
from .convert_nodes import PLAIN_FACTS, RUNS_AS
from .usages import rank_use
from .validate import USER_NAME, labels_of, span_of

RUNS_AS_OF = {number: runs_as for runs_as, number in RUNS_AS.items()} | {node_pb2.RUNS_AS_UNSPECIFIED: None}
ACCOUNT_CHARS_MAX, WHY_CHARS_MAX, LIMITS_MAX, MOUNTS_TOLD_MAX = 64, 500, 8, 100
"""Of what an agent says of the accounts of jobs; the rest is cut."""

UID_MAX = 2**32 - 2
"""The highest that Linux gives to anybody; what an agent says beyond it is taken for nothing."""

READING_SECONDS_MAX = 3_600
"""A reading of a longer span is told of its end."""

REFUSAL_KINDS = {
    node_agent_pb2.REFUSAL_KIND_REQUEST: RefusalKind.REQUEST,
    node_agent_pb2.REFUSAL_KIND_JOB_HERE: RefusalKind.JOB_HERE,
    node_agent_pb2.REFUSAL_KIND_JOB_NOW: RefusalKind.JOB_NOW,
    node_agent_pb2.REFUSAL_KIND_DEVICES: RefusalKind.DEVICES,
    node_agent_pb2.REFUSAL_KIND_NODE: RefusalKind.NODE,
    node_agent_pb2.REFUSAL_KIND_NOBODY: RefusalKind.NOBODY,
}
"""Whom a refusal blames. Without a kind, or with one of a newer agent, it is judged by its reason."""

PREPARATIONS_MAX = 256
"""Of what a beat says of ranks that have not begun; the rest is cut."""

ENVIRONMENT_TOOLS_MAX = 16
"""Of what an agent says; the rest is cut."""


def stream_of(number: int) -> OutputStream:
    """A stream by its number on the wire."""
    try:
        return OutputStream(number)
    except ValueError:
        raise invalid("stream", f"is {number}; it must be stdout or stderr") from None


def port_of(port: int) -> int:
    """The port at which a gang is to meet; 0 from every rank but 0."""
    if not 0 <= port <= 65_535:
        raise invalid("rank_ready.master_port", f"is {port}; it must be 0 to 65,535")
    return port


def node_info(info: node_pb2.NodeInfo) -> NodeInfo:
    """What an agent says of its machine."""
    if info.cpus < 1:
        raise invalid("info.cpus", f"is {info.cpus}; a node has at least 1 CPU")
    if info.memory_bytes < 0:
        raise invalid("info.memory_bytes", f"is {info.memory_bytes:,}")
    if info.open_files_max < 0:
        raise invalid("info.open_files_max", f"is {info.open_files_max:,}")
    for number, device in enumerate(info.devices):
        if not device.uuid:
            raise invalid(f"info.devices[{number}].uuid", "is not set")
        if device.index < 0 or device.memory_bytes < 0:
            raise invalid(f"info.devices[{number}]", "has a negative index or memory")
    uuids = [device.uuid for device in info.devices]
    if len(set(uuids)) != len(uuids):
        raise invalid("info.devices", "two devices have the same UUID")
    plain = {name: getattr(info, name) for name in PLAIN_FACTS}
    devices = tuple(
        Device(
            uuid=DeviceUuid(device.uuid),
            index=device.index,
            name=device.name,
            memory_bytes=device.memory_bytes,
            pci_bus_id=device.pci_bus_id,
            is_virtual=device.is_virtual,
        )
        for device in info.devices
    )
    plain["provider"] = info.provider or "static"
    return NodeInfo(
        devices=devices,
        labels=labels_of(info.labels, "info.labels"),
        job_accounts=_job_accounts(info.job_accounts),
        containers=_containers(info.containers) if info.HasField("containers") else None,
        environment_tools=tuple(each[:ACCOUNT_CHARS_MAX] for each in info.environment_tools[:ENVIRONMENT_TOOLS_MAX]),
        **plain,
    )


def _job_accounts(told: node_pb2.JobAccounts) -> JobAccounts:
    """As whom jobs run there; of what a newer agent says that is not known here the node is its owner's alone."""
    runs_as = RUNS_AS_OF.get(told.runs_as, RunsAs.OWNER)
    if told.owner and not USER_NAME.fullmatch(told.owner):
        step = "name the owner with --owner as its tokens do: gpuctl token list"
        raise invalid("info.job_accounts.owner", f"{told.owner[:80]!r} is not a user's name", next_step=step)
    return JobAccounts(
        runs_as=runs_as,
        owner=UserName(told.owner),
        account=told.account[:ACCOUNT_CHARS_MAX],
        is_from_before=told.is_from_before,
        why=told.why[:WHY_CHARS_MAX],
        ends_all_by=told.ends_all_by[:ACCOUNT_CHARS_MAX],
        limits=tuple(each[:ACCOUNT_CHARS_MAX] for each in told.limits[:LIMITS_MAX]),
        limits_note=told.limits_note[:WHY_CHARS_MAX],
        uid_first=told.uid_first if 0 <= told.uid_first <= UID_MAX else 0,
        uids_note=told.uids_note[:WHY_CHARS_MAX],
        user_namespaces=told.user_namespaces[:ACCOUNT_CHARS_MAX],
    )


def _containers(told: node_pb2.NodeContainers) -> NodeContainers:
    return NodeContainers(
        engine=told.engine[:ACCOUNT_CHARS_MAX],
        problem=told.problem[:WHY_CHARS_MAX],
        fix=told.fix[:WHY_CHARS_MAX],
        gpus_by=told.gpus_by[:ACCOUNT_CHARS_MAX],
        mounts=tuple(each[:WHY_CHARS_MAX] for each in told.mounts[:MOUNTS_TOLD_MAX]),
    )


def host_sample(beat: node_agent_pb2.Beat) -> HostSample:
    """What a beat says of the machine itself; what cannot be is kept within what can."""
    host = beat.host
    return HostSample(
        cpu_percent=min(max(0, host.cpu_percent), 100) if host.HasField("cpu_percent") else None,
        memory_used_bytes=max(0, host.memory_used_bytes) if host.HasField("memory_used_bytes") else None,
        spool_free_bytes=host.spool_free_bytes if host.HasField("spool_free_bytes") else None,
        files_free_bytes=max(0, host.files_free_bytes) if host.HasField("files_free_bytes") else None,
        round_trip=Span(max(0, span_of(beat.round_trip))) if beat.HasField("round_trip") else None,
    )


def preparations(beat: node_agent_pb2.Beat) -> tuple[Preparation, ...]:
    """What a beat says of ranks that have not begun; what is beyond the bounds is cut."""
    return tuple(
        Preparation(
            key=rank_key(each.key),
            still=Span(max(0, span_of(each.still))),
            message=" ".join(each.message[:WHY_CHARS_MAX].split()),
        )
        for each in beat.preparations[:PREPARATIONS_MAX]
    )


def device_sample(sample: node_pb2.DeviceSample, now: Instant) -> DeviceSample:
    """A sample on the scheduler's clock; an absent counter is None."""
    has = sample.HasField
    summary = sample.summary if has("summary") else None
    reasons = sample.throttle_reasons if summary is None else summary.throttle_reasons
    return DeviceSample(
        uuid=DeviceUuid(sample.uuid),
        # A clock that went back on the node must not make a sample that is never old.
        taken_at=Instant(now - max(0, span_of(sample.age))),
        utilization_percent=sample.utilization_percent if has("utilization_percent") else None,
        memory_used_bytes=sample.memory_used_bytes if has("memory_used_bytes") else None,
        memory_free_bytes=sample.memory_free_bytes if has("memory_free_bytes") else None,
        temperature_c=sample.temperature_c if has("temperature_c") else None,
        power_mw=sample.power_mw if has("power_mw") else None,
        power_limit_mw=sample.power_limit_mw if has("power_limit_mw") else None,
        processes=tuple([_device_process(each) for each in sample.processes]),
        processes_are_known=sample.processes_are_known,
        is_healthy=sample.is_healthy,
        unhealthy_reason=sample.unhealthy_reason,
        utilization_percent_max=summary.utilization_percent.max if summary is not None else None,
        summed_span=span_of(summary.span) if summary is not None else Span(0),
        slowed_by=tuple([each for each in reasons if each in SLOWED_BY]),
        told=sample.SerializeToString(),
    )


def _device_process(process: node_pb2.DeviceProcess) -> DeviceProcess:
    return DeviceProcess(
        pid=process.pid,
        memory_bytes=process.memory_bytes if process.HasField("memory_bytes") else None,
        is_foreign=process.is_foreign,
        job=JobId(process.job_id) if process.job_id > 0 else None,
    )


def rank_exit(exited: node_agent_pb2.AttemptExited) -> RankExit:
    """How a rank ended."""
    return RankExit(
        exit=exit_from_proto(exited.exit),
        reason=exited.reason or "EXITED",
        message=exited.message,
        stop_cause=STOP_CAUSE_OF.get(exited.stop_cause),
        output_ends=tuple(
            OutputEnd(
                rank=exited.key.rank,
                stream=stream_of(end.stream),
                end_offset=end.end_offset,
                was_cut=end.was_cut,
            )
            for end in exited.output_ends
        ),
        output_is_complete=exited.output_is_complete,
        cpu_seconds=exited.cpu_seconds if math.isfinite(exited.cpu_seconds) else 0.0,
        memory_bytes_max=exited.memory_bytes_max,
        use=rank_use(exited.usage) if exited.HasField("usage") else None,
        is_blameless=exited.is_blameless,
    )


def started_ago(exited: node_agent_pb2.AttemptExited) -> Span | None:
    """How long ago the command of a rank that has ended started; None where it never ran, or its node does not say."""
    return Span(max(0, span_of(exited.started_ago))) if exited.HasField("started_ago") else None


def reported_state(entry: node_agent_pb2.InventoryEntry) -> ReportedState:
    """What an inventory says of one rank."""
    limit = span_of(entry.time_limit) if entry.HasField("time_limit") else None
    match entry.phase:
        case node_agent_pb2.ATTEMPT_PHASE_STARTING:
            return ReportedStarting(time_limit=limit)
        case node_agent_pb2.ATTEMPT_PHASE_RUNNING:
            return ReportedRunning(
                run_span=span_of(entry.run_duration),
                output_blocked=entry.output_blocked,
                time_limit=limit,
                file_runs=runs_from_proto(entry.file_runs),
            )
        case node_agent_pb2.ATTEMPT_PHASE_EXITED:
            return ReportedExited(exit=rank_exit(entry.exited), started_ago=started_ago(entry.exited))
        case node_agent_pb2.ATTEMPT_PHASE_REFUSED:
            reason = entry.exited.reason or "REFUSED"
            return ReportedRefused(
                reason=reason, message=entry.exited.message, kind=REFUSAL_KINDS.get(entry.refusal_kind)
            )
        case _:
            raise GpufleetError(Reason.INVALID_ARGUMENT, f"inventory entry {entry.key} has no phase")


def device_readings(samples: Iterable[node_pb2.DeviceSample], now: Instant) -> Iterator[DeviceReading]:
    """Each device's readings summed up, or its single one; in the order of the histories' counters."""
    for sample in samples:
        end = max(1, -(-(now - max(0, span_of(sample.age))) // SECOND))
        if sample.HasField("summary"):
            summary = sample.summary
            length = min(READING_SECONDS_MAX, max(1, round(span_of(summary.span) / SECOND) + 1))
            counters = (
                (summary.utilization_percent, 1),
                (summary.memory_used_bytes, MB),
                (summary.power_mw, 1_000),
                (summary.temperature_c, 1),
            )
            readings = tuple([_reading(counter, unit) for counter, unit in counters])
            last = _second_ones(counters, readings) if length == 2 else None
            yield DeviceReading(DeviceUuid(sample.uuid), end - length, end, readings, last)
        else:
            readings = (
                _single(sample.utilization_percent, 1) if sample.HasField("utilization_percent") else NOT_READ,
                _single(sample.memory_used_bytes, MB) if sample.HasField("memory_used_bytes") else NOT_READ,
                _single(sample.power_mw, 1_000) if sample.HasField("power_mw") else NOT_READ,
                _single(sample.temperature_c, 1) if sample.HasField("temperature_c") else NOT_READ,
            )
            yield DeviceReading(DeviceUuid(sample.uuid), end - 1, end, readings)


def _second_ones(
    counters: Iterable[tuple[node_pb2.Summary, float]], readings: tuple[Reading, ...]
) -> tuple[float, ...] | None:
    """Of two readings the second one, counter by counter; None where there were more, or fewer."""
    found: list[float] = []
    for (counter, unit), (low, high, _) in zip(counters, readings, strict=True):
        last = counter.last / unit if low >= 0 else low
        if low >= 0 and (counter.count != 2 or last not in (low, high)):
            return None
        found.append(last)
    return tuple(found)


def _reading(summary: node_pb2.Summary, unit: float) -> Reading:
    """A counter summed up, in another unit; what is no number, or below 0, was not read."""
    low, high, mean = summary.min, summary.max, summary.mean
    if not summary.count or not 0 <= low <= high < math.inf or math.isnan(mean):
        return NOT_READ
    return (low / unit, high / unit, min(max(low, mean), high) / unit)


def _single(value: int, unit: float) -> Reading:
    return NOT_READ if value < 0 else (value / unit, value / unit, value / unit)
