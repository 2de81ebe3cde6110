"""`monitor --node`: the GPUs of another machine, as the scheduler pushes them, summed up here."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import grpc
from gpufleet.v1 import capacity_pb2, node_pb2, scheduler_pb2

from gpufleet.devices.device import Device, DeviceProcess, DeviceSample, Owner, Trouble, TroubleKind, Vendor
from gpufleet.devices.hub import monotonic_us
from gpufleet.devices.snapshots import snapshot_of
from gpufleet.devices.statistics import statistics_of
from gpufleet.devices.tally import AttemptTally, DeviceTally, Meter, Series, begun
from gpufleet.fleet.async_client import LOST, AsyncClient, connected_async, is_told_to_end, may_pass
from gpufleet.fleet.settings import Settings
from gpufleet.text.units import format_duration

from ..errors import FAILED
from ..nodes.node_calls import nodes_as_typed
from ..top_view.fleet import OLD_S
from .monitor_view import DevicesView, until_left

PUSHED_SECONDS_MIN, PUSHED_SECONDS_MAX = 0.1, 60.0
"""What a scheduler takes as the shortest time between two messages."""
RETRY_SECONDS = 1.0
SILENT_SECONDS_MAX = 25.0
"""A stream without a message for so long is not believed: one comes every 10 s."""

FIGURES = (
    "utilization_percent",
    "memory_used_bytes",
    "memory_free_bytes",
    "memory_total_bytes",
    "temperature_c",
    "power_mw",
    "power_limit_mw",
    "energy_mj",
    "clock_sm_mhz",
    "clock_memory_mhz",
    "fan_percent",
    "ecc_uncorrected_count",
    "xid",
)
"""Counters of a sample that may be absent."""


async def watch_node(
    settings: Settings, node: str, interval_seconds: float
) -> tuple[int, capacity_pb2.GetJobStatsResponse | None]:
    """Show a node's GPUs until told to leave; answers the exit code, and what they did, None where there is none."""
    async with connected_async(settings) as client:
        watch = NodeWatch(client, node, interval_seconds)
        if not await watch.begin():
            return FAILED, None
        async with watch.following():
            code = await until_left(node, watch.look, settings.format, interval_seconds)
        return code, watch.message()


class NodeWatch:
    """The devices of one node: told whole once, and then as they change; each look counts as a reading of them."""

    def __init__(self, client: AsyncClient, node: str, interval_seconds: float) -> None:
        self._client = client
        self._node = node
        pushed_seconds = min(max(interval_seconds, PUSHED_SECONDS_MIN), PUSHED_SECONDS_MAX)
        self._request = scheduler_pb2.WatchDevicesRequest(nodes=[node])
        self._request.interval.FromTimedelta(timedelta(seconds=pushed_seconds))
        self._known: dict[str, node_pb2.NodeDevice] = {}
        self._devices: dict[str, Device] = {}
        self._meters: dict[str, Meter] = {}
        self._tally: AttemptTally = begun(monotonic_us(), ())
        self._heard_at = time.monotonic()
        self._is_away = False
        self._following: asyncio.Task[None] | None = None

    async def begin(self) -> bool:
        """Ask once, so that what is refused is told before a screen is opened; False where there is no GPU."""
        request = scheduler_pb2.ListDevicesRequest(nodes=[self._node])
        with nodes_as_typed():
            answer = await self._client.call(self._client.scheduler.ListDevices, request)
        if answer.devices:
            self.take(scheduler_pb2.WatchDevicesResponse(is_whole=True, devices=answer.devices))
            return True
        named = scheduler_pb2.ListNodesRequest(names=[self._node])
        (known,) = (await self._client.call(self._client.scheduler.ListNodes, named)).nodes
        why, fix = known.info.devices_note or "its agent tells of none", known.info.devices_fix
        print(f"gpuctl: no GPU to watch on node {self._node}: {why}", file=sys.stderr)
        print(f"  {fix or 'See those of other machines with: gpuctl top'}", file=sys.stderr)
        return False

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Take in what is pushed meanwhile."""
        self._following = asyncio.create_task(self._follow())
        try:
            yield
        finally:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    async def _follow(self) -> None:
        """Take in what is pushed, for ever; a stream that is lost is opened again. Raises what will not pass."""
        while True:
            try:
                async for answer in self._client.scheduler.WatchDevices(self._request):
                    self.take(answer)
            except grpc.RpcError as failure:
                problem = self._client.translated(failure)
                if not may_pass(problem):
                    raise problem from None
            except LOST:
                if is_told_to_end():
                    raise
            self._is_away = True
            await asyncio.sleep(RETRY_SECONDS)

    async def look(self) -> DevicesView:
        """The devices as they are known; each look that is not stale is a reading."""
        if self._following is not None and self._following.done():
            self._following.result()  # raises why there will be no more
        now_seconds = time.monotonic()
        silent_seconds = now_seconds - self._heard_at
        is_stale = self._is_away or silent_seconds > SILENT_SECONDS_MAX
        known = sorted(self._known.values(), key=lambda each: each.device.index)
        samples = [sample_of(each) for each in known]
        if not is_stale:
            self._count(samples, now_seconds)
        shown = (snapshot_of(device_of(each), sample) for each, sample in zip(known, samples, strict=True))
        age = format_duration(timedelta(seconds=math.floor(silent_seconds)))
        return DevicesView(
            devices=tuple(shown),
            users=tuple(_user(each) for each in known),
            stale=f"STALE: {self._client.settings.where} is away; this is of {age} ago" if is_stale else "",
        )

    def message(self) -> capacity_pb2.GetJobStatsResponse:
        """What the devices did since the beginning."""
        in_order = dict(sorted(self._devices.items(), key=lambda each: each[1].index))
        return statistics_of(self._tally, in_order, node=self._node, now_us=monotonic_us())

    def take(self, answer: scheduler_pb2.WatchDevicesResponse) -> None:
        """Take in what the scheduler told."""
        if answer.is_whole:
            self._known.clear()
        for uuid in answer.removed_uuids:
            self._known.pop(uuid, None)
        for each in answer.devices:
            self._known[each.device.uuid] = each
            self._devices.setdefault(each.device.uuid, device_of(each))
            self._tally.devices.setdefault(each.device.uuid, DeviceTally())
        self._heard_at, self._is_away = time.monotonic(), False

    def _count(self, samples: list[DeviceSample], now_seconds: float) -> None:
        for sample in samples:
            if not sample.is_readable or sample.age_seconds > OLD_S:
                continue  # its node is not heard: what it did last is not what it does
            reading = DeviceTally()
            reading.take(sample, *self._meters.setdefault(sample.uuid, Meter()).between(sample, now_seconds))
            self._tally.devices[sample.uuid].add(reading)
            self._tally.series.setdefault(sample.uuid, Series()).take(monotonic_us() - self._tally.begun_us, reading)


def device_of(told: node_pb2.NodeDevice) -> Device:
    """The facts of a device, as the scheduler tells them."""
    device = told.device
    return Device(
        uuid=device.uuid,
        index=device.index,
        name=device.name,
        memory_bytes=device.memory_bytes,
        vendor=Vendor.VIRTUAL if device.is_virtual else Vendor.NVIDIA,
        pci_bus_id=device.pci_bus_id,
    )


def sample_of(told: node_pb2.NodeDevice) -> DeviceSample:
    """The newest sample of a device, as the scheduler tells it; with no figures where it has none."""
    sample, device = told.sample, told.device
    told_fields = {field.name: value for field, value in sample.ListFields()}
    figures: dict[str, Any] = {name: told_fields.get(name) for name in FIGURES}
    reason = sample.unhealthy_reason or device.unhealthy_reason
    is_healthy = device.is_healthy and (sample.is_healthy or not told.HasField("sample"))
    kind, _, detail = reason.partition(": ")
    trouble = Trouble(kind=TroubleKind(kind) if kind in set(TroubleKind) else TroubleKind.UNREADABLE, detail=detail)
    processes = tuple(
        DeviceProcess(
            pid=each.pid,
            memory_bytes=each.memory_bytes if each.HasField("memory_bytes") else None,
            owner=Owner.FOREIGN if each.is_foreign else Owner.UNKNOWN,
        )
        for each in sample.processes
    )
    return DeviceSample(
        uuid=device.uuid,
        age_seconds=sample.age.ToTimedelta().total_seconds(),
        throttle_reasons=tuple(sample.throttle_reasons),
        processes=processes if sample.processes_are_known else None,
        troubles=() if is_healthy else (trouble,),
        **figures,
    )


def _user(told: node_pb2.NodeDevice) -> str:
    """Whose it is: the job that holds it and its user."""
    if told.job_id:
        return f"job {told.job_id}, {told.user}" if told.user else f"job {told.job_id}"
    return ", ".join(f"job {held.job_id}" for held in told.shares)
