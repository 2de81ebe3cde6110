"""Trouble with a driver while jobs run, from a driver library made for tests to what people are told."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpufleet.v1 import capacity_pb2, job_pb2, node_pb2, scheduler_pb2

from tests.devices.fake_nvml import GPU_IS_LOST, FakeNvml, compiler
from tests.e2e.client import Client
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until

RUNNING, QUEUED = job_pb2.JOB_STATE_RUNNING, job_pb2.JOB_STATE_QUEUED
GB = 10**9


@pytest.fixture
async def gpus(fleet: Fleet, tmp_path: Path) -> FakeNvml:
    """Node n1 with two GPUs, read often."""
    if compiler() is None:
        pytest.skip("the NVML test library needs gcc; Debian, Ubuntu: apt-get install gcc libc6-dev")
    gpus = FakeNvml(tmp_path)
    await fleet.add_node("n1", "--cpus", "4", environment=gpus.environment())
    return gpus


async def running(admin: Client) -> job_pb2.Job:
    """A job on one GPU that lasts."""
    job = await admin.submit("sleep", "600", gpus=1, min_memory_bytes=GB)
    return await admin.wait(job, RUNNING)


def index_of(job: job_pb2.Job) -> int:
    (index,) = job.attempts[-1].ranks[0].device_indices
    return index


async def devices(admin: Client) -> list[node_pb2.NodeDevice]:
    return list((await admin.node("n1")).devices)


async def stats(admin: Client, job: int) -> capacity_pb2.GetJobStatsResponse:
    return await admin.stub.GetJobStats(capacity_pb2.GetJobStatsRequest(job_id=job))


async def samples(admin: Client, job: int) -> int:
    return (await stats(admin, job)).sample_count


async def resume(admin: Client) -> None:
    assert (await admin.stub.UpdateNode(scheduler_pb2.UpdateNodeRequest(node="n1"))).changed


async def test_a_gpu_that_falls_off_the_bus_is_told_to_its_job_and_given_to_nobody_until_it_is_resumed(
    admin: Client, gpus: FakeNvml
) -> None:
    job = await running(admin)
    lost = index_of(job)
    gpus.lose(lost)

    async def is_warned() -> bool:
        return bool((await admin.job(job.id)).warnings)

    await until("the job is warned", is_warned)
    (warning,) = (await admin.job(job.id)).warnings
    assert f"GPU {lost} of node n1" in warning.sentence and "fell off the bus" in warning.sentence
    assert "JobWarned" in await admin.kinds(job.id)
    assert (await admin.job(job.id)).state == RUNNING  # whether it goes on is for the job and its person to say
    assert [each.device.is_healthy for each in await devices(admin)] == [index != lost for index in (0, 1)]

    # The other one still works; the lost one is nobody's, also when it is back and its job has gone.
    other = await running(admin)
    assert index_of(other) == 1 - lost
    await admin.cancel(job.id)
    await admin.wait(job.id)
    gpus.heal(lost)

    async def is_read_again() -> bool:
        return (await devices(admin))[lost].sample.is_healthy

    await until("the device answers again", is_read_again)
    waiting = await admin.submit("true", gpus=1, min_memory_bytes=GB)
    explained = (await admin.stub.Explain(scheduler_pb2.ExplainRequest(job_id=waiting))).explanation
    assert "DEVICE_UNHEALTHY" in str(explained) and (await admin.job(waiting)).state == QUEUED
    await resume(admin)
    done = await admin.wait(waiting)
    assert (done.state, index_of(done)) == (job_pb2.JOB_STATE_SUCCEEDED, lost)


async def test_a_gpu_that_the_next_start_of_the_agent_does_not_find_stays_listed_while_a_job_holds_it(
    fleet: Fleet, admin: Client, gpus: FakeNvml
) -> None:
    jobs = {index_of(job): job.id for job in [await running(admin), await running(admin)]}
    agent = fleet.agents["n1"]

    async def start_anew() -> None:
        agent.kill()
        agent.spawn()
        await fleet.node_is_ready("n1")

    gpus.lose(0)
    await start_anew()

    async def is_warned() -> bool:
        return bool((await admin.job(jobs[0])).warnings)

    await until("the job is warned", is_warned)
    shown = {each.device.uuid: (each.device.is_healthy, each.job_id) for each in await devices(admin)}
    assert shown == {gpus.uuid(0): (False, jobs[0]), gpus.uuid(1): (True, jobs[1])}
    assert [(await admin.job(job)).state for job in jobs.values()] == [RUNNING, RUNNING]
    assert not (await admin.job(jobs[1])).warnings

    await admin.cancel(jobs[0])
    await admin.wait(jobs[0])
    await resume(admin)
    assert [each.device.uuid for each in await devices(admin)] == [gpus.uuid(1)]
    gpus.heal(0)
    await start_anew()
    assert index_of(await running(admin)) == 0
    assert (await admin.job(jobs[1])).state == RUNNING


async def test_errors_that_rise_on_a_gpu_are_told_to_the_job_that_holds_it(admin: Client, gpus: FakeNvml) -> None:
    jobs = {index_of(job): job.id for job in [await running(admin), await running(admin)]}
    gpus.set(0, ecc_uncorrected=2)

    async def sentences(index: int) -> list[str]:
        return [warning.sentence for warning in (await admin.job(jobs[index])).warnings]

    async def are_warned() -> bool:
        # An XID event between two listenings is lost, as with a real driver: raise it until one listens.
        gpus.raise_xid(1, 48)
        return bool(await sentences(0) and await sentences(1))

    await until("both jobs are warned", are_warned)
    assert "2 uncorrected memory errors" in (await sentences(0))[0]
    assert "XID error 48" in (await sentences(1))[0]
    assert not any(each.device.is_healthy for each in await devices(admin))


async def test_a_reset_of_the_driver_under_load_costs_no_job_and_samples_go_on(admin: Client, gpus: FakeNvml) -> None:
    gpus.set(0, utilization=80, memory_used=40 * GB)
    gpus.set(1, utilization=80, memory_used=40 * GB)
    job = await running(admin)

    async def is_read() -> bool:
        return await samples(admin, job.id) >= 2

    await until("the job's GPU is read", is_read)
    gpus.take_down(GPU_IS_LOST)

    async def is_unhealthy() -> bool:
        return not any(each.device.is_healthy for each in await devices(admin))

    await until("both GPUs are unhealthy", is_unhealthy)
    before = await stats(admin, job.id)
    gpus.set(index_of(job), utilization=30, power=100_000)
    gpus.bring_up()

    async def goes_on() -> bool:
        return await samples(admin, job.id) > before.sample_count

    await until("samples go on", goes_on)
    (after,) = (await stats(admin, job.id)).devices
    assert (after.utilization_percent.min, after.utilization_percent.max) == (30, 80)
    assert after.energy_wh >= before.devices[0].energy_wh >= 0
    assert (await admin.job(job.id)).state == RUNNING
    await resume(admin)

    async def is_well() -> bool:
        return all(each.device.is_healthy and each.sample.is_healthy for each in await devices(admin))

    await until("both GPUs are well", is_well)


async def test_an_agent_that_starts_anew_beside_a_lost_gpu_keeps_its_job_and_gives_the_gpu_to_nobody(
    fleet: Fleet, admin: Client, gpus: FakeNvml
) -> None:
    job = await running(admin)
    lost = index_of(job)
    gpus.lose(lost)

    async def is_warned() -> bool:
        return bool((await admin.job(job.id)).warnings)

    await until("the job is warned", is_warned)
    agent = fleet.agents["n1"]
    await agent.stop()
    agent.spawn()
    await fleet.node_is_ready("n1")
    other = await running(admin)
    assert index_of(other) == 1 - lost
    waiting = await admin.submit("true", gpus=1, min_memory_bytes=GB)
    await admin.wait(waiting, QUEUED)
    assert (await admin.job(job.id)).state == RUNNING
    await admin.cancel(job.id)
    assert (await admin.wait(job.id)).state == job_pb2.JOB_STATE_CANCELLED
    # Back after a reset, with the agent started once more: it is given again when a person says so.
    gpus.heal(lost)
    await agent.stop()
    agent.spawn()
    await fleet.node_is_ready("n1")
    assert (await admin.job(waiting)).state == QUEUED
    await resume(admin)
    done = await admin.wait(waiting)
    assert (done.state, index_of(done)) == (job_pb2.JOB_STATE_SUCCEEDED, lost)


async def test_a_counter_that_a_gpu_lacks_is_absent_everywhere_and_stops_nothing(admin: Client, gpus: FakeNvml) -> None:
    for index in (0, 1):
        gpus.lack(index, "power", "energy", "fan", "utilization", "temperature")
    job = await running(admin)

    async def is_read() -> bool:
        (device, *_) = [*(await stats(admin, job.id)).devices, capacity_pb2.DeviceStats()]
        return device.memory_used_mb.count > 0 and not device.HasField("power_draw_w")

    await until("the job's GPU is read without them", is_read)
    shown = (await devices(admin))[index_of(job)]
    assert not shown.sample.HasField("fan_percent") and shown.device.is_healthy
    assert shown.availability_score > 0
