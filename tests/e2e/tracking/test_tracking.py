"""What is read of GPUs, from the agent's readings to what people see, with a recorded load."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from gpufleet.v1 import capacity_pb2, job_pb2, scheduler_pb2

from tests.cli.terminal import Terminal
from tests.e2e.client import span
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until

GB = 10**9
LOAD = (
    {"seconds": 0, "gpu": 0, "utilization_percent": 80, "memory_used_bytes": 12 * GB, "power_mw": 300_000},
    {
        "seconds": 0,
        "gpu": 1,
        "utilization_percent": 10,
        "memory_used_bytes": GB,
        "power_mw": 90_000,
        "temperature_c": 41,
    },
    {"seconds": 3600, "gpu": 1},
)
GONE = {"seconds": 0, "gpu": 1, "trouble": "VANISHED"}


async def test_a_job_gets_the_best_gpu_and_what_that_did_is_its_own(fleet: Fleet, tmp_path: Path) -> None:
    file = tmp_path / "load.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in LOAD))
    agent = await fleet.add_node("n1", "--virtual-gpus", "2", "--virtual-load", str(file))
    async with fleet.client() as client:
        request = scheduler_pb2.ListDevicesRequest(only_free=True, fresh=True, min_memory_bytes=GB)
        listed = (await client.stub.ListDevices(request)).devices
        assert [(each.device.index, each.availability_score) for each in listed] == [(1, 0.9225), (0, 0.23)]
        job = await client.submit("sleep", "600", gpus=1, min_memory_bytes=GB)
        await client.wait(job, job_pb2.JOB_STATE_RUNNING)
        placed = (await client.job(job)).attempts[0].gpu_info
        assert (placed.allocation_method, list(placed.indices)) == ("score", ["1"])
        assert (placed.devices[0].utilization_percent, placed.devices[0].memory_free_mb) == (10, 15_000)
        asked = capacity_pb2.GetJobStatsRequest(job_id=job)

        async def is_read() -> bool:
            return (await client.stub.GetJobStats(asked)).sample_count >= 2

        await until("the device of the job is read", is_read)
        so_far = await client.stub.GetJobStats(asked)
        (device,) = so_far.devices
        assert (device.index, device.utilization_percent.mean, device.memory_used_mb.max) == (1, 10, 1000)
        assert (device.power_draw_w.max, device.temperature_c.min, device.memory_usage_percent.max) == (90, 41, 6.25)
        assert so_far.energy_wh > 0
        assert (await client.job(job)).has_stats
        assert set(device.series.utilization_percent) == {10} and set(device.series.memory_used_mb) == {1000}
        assert len(device.series.offset_ms) == len(device.series.power_draw_w)
        assert min(device.series.offset_ms) > 0
        # A new start of the agent finds the job, and now its device is gone.
        file.write_text("".join(json.dumps(line) + "\n" for line in (LOAD[0], GONE)))
        await agent.stop()
        agent.spawn()

        async def is_told() -> bool:
            return "JobWarned" in await client.kinds(job)

        await until("the job is told of its device", is_told)
        node = await client.node("n1")
        assert [each.device.is_healthy for each in node.devices] == [True, False]
        other = await client.submit("true", gpus=1, min_memory_bytes=GB)
        assert (await client.wait(other)).attempts[0].gpu_info.indices == ["0"]
        await client.cancel(job)
        await client.wait(job)
        queued = await client.stub.Queue(scheduler_pb2.QueueRequest(include_finished=True))
        assert {each.id: each.has_stats for each in queued.jobs}[job]
        ended = await client.stub.GetJobStats(asked)
        assert ended.is_final and ended.monitoring_duration.ToSeconds() >= 0


async def test_another_machines_gpus_are_watched_through_the_scheduler(fleet: Fleet, tmp_path: Path) -> None:
    file = tmp_path / "load.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in LOAD))
    await fleet.add_node("n1", "--virtual-gpus", "2", "--virtual-load", str(file))
    async with fleet.client() as client:
        job = await client.submit("sleep", "600", gpus=1, min_memory_bytes=GB)
        await client.wait(job, job_pb2.JOB_STATE_RUNNING)
    environment = {
        **os.environ,
        "GPUCTL_SCHEDULER": fleet.scheduler.address,
        "GPUCTL_TOKEN": fleet.scheduler.token("admin"),
    }
    command = [sys.executable, "-P", "-m", "gpufleet.cli", "monitor", "--node"]
    unknown = await asyncio.create_subprocess_exec(
        *command, "n7", env=environment, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
    )
    _, why = await unknown.communicate()
    assert unknown.returncode == 3 and b"n7" in why
    watching = await asyncio.create_subprocess_exec(
        *command, "n1", "--interval", "200ms", "-o", "jsonl", env=environment, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert watching.stdout is not None
        looks = [json.loads(await watching.stdout.readline()) for _ in range(3)]
        watching.send_signal(signal.SIGINT)
        rest = (await watching.stdout.read()).splitlines()
        assert await watching.wait() == 0
    finally:
        if watching.returncode is None:
            watching.kill()
            await watching.wait()
    assert [each["utilization_percent"] for each in looks[-1]["devices"]] == [80, 10]
    told = json.loads(rest[-1])
    assert told["gpu_stats"]["0"]["power_draw_w"] == {"min": 300.0, "max": 300.0, "mean": 300.0}
    assert told["gpu_stats"]["1"]["memory_used_mb"]["max"] == 1000.0
    assert told["gpu_stats"]["1"]["utilization"]["samples"] >= 3 and told["energy_wh"] > 0


@pytest.mark.parametrize(("busy_interval", "of_the_job"), [("200ms", None), ("5s", 0.2)])
async def test_how_often_gpus_are_read_is_a_setting_of_the_agent_and_of_each_job(
    fleet: Fleet, tmp_path: Path, busy_interval: str, of_the_job: float | None
) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(f'[sampling]\ninterval = "5s"\nbusy_interval = "{busy_interval}"\n')
    await fleet.add_node("n1", "--virtual-gpus", "1", "--config", str(config))
    async with fleet.client() as client:
        wanted = {} if of_the_job is None else {"sampling_interval": span(of_the_job)}
        job = await client.submit("sleep", "600", gpus=1, **wanted)
        told = capacity_pb2.GetJobStatsResponse()

        async def is_read_often() -> bool:
            nonlocal told
            told = await client.stub.GetJobStats(capacity_pb2.GetJobStatsRequest(job_id=job))
            return told.sample_count >= 10

        await until("the job's GPU is read ten times", is_read_often)
        # Every 5 s it would have taken far longer, as its own clock tells.
        assert told.monitoring_duration.ToTimedelta().total_seconds() / told.sample_count < 2.5

        async def has_several() -> bool:
            summary = (await client.node("n1")).devices[0].sample.summary.utilization_percent
            assert (summary.min, summary.max, summary.mean, summary.last) == (0, 0, 0, 0)
            return bool(summary.count >= 2)

        await until("a beat tells of several readings", has_several)
        await client.cancel(job)
        await client.wait(job)


async def test_who_watches_another_machine_stays_marked_stale_while_the_scheduler_is_away(
    fleet: Fleet, tmp_path: Path
) -> None:
    file = tmp_path / "load.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in LOAD))
    await fleet.add_node("n1", "--virtual-gpus", "2", "--virtual-load", str(file))
    environment = {
        **os.environ,
        "GPUCTL_SCHEDULER": fleet.scheduler.address,
        "GPUCTL_TOKEN": fleet.scheduler.token("admin"),
    }
    terminal = Terminal("monitor", "--node", "n1", "--interval", "200ms", environment=environment)
    try:
        await asyncio.to_thread(terminal.wait_for, "Ctrl-C ends it")
        fleet.scheduler.kill()
        at = await asyncio.to_thread(terminal.wait_for, "STALE: ")
        await fleet.scheduler.start()
        await asyncio.to_thread(terminal.wait_for, "Ctrl-C ends it", at)
        terminal.type("\x03")
        at = await asyncio.to_thread(terminal.wait_for, "watched for", at)
        await asyncio.to_thread(terminal.wait_for, "1,000 MB", at)
        assert await asyncio.to_thread(terminal.end) == 0
    finally:
        terminal.close()
