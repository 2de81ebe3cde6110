"""What a job used, when the agent is killed in the middle of it, and when its node is lost."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
from gpufleet.v1 import capacity_pb2, job_pb2, scheduler_pb2

from tests.e2e.client import Client, span
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until

GB = 10**9
BUSY = {"utilization_percent": 80, "memory_used_bytes": 12 * GB, "power_mw": 300_000}
REST = {"utilization_percent": 20, "memory_used_bytes": 2 * GB, "power_mw": 100_000}


async def stats(client: Client, job: int, attempt: int = 0) -> capacity_pb2.GetJobStatsResponse:
    answer: capacity_pb2.GetJobStatsResponse = await client.stub.GetJobStats(
        capacity_pb2.GetJobStatsRequest(job_id=job, attempt=attempt)
    )
    return answer


def load(file: Path, reading: dict[str, int]) -> Path:
    """Virtual devices do this from now on, whenever an agent starts."""
    file.write_text("".join(json.dumps({"seconds": at, **reading}) + "\n" for at in (0, 3600)))
    return file


async def test_a_killed_agent_is_followed_by_one_that_goes_on_with_what_the_job_used(
    fleet: Fleet, tmp_path: Path
) -> None:
    file = load(tmp_path / "load.jsonl", BUSY)
    agent = await fleet.add_node("n1", "--virtual-gpus", "1", "--virtual-load", str(file))
    async with fleet.client() as client:
        job = await client.submit("sleep", "600", gpus=1, min_memory_bytes=GB, sampling_interval=span(0.2))
        await client.wait(job, job_pb2.JOB_STATE_RUNNING)
        lineage = (await client.job(job)).attempts[-1].lineage
        kept = agent.data / "usages" / f"{job}.1.0.{lineage}"

        async def is_kept() -> bool:
            return kept.exists() and json.loads(kept.read_text())["devices"] != {}

        await until("what it used is written down", is_kept)
        before = sum(each["count"] for each in json.loads(kept.read_text())["devices"].values())
        agent.kill()
        load(file, REST)
        agent.spawn()
        await fleet.node_is_ready("n1")

        async def goes_on() -> bool:
            told = await stats(client, job)
            return any(each.utilization_percent.min == 20 for each in told.devices)

        await until("the next agent reads on", goes_on)
        told = (await stats(client, job)).devices[0]
        assert (told.utilization_percent.min, told.utilization_percent.max, told.memory_used_mb.max) == (20, 80, 12_000)
        assert told.utilization_percent.count > before >= 1 and told.energy_wh > 0
        await client.cancel(job)
        await client.wait(job)
        ended = await stats(client, job)
        assert ended.is_final and not ended.is_incomplete
        assert ended.devices[0].utilization_percent.max == 80
        assert {80, 20} <= set(ended.devices[0].series.utilization_percent)
        await until("nothing is kept of what is stored", lambda: not kept.exists())


async def test_an_attempt_whose_node_is_lost_keeps_what_the_node_told_last(fleet: Fleet, tmp_path: Path) -> None:
    file = load(tmp_path / "load.jsonl", BUSY)
    async with fleet.client() as client:
        agent = await fleet.add_node("n1", "--virtual-gpus", "1", "--virtual-load", str(file))
        job = await client.submit("sleep", "600", gpus=1, min_memory_bytes=GB)
        await client.wait(job, job_pb2.JOB_STATE_RUNNING)

        async def is_read() -> bool:
            return (await stats(client, job)).sample_count >= 2

        await until("what it uses is told", is_read)
        agent.kill()

        async def is_forgotten() -> bool:
            try:
                await client.stub.ForgetNode(scheduler_pb2.ForgetNodeRequest(node="n1"))
            except grpc.aio.AioRpcError as refused:
                assert refused.code() is grpc.StatusCode.FAILED_PRECONDITION
                return False
            return True

        await until("somebody says that its node is gone", is_forgotten)
        assert "AttemptEnded" in await client.kinds(job)
        told = await stats(client, job, 1)
        assert told.is_final and told.is_incomplete and told.sample_count >= 2
        assert told.devices[0].utilization_percent.max == 80
        course = told.devices[0].series
        assert set(course.utilization_percent) == {80} and list(course.offset_ms) == sorted(set(course.offset_ms))
    await fleet.scheduler.stop()
    await fleet.scheduler.start()
    async with fleet.client() as client:
        again = await stats(client, job, 1)
        assert set(again.devices[0].series.utilization_percent) <= {80}, "as fine as the histories still are"
        for each in (told, again):
            each.devices[0].ClearField("series")
        assert again == told
