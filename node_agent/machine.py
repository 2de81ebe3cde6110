"""This machine as the scheduler is told of it: facts once, and a beat of samples every few seconds."""

from __future__ import annotations

import platform
import shutil
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpufleet.v1 import node_agent_pb2, node_pb2

from gpufleet.devices import (
    Device,
    DeviceProcess,
    DeviceSample,
    DeviceSource,
    HostFacts,
    HostReader,
    LiveAttempt,
    Owner,
    mark_owners,
)
from gpufleet.machine_facts import first_installed, open_files_max

from . import wire
from .core.expectations import Reading
from .core.outcome import AttemptKey, AttemptView

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
TORCH = ("torch",)
CUDA_RUNTIMES = (
    "nvidia-cuda-runtime",
    "nvidia-cuda-runtime-cu13",
    "nvidia-cuda-runtime-cu12",
    "nvidia-cuda-runtime-cu11",
)
"""The distributions that torch brings its CUDA with, newest first."""

PROCESSES_PER_SAMPLE_MAX = 64
"""Processes of a device that a sample names; more tell nobody anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNaming:
    """What a person said about the node when starting its agent."""

    node: str
    advertise: str
    labels: Mapping[str, str]


def boot_id() -> str:
    """The id of this boot of the machine."""
    return BOOT_ID_FILE.read_text(encoding="ascii").strip()


def installed_version() -> str:
    """The version of gpufleet that this agent runs; "0" from a bare checkout."""
    return first_installed(("gpufleet",)) or "0"


def node_info(naming: NodeNaming, facts: HostFacts, source: DeviceSource) -> node_pb2.NodeInfo:
    """The machine's facts as they are registered."""
    status = source.status()
    samples = {sample.uuid: sample for sample in source.sample()}
    return node_pb2.NodeInfo(
        hostname=socket.gethostname(),
        cpus=facts.cpus,
        memory_bytes=facts.memory_bytes,
        devices=[device_to_proto(device, samples.get(device.uuid)) for device in source.list()],
        driver_version=status.driver_version,
        cuda_version=status.cuda_version,
        devices_note=status.note,
        devices_fix=status.next_step,
        torch_version=first_installed(TORCH),
        cuda_runtime_version=first_installed(CUDA_RUNTIMES),
        open_files_max=open_files_max(),
        agent_version=installed_version(),
        python_version=platform.python_version(),
        platform=platform.platform(),
        labels=naming.labels,
        provider="static",
        advertise_address=naming.advertise,
    )


class Machine:
    """Samples of devices and host, with each process's owner known from the attempts that run."""

    def __init__(self, source: DeviceSource, spool_folder: Path) -> None:
        self.source = source
        self.devices = {device.uuid: device for device in source.list()}
        self._host = HostReader()
        self._spool_folder = spool_folder

    def beat(
        self,
        live: Iterable[AttemptView],
        summaries: Mapping[str, node_pb2.DeviceSummary],
        usages: Iterable[node_agent_pb2.AttemptUsage],
    ) -> node_agent_pb2.Beat:
        """A sign of life with the newest samples and all readings since the last; waits for no device."""
        samples = []
        for sample in mark_owners(self.source.sample(), _leaders(live)):
            samples.append(sample_to_proto(sample))
            if (summary := summaries.get(sample.uuid)) is not None:
                samples[-1].summary.CopyFrom(summary)
        return node_agent_pb2.Beat(samples=samples, host=self._sample(), usages=usages)

    def readings(self, live: Iterable[AttemptView], uuids: tuple[str, ...]) -> tuple[DeviceSample, ...]:
        """The newest samples of these devices; waits for none."""
        return mark_owners([each for each in self.source.sample() if each.uuid in uuids], _leaders(live))

    def fresh_readings(
        self, live: Iterable[AttemptView], uuids: tuple[str, ...], *, timeout_seconds: float
    ) -> tuple[DeviceSample, ...]:
        """Samples of these devices read from now on where they answer in time. Blocks: for a thread."""
        samples = self.source.fresh(max_age_seconds=0.0, timeout_seconds=timeout_seconds, uuids=uuids)
        return mark_owners(samples, _leaders(live))

    def _sample(self) -> node_agent_pb2.HostSample:
        host = self._host.sample()
        try:
            free_bytes: int | None = shutil.disk_usage(self._spool_folder).free
        except OSError:
            free_bytes = None
        return node_agent_pb2.HostSample(
            cpu_percent=host.cpu_percent, memory_used_bytes=host.memory_used_bytes, spool_free_bytes=free_bytes
        )


def reading_of(sample: DeviceSample) -> Reading:
    """What the core checks a launch with."""
    return Reading(
        uuid=sample.uuid,
        age_us=round(sample.age_seconds * 1e6),
        unhealthy_reason=sample.unhealthy_reason,
        memory_free_bytes=sample.memory_free_bytes,
        foreign_pids=tuple(process.pid for process in sample.processes or () if process.is_foreign),
    )


def sample_to_proto(sample: DeviceSample) -> node_pb2.DeviceSample:
    """A sample for the wire; a counter that the device lacks stays absent."""
    return node_pb2.DeviceSample(
        uuid=sample.uuid,
        age=wire.duration(round(sample.age_seconds * 1e6)),
        utilization_percent=sample.utilization_percent,
        memory_used_bytes=sample.memory_used_bytes,
        memory_free_bytes=sample.memory_free_bytes,
        temperature_c=sample.temperature_c,
        power_mw=sample.power_mw,
        power_limit_mw=sample.power_limit_mw,
        processes=[_process(process) for process in (sample.processes or ())[:PROCESSES_PER_SAMPLE_MAX]],
        processes_are_known=sample.processes is not None,
        is_healthy=sample.is_healthy,
        unhealthy_reason=sample.unhealthy_reason,
        clock_sm_mhz=sample.clock_sm_mhz,
        clock_memory_mhz=sample.clock_memory_mhz,
        fan_percent=sample.fan_percent,
        throttle_reasons=sample.throttle_reasons or (),
        ecc_uncorrected_count=sample.ecc_uncorrected_count,
        xid=sample.xid,
        memory_total_bytes=sample.memory_total_bytes,
        memory_utilization_percent=sample.memory_utilization_percent,
        energy_mj=sample.energy_mj,
    )


def _process(process: DeviceProcess) -> node_pb2.DeviceProcess:
    is_ours = process.owner is Owner.OURS and process.attempt is not None
    return node_pb2.DeviceProcess(
        pid=process.pid,
        memory_bytes=process.memory_bytes,
        job_id=AttemptKey.parse(process.attempt).job_id if is_ours and process.attempt else 0,
        is_foreign=process.is_foreign,
    )


def device_to_proto(device: Device, sample: DeviceSample | None) -> node_pb2.Device:
    """A device's facts for the wire."""
    return node_pb2.Device(
        uuid=device.uuid,
        index=device.index,
        name=device.name,
        memory_bytes=device.memory_bytes,
        pci_bus_id=device.pci_bus_id,
        is_virtual=device.is_virtual,
        is_healthy=sample.is_healthy if sample is not None else True,
        unhealthy_reason=sample.unhealthy_reason if sample is not None else "",
    )


def _leaders(live: Iterable[AttemptView]) -> list[LiveAttempt]:
    return [
        LiveAttempt(
            name=str(view.key),
            leader_pid=view.pid,
            environment={
                "GPUFLEET_JOB_ID": str(view.key.job_id),
                "GPUFLEET_ATTEMPT": str(view.key.attempt),
                "GPUFLEET_NODE_RANK": str(view.key.rank),
            },
        )
        for view in live
        if view.pid is not None
    ]
