"""This machine as the scheduler is told of it: facts once, and a beat of samples every few seconds."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import shutil
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpufleet.v1 import node_agent_pb2, node_pb2

from gpufleet.devices.device import COUNTERS, Device, DeviceProcess, DeviceSample, DeviceSource, Owner
from gpufleet.devices.host import HostFacts, HostReader
from gpufleet.devices.process_tree import LiveAttempt, mark_owners
from gpufleet.host.facts import first_installed, open_files_max
from gpufleet.jobs.runs import RankKey
from gpufleet.net.addresses import Address, is_loopback
from gpufleet.net.routes import LOOK_UP_SECONDS_MAX
from gpufleet.telemetry.device_metrics import INSTRUMENTS as OF_DEVICES
from gpufleet.telemetry.device_metrics import otlp_labels, values_of
from gpufleet.telemetry.metrics import Instrument, InstrumentKind, Metrics, Reading, Readings, on_loop

from . import wire
from .core.expectations import Reading as DeviceReading
from .core.outcome import AttemptView
from .origins import run_of
from .setup import tools

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
    accounts: node_pb2.JobAccounts | None = None
    """As whom jobs run there."""


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
        job_accounts=naming.accounts,
        environment_tools=tools.here(),
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


def reading_of(sample: DeviceSample) -> DeviceReading:
    """What the core checks a launch with."""
    return DeviceReading(
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
        processes=[_process(process) for process in (sample.processes or ())[:PROCESSES_PER_SAMPLE_MAX]],
        processes_are_known=sample.processes is not None,
        is_healthy=sample.is_healthy,
        unhealthy_reason=sample.unhealthy_reason,
        throttle_reasons=sample.throttle_reasons or (),
        **{name: getattr(sample, name) for name in COUNTERS},
    )


def _process(process: DeviceProcess) -> node_pb2.DeviceProcess:
    is_ours = process.owner is Owner.OURS and process.attempt is not None
    return node_pb2.DeviceProcess(
        pid=process.pid,
        memory_bytes=process.memory_bytes,
        job_id=RankKey.parse(process.attempt).job if is_ours and process.attempt else 0,
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
            name=view.key.name,
            leader_pid=view.pid,
            environment={
                "GPUFLEET_JOB_ID": str(view.key.job),
                "GPUFLEET_ATTEMPT": str(run_of(view.note, view.key)),
                "GPUFLEET_NODE_RANK": str(view.key.rank),
            },
        )
        for view in live
        if view.pid is not None
    ]


SOMEWHERE = ("192.0.2.1", 9)
"""An address that is reserved for documentation: the kernel chooses a way to it, and nothing is ever sent."""


async def address_to_advertise(schedulers: Iterable[Address]) -> str:
    """What to advertise where nobody said it; "" where the scheduler sees a good address, or there is none.

    The scheduler sees an agent by the address that it calls from. An agent beside its scheduler calls from loopback,
    and to another node of a gang 127.0.0.1 is itself. So such an agent says by itself what `--advertise` would: the
    address that this machine has on its way to other networks.
    """
    for scheduler in schedulers:
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(LOOK_UP_SECONDS_MAX):
                if await _is_beside(scheduler):
                    return own_address()
    return ""


def own_address() -> str:
    """The IPv4 address of this machine on its way to other networks; "" without such a way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(SOMEWHERE)
        except OSError:
            return ""
        address: str = probe.getsockname()[0]
    return "" if is_loopback(address) else address


async def _is_beside(scheduler: Address) -> bool:
    """Whether this machine reaches that scheduler over loopback, as it does by its own name on some distributions."""
    if is_loopback(scheduler.host):
        return True
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(scheduler.host, scheduler.port, type=socket.SOCK_STREAM)
    return any(is_loopback(str(where[0])) for *_, where in found)


SAMPLE_S_MAX = 30.0
"""A device whose newest reading is older tells nothing."""

OF_HOST = (
    Instrument(name="system.cpu.utilization", unit="1", doc="Share of the CPUs' time in which they worked."),
    Instrument(name="system.memory.usage", unit="By", doc="Memory in use.", kind=InstrumentKind.SUM),
    Instrument(name="gpufleet.spool.free", unit="By", doc="Room on the disk of the spool.", kind=InstrumentKind.SUM),
    Instrument(
        name="gpufleet.attempts", unit="{attempt}", doc="Attempts whose processes may run.", kind=InstrumentKind.SUM
    ),
)


def tell_node(
    metrics: Metrics,
    source: DeviceSource,
    spool_folder: Path,
    live: Callable[[], Iterable[AttemptView]],
) -> None:
    """Have the node's metrics read from now on. To be called inside the running loop."""
    if not metrics.is_on:
        return
    host = HostReader()

    async def read() -> Readings:
        readings = _devices(source)
        sample = host.sample()
        if sample.cpu_percent is not None:
            readings["system.cpu.utilization"] = [(sample.cpu_percent / 100, {})]
        if sample.memory_used_bytes is not None:
            readings["system.memory.usage"] = [(sample.memory_used_bytes, {"system.memory.state": "used"})]
        with suppress(OSError):  # the disk's trouble is told elsewhere
            readings["gpufleet.spool.free"] = [(shutil.disk_usage(spool_folder).free, {})]
        readings["gpufleet.attempts"] = [(sum(1 for _ in live()), {})]
        return readings

    instruments: Sequence[Instrument] = (*OF_DEVICES, *OF_HOST)
    metrics.observe(instruments, on_loop(asyncio.get_running_loop(), read))


def _devices(source: DeviceSource) -> dict[str, list[Reading]]:
    readings: dict[str, list[Reading]] = {}
    devices = {device.uuid: device for device in source.list()}
    for sample in source.sample():
        if sample.age_seconds > SAMPLE_S_MAX:
            continue
        labels = otlp_labels(device_to_proto(devices[sample.uuid], sample))
        for metric, value, own in values_of(sample_to_proto(sample)):
            readings.setdefault(metric.instrument.name, []).append((value, {**labels, **own}))
    return readings
