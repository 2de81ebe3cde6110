"""Launches on GPUs, against a driver library made for tests."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from gpufleet.v1 import node_agent_pb2 as pb

from tests.devices.fake_nvml import FakeNvml, compiler
from tests.node_agent.agent_process import AgentProcess
from tests.node_agent.fake_scheduler import FakeScheduler

GB = 10**9
ENVIRONMENT = [sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"]


@pytest.fixture
def gpus(tmp_path: Path) -> FakeNvml:
    if compiler() is None:
        pytest.skip("the NVML test library needs gcc; Debian, Ubuntu: apt-get install gcc libc6-dev")
    return FakeNvml(tmp_path)


@pytest.fixture
async def gpu_agent(scheduler: FakeScheduler, tmp_path: Path, gpus: FakeNvml) -> AsyncIterator[AgentProcess]:
    async with AgentProcess(scheduler, tmp_path, "--cpus", "4", environment=gpus.environment()) as agent:
        await scheduler.wait_connected()
        yield agent


def uuids(*indices: int) -> list[str]:
    return [FakeNvml.uuid(index) for index in indices]


async def refusal(scheduler: FakeScheduler, **launch: Any) -> pb.LaunchRefused:
    """Launch until it is refused: a reading that is less than a second old is trusted."""
    job_id = 100
    while True:
        key = scheduler.launch(job_id, ["/bin/true"], **launch)
        await scheduler.wait_for(lambda: key in scheduler.refused or key in scheduler.exited, "an answer")  # noqa: B023
        if key in scheduler.refused:
            return scheduler.refused[key]
        job_id += 1


async def test_gpus_are_registered_and_a_job_sees_its_own_by_uuid(
    scheduler: FakeScheduler, gpu_agent: AgentProcess
) -> None:
    info = scheduler.registrations[0].info
    assert [device.uuid for device in info.devices] == uuids(0, 1)
    assert (info.cpus, info.driver_version) == (4, "580.95.05")
    key = scheduler.launch(1, ENVIRONMENT, device_uuids=uuids(1), expected_free_memory_bytes=8 * GB)
    none = scheduler.launch(2, ENVIRONMENT)
    await scheduler.wait_for(lambda: scheduler.is_finished(key) and scheduler.is_finished(none), "the ends")
    environment = json.loads(scheduler.stdout(key))
    assert environment["CUDA_VISIBLE_DEVICES"] == FakeNvml.uuid(1)
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert environment["GPUFLEET_GPUS_PER_NODE"] == "1"
    assert "GPUFLEET_VIRTUAL_GPUS" not in environment
    assert json.loads(scheduler.stdout(none))["CUDA_VISIBLE_DEVICES"] == ""


async def test_a_device_with_too_little_free_memory_is_refused_with_the_sample_that_says_so(
    scheduler: FakeScheduler, gpu_agent: AgentProcess, gpus: FakeNvml
) -> None:
    gpus.set(1, memory_used=79 * GB)
    refused = await refusal(scheduler, device_uuids=uuids(0, 1), expected_free_memory_bytes=8 * GB)
    assert refused.reason == "DEVICE_BUSY"
    (sample,) = refused.samples
    assert sample.uuid == FakeNvml.uuid(1)
    assert sample.memory_free_bytes < GB


async def test_a_foreign_process_refuses_a_launch_that_does_not_allow_it(
    scheduler: FakeScheduler, gpu_agent: AgentProcess, gpus: FakeNvml
) -> None:
    gpus.start_process(0, os.getpid(), 5 * GB)
    refused = await refusal(scheduler, device_uuids=uuids(0))
    assert refused.reason == "DEVICE_BUSY"
    assert [process.pid for process in refused.samples[0].processes] == [os.getpid()]
    allowed = scheduler.launch(2, ["/bin/true"], device_uuids=uuids(0), allow_busy=True)
    await scheduler.wait_for(lambda: scheduler.is_finished(allowed), "the end")


async def test_what_was_on_a_device_a_moment_ago_refuses_nobody(
    scheduler: FakeScheduler, gpu_agent: AgentProcess, gpus: FakeNvml
) -> None:
    def newest() -> list[int]:
        beats = [m.beat for m in scheduler.messages if m.WhichOneof("body") == "beat"]
        return [process.pid for sample in beats[-1].samples for process in sample.processes] if beats else []

    gpus.start_process(0, os.getpid(), 5 * GB)
    scheduler.command(refresh_samples=pb.RefreshSamples())
    await scheduler.wait_for(lambda: newest() == [os.getpid()], "the foreign process in a beat")
    gpus.end_process(0, os.getpid())
    key = scheduler.launch(1, ["/bin/true"], device_uuids=uuids(0))
    await scheduler.wait_for(lambda: key in scheduler.refused or scheduler.is_finished(key), "an answer")
    assert key not in scheduler.refused


async def test_a_device_in_trouble_is_refused_until_it_gets_another_chance(
    scheduler: FakeScheduler, gpu_agent: AgentProcess, gpus: FakeNvml
) -> None:
    gpus.raise_xid(0, 79)
    refused = await refusal(scheduler, device_uuids=uuids(0))
    assert refused.reason == "DEVICE_UNHEALTHY"
    assert "79" in refused.message
    scheduler.command(clear_troubles=pb.ClearTroubles(device_uuids=uuids(0)))
    key = scheduler.launch(1, ["/bin/true"], device_uuids=uuids(0))
    await scheduler.wait_for(lambda: key in scheduler.refused or scheduler.is_finished(key), "an answer")
    assert key not in scheduler.refused


async def test_a_driver_that_hangs_refuses_the_launch_and_costs_no_heartbeat(
    scheduler: FakeScheduler, gpu_agent: AgentProcess, gpus: FakeNvml
) -> None:
    gpus.hang(0, "nvmlDeviceGetMemoryInfo_v2")
    gpus.hang(0, "nvmlDeviceGetMemoryInfo")
    try:
        refused = await refusal(scheduler, device_uuids=uuids(0))
        assert refused.reason == "DEVICE_UNHEALTHY"
        other = scheduler.launch(3, ["/bin/true"], device_uuids=uuids(1))
        await scheduler.wait_for(lambda: scheduler.is_finished(other), "the end on the other device")
        assert len(scheduler.streams) == 1
    finally:
        gpus.heal(0)


async def test_a_process_of_a_job_counts_as_its_own(
    scheduler: FakeScheduler, gpu_agent: AgentProcess, gpus: FakeNvml
) -> None:
    key = scheduler.launch(5, ["/bin/sleep", "300"], device_uuids=uuids(0))
    await scheduler.wait_for(lambda: key in scheduler.started, "the start")
    gpus.start_process(0, scheduler.started[key].pid, GB)

    def owners() -> list[tuple[int, bool]]:
        beats = [m.beat for m in scheduler.messages if m.WhichOneof("body") == "beat"]
        return [(p.job_id, p.is_foreign) for sample in beats[-1].samples for p in sample.processes] if beats else []

    await scheduler.wait_for(lambda: owners() == [(5, False)], "the job's process in a beat")
