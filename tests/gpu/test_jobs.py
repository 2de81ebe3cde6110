"""Jobs on a real GPU through a real scheduler and agent: which one they see, what they use, who is in the way."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from gpufleet.v1 import capacity_pb2, job_pb2, node_pb2, scheduler_pb2

from tests.e2e.client import FINAL, Client
from tests.e2e.fleet import Fleet
from tests.e2e.processes import POLL_SECONDS
from tests.gpu import smi
from tests.gpu.results import Results

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

LOAD = Path(__file__).with_name("load.py")
GB = 10**9
HELD_GB = 2.0
LOAD_SECONDS = float(os.environ.get("GPUFLEET_GPU_SECONDS", "20"))
CONTEXT_GB_MAX = 3.0
"""What a CUDA context and the libraries of a matrix product take besides."""
PATIENCE_SECONDS = 180.0
TAKEN_ON = ("LD_LIBRARY_PATH", "PYTHONPATH")
"""Without them PyTorch or the driver may not be found in a job."""


def load(seconds: float = LOAD_SECONDS) -> list[str]:
    return [sys.executable, str(LOAD), "--gigabytes", str(HELD_GB), "--seconds", str(seconds)]


@pytest.fixture
async def admin(gpus: list[smi.Shown], torch_version: str, tmp_path: Path) -> AsyncIterator[Client]:
    """Somebody with a fleet of this machine."""
    async with Fleet(tmp_path / "fleet") as fleet:
        await fleet.add_node("n1", "--cpus", "4")
        async with fleet.client() as client:
            yield client


async def submit(admin: Client, *argv: str) -> int:
    env = {name: os.environ[name] for name in TAKEN_ON if name in os.environ}
    return await admin.submit(*argv, gpus=1, min_memory_bytes=4 * GB, env=env)


async def patiently(what: str, condition: Callable[[], Awaitable[object]]) -> None:
    """Wait for something that may take as long as loading CUDA does on a machine that has just started."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not await condition():
        assert time.monotonic() < deadline, f"it never came to this: {what}"
        await asyncio.sleep(POLL_SECONDS)


async def ending(admin: Client, job_id: int) -> job_pb2.Job:
    """The job once it has ended."""

    async def has_ended() -> bool:
        return (await admin.job(job_id)).state in FINAL

    await patiently(f"job {job_id} ends", has_ended)
    return await admin.job(job_id)


async def devices(admin: Client) -> list[node_pb2.NodeDevice]:
    return list((await admin.node("n1")).devices)


async def test_a_torch_job_sees_its_own_gpu_by_uuid_and_its_statistics_are_those_of_its_load(
    admin: Client, results: Results
) -> None:
    before = {each.device.uuid: each.sample for each in await devices(admin)}
    job_id = await submit(admin, *load())

    async def is_computing() -> bool:
        has_said = bool(await admin.stdout(job_id, follow=False))
        return has_said or (await admin.job(job_id)).state == job_pb2.JOB_STATE_FAILED

    await patiently("the load is there", is_computing)
    running = await admin.job(job_id)
    (uuid,) = running.attempts[0].ranks[0].device_uuids
    shown: list[node_pb2.DeviceProcess] = []

    async def is_listed() -> bool:
        shown[:] = next(each.sample.processes for each in await devices(admin) if each.device.uuid == uuid)
        return bool(shown) or (await admin.job(job_id)).state != job_pb2.JOB_STATE_RUNNING

    await patiently("its process is listed", is_listed)
    ended = await ending(admin, job_id)
    assert ended.state == job_pb2.JOB_STATE_SUCCEEDED, await admin.output(job_id, stream=job_pb2.STREAM_STDERR)
    told: dict[str, Any] = json.loads((await admin.stdout(job_id)).splitlines()[0])
    assert (told["uuid"], told["count"]) == (uuid, 1)
    whose = [each.job_id for each in shown]
    results.add("whose the process on a job's GPU is", "the job's" if job_id in whose else "not told by this driver")
    # In a container the driver's pids may be another namespace's: then nobody knows whose they are.
    assert job_id in whose or not any(each.is_foreign for each in shown)

    stats = await admin.stub.GetJobStats(capacity_pb2.GetJobStatsRequest(job_id=job_id))
    (used,) = stats.devices
    held_mb = told["held_bytes"] / 1e6
    idle_mb = before[uuid].memory_used_bytes / 1e6
    assert held_mb - 1 <= used.memory_used_mb.max - idle_mb <= held_mb + CONTEXT_GB_MAX * 1000
    assert used.utilization_percent.max >= 90
    assert stats.sample_count >= LOAD_SECONDS / 2
    duration = stats.monitoring_duration.ToTimedelta().total_seconds()
    assert duration >= LOAD_SECONDS and len(used.series.offset_ms) >= LOAD_SECONDS / 2
    results.add("memory of a job that holds 2 GB", f"{used.memory_used_mb.max:,.0f} MB, {idle_mb:,.0f} MB of it before")
    results.add(
        "utilisation of matrix products", f"{used.utilization_percent.mean:.0f} % mean, {stats.sample_count} samples"
    )
    if used.power_draw_w.count:
        idle_w = before[uuid].power_mw / 1000
        assert used.power_draw_w.max > idle_w
        results.add("power of matrix products", f"{used.power_draw_w.max:.0f} W at most, {idle_w:.0f} W before")
    if used.HasField("energy_wh") and used.power_draw_w.count:
        by_power_wh = used.power_draw_w.mean * duration / 3600
        assert used.energy_wh == pytest.approx(by_power_wh, rel=0.3)
        results.add(
            "energy by the GPU's own count", f"{used.energy_wh:.2f} Wh; mean power × time: {by_power_wh:.2f} Wh"
        )


async def test_a_foreign_process_is_seen_and_nothing_is_placed_beside_it(admin: Client, results: Results) -> None:
    count = len(await devices(admin))
    command = load(600)
    strangers = []
    try:
        for index in range(count):
            environment = {**os.environ, "CUDA_VISIBLE_DEVICES": str(index), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
            strangers.append(
                await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.PIPE)
            )
        for stranger in strangers:
            assert stranger.stdout is not None
            async with asyncio.timeout(120):
                assert await stranger.stdout.readline()
        busy = [await is_busy(admin, index) for index in range(count)]
        if not all(busy):
            results.add("a foreign process on a GPU", "not told by this driver, or hidden by a container")
            pytest.skip("the driver lists no foreign process here: a container hides it")
        results.add("a foreign process on a GPU", "seen")
        job = await submit(admin, "true")
        waiting = (await admin.stub.Explain(scheduler_pb2.ExplainRequest(job_id=job))).explanation
        assert (await admin.job(job)).state == job_pb2.JOB_STATE_QUEUED, waiting
    finally:
        for stranger in strangers:
            if stranger.returncode is None:
                stranger.kill()
            await stranger.communicate()
    ended = await ending(admin, job)
    assert ended.state == job_pb2.JOB_STATE_SUCCEEDED


async def is_busy(admin: Client, index: int) -> bool:
    """Whether the device is shown with a foreign process; it is read anew, a few times at most."""
    for _ in range(5):
        request = scheduler_pb2.ListDevicesRequest(nodes=["n1"], fresh=True)
        for each in (await admin.stub.ListDevices(request)).devices:
            if each.device.index == index and any(process.is_foreign for process in each.sample.processes):
                return not each.is_free
    return False
