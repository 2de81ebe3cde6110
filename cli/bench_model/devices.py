"""What the fleet says of the GPUs on which a model's replicas run, looked at while a row runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
from gpufleet.v1 import node_pb2, scheduler_pb2, sessions_pb2

from gpufleet.errors import GpufleetError
from gpufleet.fleet.async_client import LOST, AsyncClient, connected_async, is_told_to_end
from gpufleet.fleet.settings import Settings

from .device_sums import DeviceReading, DeviceSums

LOOK_EVERY_S = 1.0
JOBS_EVERY_LOOKS = 5
"""So often is asked which jobs the replicas are: there may be more of them by then."""

OLD_S = 11.0
"""A reading that is older says nothing any more, as in the metrics."""

AGAIN_S = 1.0
"""The pause before a stream that ended is opened again."""


class DeviceWatch:
    """Devices as the scheduler tells them, and looks at those of the model."""

    def __init__(self) -> None:
        self.devices: dict[str, node_pb2.NodeDevice] = {}
        self.jobs: frozenset[int] = frozenset()
        self.note = ""
        """Why nothing is known, where the scheduler could not be asked."""
        self._whole = DeviceSums()
        self._row = DeviceSums()

    def take(self, message: scheduler_pb2.WatchDevicesResponse) -> None:
        """What changed."""
        if message.is_whole:
            self.devices.clear()
        for uuid in message.removed_uuids:
            self.devices.pop(uuid, None)
        self.devices.update({each.device.uuid: each for each in message.devices})

    def forget(self) -> None:
        """Nothing is heard any more: what was last heard is no reading of now."""
        self.devices.clear()

    def look(self) -> None:
        """Count what the model's devices do now."""
        readings = list(readings_of(self.devices.values(), self.jobs))
        self._row.add(readings)
        self._whole.add(readings)

    def begin_row(self) -> None:
        """Count anew for a row."""
        self._row = DeviceSums()

    def row(self) -> dict[str, Any] | None:
        """Of the row, as JSON; None where nothing is known."""
        return self._row.as_dict()

    def whole(self) -> dict[str, Any] | None:
        """The same of all rows."""
        return self._whole.as_dict()


def readings_of(devices: Any, jobs: frozenset[int]) -> Iterator[DeviceReading]:
    """Readings of the devices that these jobs hold, or parts of them."""
    for each in devices:
        if each.job_id not in jobs and not any(share.job_id in jobs for share in each.shares):
            continue
        sample = each.sample
        is_old = not each.HasField("sample") or sample.age.ToTimedelta().total_seconds() > OLD_S

        def value(name: str, scale: float = 1.0, sample: Any = sample, is_old: bool = is_old) -> float | None:
            return None if is_old or not sample.HasField(name) else getattr(sample, name) * scale

        values = {
            "utilization_percent": value("utilization_percent"),
            "memory_used_bytes": value("memory_used_bytes"),
            "power_w": value("power_mw", 1e-3),
            "temperature_c": value("temperature_c"),
        }
        yield DeviceReading(each.device.uuid, each.node, each.device.index, each.device.name, values)


@asynccontextmanager
async def watching(settings: Settings | None, model: str) -> AsyncIterator[DeviceWatch]:
    """A watch over the model's devices; without settings, or without a scheduler, one that knows nothing."""
    watch = DeviceWatch()
    if settings is None:
        watch.note = "the model was asked without the fleet, which is not asked about its GPUs"
        yield watch
        return
    async with connected_async(settings) as client:
        try:
            watch.jobs = await _jobs_of(client, model)
        except GpufleetError as problem:
            watch.note = f"the scheduler was not asked about GPUs: {problem.message}"
            yield watch
            return
        tasks = [asyncio.create_task(_hear(client, watch)), asyncio.create_task(_look(client, watch, model))]
        try:
            yield watch
        finally:
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, Exception):
                    raise ended


async def _hear(client: AsyncClient, watch: DeviceWatch) -> None:
    while True:
        try:
            async for message in client.scheduler.WatchDevices(scheduler_pb2.WatchDevicesRequest()):
                watch.take(message)
        except (grpc.RpcError, *LOST):
            if is_told_to_end():
                raise
        watch.forget()
        await asyncio.sleep(AGAIN_S)


async def _look(client: AsyncClient, watch: DeviceWatch, model: str) -> None:
    looks = 0
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        looks += 1
        if looks % JOBS_EVERY_LOOKS == 0:
            with suppress(GpufleetError):
                watch.jobs = await _jobs_of(client, model)
        watch.look()


async def _jobs_of(client: AsyncClient, model: str) -> frozenset[int]:
    request = sessions_pb2.ListModelsRequest(page_size=1_000)
    jobs: set[int] = set()
    async for page in client.all_pages(client.scheduler.ListModels, request):
        jobs |= {worker.job_id for each in page.models if each.name == model for worker in each.workers}
    return frozenset(jobs - {0})
