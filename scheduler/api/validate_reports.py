"""From what agents report to the state's values: whoever is wrong is told the field; the way back is `convert_*.py`."""

import math

from gpufleet.v1 import node_agent_pb2, node_pb2

from gpufleet.errors import GpufleetError, Reason, invalid

from ..state.attempts import ExitCode, ExitSignal, ExitStatus, OutputEnd, OutputStream, RankExit
from ..state.events import Seen, SeenExited, SeenRefused, SeenRunning, SeenStarting
from ..state.ids import DeviceUuid, JobId, RankKey
from ..state.nodes import Device, DeviceProcess, DeviceSample, NodeInfo
from ..state.units import Instant, Span
from ..state.warnings import SLOWED_BY
from .convert_commands import STOP_CAUSES
from .usages import rank_use
from .validate import labels_of, span_of

STOP_CAUSE_OF = {number: cause for cause, number in STOP_CAUSES.items()}


def stream_of(number: int) -> OutputStream:
    """A stream by its number on the wire."""
    try:
        return OutputStream(number)
    except ValueError:
        raise invalid("stream", f"is {number}; it must be stdout or stderr") from None


def rank_key(key: node_agent_pb2.AttemptKey) -> RankKey:
    """A rank's key."""
    if key.job_id < 1 or key.attempt < 1 or key.rank < 0:
        raise invalid("key", f"names no rank: job {key.job_id}, attempt {key.attempt}, rank {key.rank}")
    return RankKey(JobId(key.job_id), key.attempt, key.rank)


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
    return NodeInfo(
        hostname=info.hostname,
        cpus=info.cpus,
        memory_bytes=info.memory_bytes,
        devices=tuple(
            Device(
                uuid=DeviceUuid(device.uuid),
                index=device.index,
                name=device.name,
                memory_bytes=device.memory_bytes,
                pci_bus_id=device.pci_bus_id,
                is_virtual=device.is_virtual,
            )
            for device in info.devices
        ),
        labels=labels_of(info.labels, "info.labels"),
        driver_version=info.driver_version,
        cuda_version=info.cuda_version,
        agent_version=info.agent_version,
        python_version=info.python_version,
        platform=info.platform,
        provider=info.provider or "static",
        advertise_address=info.advertise_address,
        devices_note=info.devices_note,
        devices_fix=info.devices_fix,
        torch_version=info.torch_version,
        cuda_runtime_version=info.cuda_runtime_version,
        open_files_max=info.open_files_max,
    )


def device_sample(sample: node_pb2.DeviceSample, now: Instant) -> DeviceSample:
    """A sample on the scheduler's clock; an absent counter is None."""

    def counter(name: str) -> int | None:
        return getattr(sample, name) if sample.HasField(name) else None  # type: ignore[arg-type]

    summary = sample.summary if sample.HasField("summary") else None
    reasons = sample.throttle_reasons if summary is None else summary.throttle_reasons
    return DeviceSample(
        uuid=DeviceUuid(sample.uuid),
        # A clock that went back on the node must not make a sample that is never old.
        taken_at=Instant(now - max(0, span_of(sample.age))),
        utilization_percent=counter("utilization_percent"),
        memory_used_bytes=counter("memory_used_bytes"),
        memory_free_bytes=counter("memory_free_bytes"),
        temperature_c=counter("temperature_c"),
        power_mw=counter("power_mw"),
        power_limit_mw=counter("power_limit_mw"),
        processes=tuple(
            DeviceProcess(
                pid=process.pid,
                memory_bytes=process.memory_bytes if process.HasField("memory_bytes") else None,
                is_foreign=process.is_foreign,
            )
            for process in sample.processes
        ),
        processes_are_known=sample.processes_are_known,
        is_healthy=sample.is_healthy,
        unhealthy_reason=sample.unhealthy_reason,
        utilization_percent_max=summary.utilization_percent.max if summary is not None else None,
        summed_span=span_of(summary.span) if summary is not None else Span(0),
        slowed_by=tuple(each for each in reasons if each in SLOWED_BY),
        told=sample.SerializeToString(),
    )


def exit_status(exited: node_agent_pb2.AttemptExited) -> ExitStatus | None:
    """How a leader ended, or None when nobody knows."""
    match exited.exit.WhichOneof("status"):
        case "code":
            return ExitCode(code=exited.exit.code)
        case "signal":
            return ExitSignal(signal=exited.exit.signal)
        case _:
            return None


def rank_exit(exited: node_agent_pb2.AttemptExited) -> RankExit:
    """How a rank ended."""
    return RankExit(
        exit=exit_status(exited),
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
    )


def seen(entry: node_agent_pb2.InventoryEntry) -> Seen:
    """What an inventory says of one rank."""
    match entry.phase:
        case node_agent_pb2.ATTEMPT_PHASE_STARTING:
            return SeenStarting()
        case node_agent_pb2.ATTEMPT_PHASE_RUNNING:
            return SeenRunning(run_span=span_of(entry.run_duration))
        case node_agent_pb2.ATTEMPT_PHASE_EXITED:
            return SeenExited(exit=rank_exit(entry.exited))
        case node_agent_pb2.ATTEMPT_PHASE_REFUSED:
            return SeenRefused(reason=entry.exited.reason or "REFUSED", message=entry.exited.message)
        case _:
            raise GpufleetError(Reason.INVALID_ARGUMENT, f"inventory entry {entry.key} has no phase")
