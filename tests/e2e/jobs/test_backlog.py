"""Floods of short jobs, which a node begins by itself one after the other: each runs once, whatever dies meanwhile."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

from tests.e2e.client import Client
from tests.e2e.fleet import Fleet
from tests.e2e.jobs.flood import CPUS, Flood, slots_of
from tests.e2e.processes import until


@pytest.fixture
async def node(fleet: Fleet) -> None:
    await fleet.add_node("n1", "--cpus", str(CPUS))


@pytest.mark.usefixtures("node")
async def test_each_job_of_a_flood_runs_once_and_several_wait_on_the_node(admin: Client, tmp_path: Path) -> None:
    flood = Flood(admin, tmp_path)
    jobs = await flood.submit(200)
    slots = slots_of(await flood.end())
    assert len(slots) > CPUS
    assert set(slots) <= set(jobs)


@pytest.mark.parametrize("dies", ["agent", "scheduler"])
@pytest.mark.usefixtures("node")
async def test_each_job_of_a_flood_runs_once_where_a_program_dies_meanwhile(
    fleet: Fleet, admin: Client, tmp_path: Path, dies: str
) -> None:
    flood = Flood(admin, tmp_path, sleep=0.2)
    await flood.submit(20)
    await until("it is under way", lambda: flood.ended_count > CPUS)
    if dies == "agent":
        agent = fleet.agents["n1"]
        agent.kill()
        agent.spawn()
    else:
        fleet.scheduler.kill()
        await fleet.scheduler.start()
    await fleet.node_is_ready("n1")
    assert slots_of(await flood.end())


@pytest.mark.usefixtures("node")
async def test_a_job_of_a_higher_band_goes_before_what_waits_on_the_node(admin: Client, tmp_path: Path) -> None:
    flood = Flood(admin, tmp_path)
    jobs = await flood.submit(10, is_held=True)
    await until("some wait on the node", flood.has_a_backlog)
    script = f"echo $GPUFLEET_JOB_ID >> {shlex.quote(str(flood.done))}"
    urgent = await admin.submit("sh", "-c", script, name="urgent", band=job_pb2.BAND_HIGH)
    await until("none waits on the node", flood.has_no_backlog)
    assert (await admin.job(urgent)).state == job_pb2.JOB_STATE_QUEUED
    flood.gate.touch()
    placed = {job.id: job.attempts[-1].place_time.ToNanoseconds() for job in await flood.end(urgent)}
    assert [job for job in jobs if placed[job] < placed[urgent]] == list(jobs[:CPUS]), "those that ran"
    assert any("TAKEN_BACK" in line for line in await admin.story(jobs[CPUS]))


@pytest.mark.usefixtures("node")
async def test_a_node_that_drains_hands_back_what_waits_on_it(admin: Client, tmp_path: Path) -> None:
    flood = Flood(admin, tmp_path)
    jobs = await flood.submit(10, is_held=True)
    await until("some wait on the node", flood.has_a_backlog)
    assert (await admin.stub.UpdateNode(scheduler_pb2.UpdateNodeRequest(node="n1", is_draining=True))).changed
    await until("none waits on the node", flood.has_no_backlog)
    flood.gate.touch()
    for job in jobs[:CPUS]:
        await admin.wait(job)
    assert await flood.states() == {"SUCCEEDED": CPUS, "QUEUED": len(jobs) - CPUS}
    await admin.stub.UpdateNode(scheduler_pb2.UpdateNodeRequest(node="n1", is_draining=False))
    await flood.end()
