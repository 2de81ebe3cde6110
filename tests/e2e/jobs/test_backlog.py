"""Floods of short jobs, which a node begins by itself one after the other: each runs once, whatever dies meanwhile."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

from scheduler.policy.backlog import SHORT_RUN
from tests.e2e.client import Client
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until

CPUS = 2


class Flood:
    """Many jobs of a like: each writes its id into a file, once the gate is open and it has slept."""

    def __init__(self, admin: Client, folder: Path, sleep: float = 0) -> None:
        self.done, self.gate = folder / "done", folder / "gate"
        self.gate.touch()
        self.jobs: Sequence[int] = ()
        self._admin = admin
        done, gate = shlex.quote(str(self.done)), shlex.quote(str(self.gate))
        script = f"until [ -e {gate} ]; do sleep 0.02; done; sleep {sleep}; echo $GPUFLEET_JOB_ID >> {done}"
        self._argv = ("sh", "-c", script)

    async def submit(self, count: int, *, is_held: bool = False) -> Sequence[int]:
        """Run one, so that their like is known to be short, and submit the others; `is_held`: none of them gets far."""
        await until("one was short", self._was_short)
        self.done.unlink()
        if is_held:
            self.gate.unlink()
        first = (await self._admin.submit_specs([self._admin.spec(*self._argv)] * count)).first_job_id
        self.jobs = range(first, first + count)
        return self.jobs

    async def _was_short(self) -> bool:
        job = await self._admin.run(*self._argv)
        assert job.state == job_pb2.JOB_STATE_SUCCEEDED
        return job.end_time.ToMicroseconds() - job.start_time.ToMicroseconds() <= SHORT_RUN

    async def has_a_backlog(self) -> bool:
        """Whether one of a held flood was placed behind those that hold the CPUs, also if it was handed back since."""
        return any("is to be the next on" in line for line in await self._admin.story(self.jobs[CPUS]))

    async def has_no_backlog(self) -> bool:
        """Whether none waits on the node now."""
        now = [await self._admin.job(job) for job in self.jobs]
        return not any(job.state == job_pb2.JOB_STATE_STARTING and job.attempts[-1].slot_job_id for job in now)

    async def states(self) -> Counter[str]:
        """How many are in each state."""
        return Counter([job_pb2.JobState.Name((await self._admin.job(job)).state)[10:] for job in self.jobs])

    async def end(self, *others: int) -> list[job_pb2.Job]:
        """Wait for all and for others that write the same: each succeeds, and wrote its id once."""
        jobs = [*self.jobs, *others]
        ended = [await self._admin.wait(job) for job in jobs]
        assert {job.state for job in ended} == {job_pb2.JOB_STATE_SUCCEEDED}
        assert Counter(map(int, self.done.read_text().split())) == Counter(jobs)
        return ended


def slots_of(jobs: Sequence[job_pb2.Job]) -> list[int]:
    """The slots in which jobs had waited for their turn."""
    return [attempt.slot_job_id for job in jobs for attempt in job.attempts if attempt.slot_job_id]


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
    await until("it is under way", lambda: flood.done.exists() and len(flood.done.read_text().split()) > CPUS)
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
