"""Histories and usage over restarts and crashes of a real scheduler, and beside a file that is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpufleet.v1 import capacity_pb2, job_pb2

from tests.e2e.client import Client
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until

RUNNING = job_pb2.JOB_STATE_RUNNING


async def used(client: Client, **asked: Any) -> capacity_pb2.UsageRow:
    return (await client.stub.ListUsage(capacity_pb2.ListUsageRequest(**asked))).total


async def held_us(client: Client, *jobs: int) -> int:
    """What the attempts of jobs held, in device-microseconds."""
    found = [attempt for job in jobs for attempt in (await client.job(job)).attempts]
    return sum(
        sum(len(rank.device_indices) for rank in each.ranks)
        * (each.end_time.ToMicroseconds() - each.place_time.ToMicroseconds())
        for each in found
    )


async def test_what_attempts_held_is_the_same_before_and_after_a_crash(fleet: Fleet, tmp_path: Path) -> None:
    await fleet.add_node("n1", "--virtual-gpus", "4", "--cpus", "8")
    async with fleet.client() as client:
        ended = [await client.submit("true", gpus=1) for _ in range(3)]
        for job in ended:
            await client.wait(job)
        lasting = await client.submit("sleep", "600", gpus=2)
        await client.wait(lasting, RUNNING)
        held = await held_us(client, *ended)
        before = await used(client)
        assert (before.job_count, before.start_count) == (3, 4)
        assert before.gpu_seconds > held / 1e6
    # Nothing of it may have been written yet.
    fleet.scheduler.kill()
    await fleet.scheduler.start()
    await fleet.node_is_ready("n1")
    async with fleet.client() as client:
        again = await used(client)
        assert (again.job_count, again.start_count) == (3, 4)
        assert again.gpu_seconds > before.gpu_seconds
        await client.cancel(lasting)
        await client.wait(lasting)
        held = await held_us(client, *ended, lasting)
        assert abs((await used(client)).gpu_seconds - held / 1e6) < 1e-6
    await fleet.scheduler.stop()
    # The file is no file of histories any more: it is moved aside, and what was held is counted anew.
    (fleet.scheduler.data / "history.db").write_bytes(b"not a database at all" * 1000)
    await fleet.scheduler.start()
    async with fleet.client() as client:
        assert abs((await used(client)).gpu_seconds - held / 1e6) < 1e-6
        assert (await used(client)).job_count == 4
    assert (fleet.scheduler.data / "history.db.broken-1").exists()


async def test_what_devices_did_is_told_again_after_an_orderly_end(fleet: Fleet) -> None:
    await fleet.add_node("n1")

    async def points(client: Client) -> int:
        told = await client.stub.GetNodeHistory(capacity_pb2.GetNodeHistoryRequest(node="n1", index=0))
        return sum(each >= 0 for device in told.devices for each in device.memory_used_mb.mean)

    async with fleet.client() as client:

        async def is_told() -> bool:
            return await points(client) > 0

        await until("something is recorded", is_told)
    await fleet.scheduler.stop()
    fleet.agents["n1"].kill()
    await fleet.scheduler.start()
    async with fleet.client() as client:
        assert await points(client) > 0
