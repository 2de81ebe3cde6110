"""A bound is kept: no job starts later than it was told, however early the jobs before it end."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from scheduler.policy.explain import Explanation, explain
from scheduler.state.ids import JobId
from scheduler.state.jobs import Job, Queued, Starting
from scheduler.state.limits import Limits
from scheduler.state.units import MINUTE, SECOND, Instant, Span
from tests.core.transcript import Transcript
from tests.rings.choosing import nightly_beyond

pytestmark = pytest.mark.slow

JOBS, FEW_JOBS = 14, 7
STEPS_MAX = 2_000

SLOWER = Limits(heartbeat_interval=Span(20 * SECOND), sample_age=Span(50 * SECOND), node_lease=Span(10 * MINUTE))
"""Ten times those of a fleet: these jobs run for hours, and each beat brings a pass."""


class Machines:
    """A few nodes with jobs that all have time limits, which end at any time before theirs."""

    def __init__(self, seed: int, limits: Limits | None = None) -> None:
        self.rng = random.Random(seed)
        self.transcript = Transcript(limits)
        self.ends_at: dict[JobId, Instant] = {}
        self.started: dict[JobId, Instant] = {}
        self.ranks: dict[JobId, int] = {}
        for number in range(self.rng.choice((1, 1, 2, 3))):
            self.transcript.answer(f"node n{number} gpus={self.rng.randint(1, 4)} cpus={self.rng.randint(2, 8)}")

    @property
    def jobs(self) -> list[Job]:
        return list(self.transcript.fleet.state.durable.jobs.values())

    def submit(self) -> None:
        rng = self.rng
        asked = f"gpus={rng.randint(0, 4)} cpus={rng.randint(1, 4)} time-limit={rng.randint(1, 30)}m"
        self.transcript.answer(f"submit alice {asked} band={rng.choice(('low', 'normal', 'high'))}")

    def told(self) -> dict[JobId, Explanation]:
        """What every waiting job is told now, by one who remembers what it was told."""
        fleet, waiting = self.transcript.fleet, [job for job in self.jobs if isinstance(job.state, Queued)]
        return {job.id: explain(fleet.state, job, fleet.now, self.transcript.promises) for job in waiting}

    def bounds(self) -> dict[JobId, Instant]:
        """What every waiting job is told now."""
        fleet = self.transcript.fleet
        told = {job.id: explain(fleet.state, job, fleet.now) for job in self.jobs if isinstance(job.state, Queued)}
        assert all(each.latest_start is not None for each in told.values()), "every job has a limit: each has a bound"
        return {job_id: each.latest_start for job_id, each in told.items() if each.latest_start is not None}

    def run(self, look: Callable[[], None] = lambda: None) -> None:
        """To the end of all jobs, noting when each was placed."""
        fleet = self.transcript.fleet
        for _ in range(STEPS_MAX):
            for job in self.jobs:
                if isinstance(job.state, Starting):
                    self.started[job.id] = job.state.attempt.placed_at
                    ranks = range(len(job.state.attempt.ranks))
                    for rank in ranks if len(ranks) > 1 else ():
                        self.transcript.answer(f"ready {job.id}/1.{rank} port=29500")
                    for rank in ranks:
                        self.transcript.answer(f"started {job.id}/1.{rank}")
                    self.ranks[job.id] = len(ranks)
                    span = job.spec.run_span
                    assert span is not None
                    self.ends_at[job.id] = Instant(fleet.now + self.rng.choice((span, self.rng.randint(SECOND, span))))
            if not self.ends_at:
                return
            first = min(self.ends_at, key=lambda job_id: (self.ends_at[job_id], job_id))
            wait = max(0, self.ends_at.pop(first) - fleet.now)
            self.transcript.answer(f"advance {wait // SECOND}s")
            for rank in range(self.ranks[first]):
                self.transcript.answer(f"exited {first}/1.{rank} code=0")
            look()
        pytest.fail("the jobs did not end")


@pytest.mark.parametrize("seed", nightly_beyond(10, range(30)))
def test_no_job_starts_later_than_it_was_told(seed: int) -> None:
    machines = Machines(seed, SLOWER)
    for _ in range(JOBS):
        machines.submit()
    bounds = machines.bounds()
    machines.run()
    assert machines.started.keys() >= bounds.keys()
    late = {
        job_id: (machines.started[job_id] - latest) / MINUTE
        for job_id, latest in bounds.items()
        if machines.started[job_id] > latest
    }
    assert not late, f"minutes after the bound: {late}"


@pytest.mark.parametrize("seed", (0, 1, 3))
def test_what_was_told_stands_as_long_as_nothing_new_comes(seed: int) -> None:
    machines = Machines(seed)
    for _ in range(FEW_JOBS):
        machines.submit()
    least: dict[JobId, Instant] = {}

    def look() -> None:
        for job_id, told in machines.told().items():
            assert told.latest_start is not None
            assert told.latest_start <= least.get(job_id, told.latest_start), f"job {job_id}: {told.bound_sentence}"
            least[job_id] = told.latest_start

    look()
    machines.run(look)
    assert least
    late = {job_id for job_id, latest in least.items() if machines.started[job_id] > latest}
    assert not late, "they started after what they were told last"


def test_a_bound_that_grows_says_why() -> None:
    grown = 0
    for seed in range(3):
        machines = Machines(seed)
        before: dict[JobId, Instant | None] = {}
        for _ in range(FEW_JOBS):
            machines.submit()
            machines.transcript.answer("advance 10s")
            for job_id, told in machines.told().items():
                earlier, latest = before.get(job_id), told.latest_start
                if earlier is not None and latest is not None and latest > earlier:
                    assert " later than it was: job " in told.bound_sentence
                    grown += 1
                before[job_id] = latest
    assert grown
