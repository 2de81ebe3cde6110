"""A flood of short jobs that a node begins by itself, one after the other, for tests of its backlog."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from gpufleet.v1 import job_pb2

from scheduler.policy.backlog import SHORT_RUN
from tests.e2e.client import Client
from tests.e2e.processes import until

CPUS = 2
"""Of the node: so many run at once, each with one."""


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

    @property
    def ended_count(self) -> int:
        """How many have written their ids."""
        return len(self.done.read_text().split()) if self.done.exists() else 0

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
