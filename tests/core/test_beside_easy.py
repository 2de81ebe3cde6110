"""As many jobs may pass the one with the reservation as a plain EASY lets pass, on one node and on several."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from scheduler.policy.reservation import START_SPAN
from scheduler.state.ids import JobId
from scheduler.state.jobs import Queued
from scheduler.state.specs import JobSpec, Resources
from scheduler.state.units import MINUTE, Instant, Span
from tests.core.fleet import Fleet

SEEDS = 40
GRACE = Span(MINUTE)


@dataclass
class Easy:
    """EASY backfill (Lifka, 1995) on a pool of devices that are alike: it counts them and knows none by name.

    `ends` are the devices and the end by limits of what runs; `queue` is who waits, in order.
    """

    free: int
    ends: list[tuple[Instant, int]] = field(default_factory=list)
    queue: list[tuple[int, int, Span]] = field(default_factory=list)

    def submit(self, number: int, devices: int, run: Span, now: Instant) -> list[int]:
        """Take up a job of so many devices that holds them for `run` at most; who starts now."""
        self.queue.append((number, devices, run))
        started: list[int] = []
        shadow: Instant | None = None
        extra = 0
        for number, devices, run in list(self.queue):
            end = Instant(now + run)
            if shadow is None and devices > self.free:
                shadow, extra = self._reservation(devices)
            elif devices <= self.free and (shadow is None or end <= shadow or devices <= extra):
                extra -= 0 if shadow is None or end <= shadow else devices
                self.free -= devices
                self.ends.append((end, devices))
                self.queue.remove((number, devices, run))
                started.append(number)
        return started

    def _reservation(self, wanted: int) -> tuple[Instant, int]:
        free = self.free
        for end in sorted({end for end, _ in self.ends}):
            free = self.free + sum(devices for each, devices in self.ends if each <= end)
            if free >= wanted:
                return end, free - wanted
        raise AssertionError("more is asked for than there is")


def a_job(devices: int, minutes: int, nodes: int = 0) -> JobSpec:
    resources = Resources(gpus=devices, node_count=nodes, cpus=1, ignores_telemetry=True)
    limit = Span(minutes * MINUTE)
    return JobSpec(argv=("true",), name="job", cwd="/", resources=resources, time_limit=limit, grace=GRACE)


def take_up(fleet: Fleet, easy: Easy, spec: JobSpec) -> None:
    """Submit a job to both; both start the same. What starts is told to run at once."""
    number = fleet.state.durable.counters.next_job
    assert spec.run_span is not None
    expected = easy.submit(number, spec.resources.gpus, Span(spec.run_span + START_SPAN), fleet.now)
    fleet.submit(spec)
    jobs = fleet.state.durable.jobs
    waiting = {job.id for job in jobs.values() if isinstance(job.state, Queued)}
    assert waiting == {number for number, *_ in easy.queue}, f"EASY starts {expected} at the submit of {number}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_on_one_node_who_may_pass_is_who_may_pass_in_easy(seed: int) -> None:
    chance = random.Random(seed)
    fleet, devices = Fleet(), chance.randint(3, 8)
    fleet.join(fleet.add_node("n1", gpus=devices))
    easy = Easy(free=devices)
    for _ in range(chance.randint(6, 14)):
        take_up(fleet, easy, a_job(chance.randint(1, devices), chance.choice((10, 20, 30, 60, 240))))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_on_several_nodes_who_may_pass_a_gang_is_who_may_pass_it_in_easy(seed: int) -> None:
    chance = random.Random(seed)
    fleet, nodes = Fleet(), chance.randint(3, 7)
    for number in range(nodes):
        fleet.join(fleet.add_node(f"n{number}", gpus=1))
    easy = Easy(free=nodes)
    for _ in range(chance.randint(1, nodes - 1)):
        take_up(fleet, easy, a_job(1, chance.choice((10, 20, 30, 60, 240))))
    wide = chance.randint(easy.free + 1, nodes)
    if wide > 1:
        take_up(fleet, easy, a_job(wide, 60, nodes=wide))
    for _ in range(4):
        take_up(fleet, easy, a_job(1, chance.choice((5, 10, 20, 60, 240))))


def test_a_long_job_starts_beside_a_reservation_that_needs_only_what_comes_free_with_it() -> None:
    fleet = Fleet()
    fleet.join(fleet.add_node("n1", gpus=4))
    fleet.submit(a_job(3, 60))
    fleet.submit(a_job(2, 60))  # waits for the end of the first, which gives back all that it needs
    fleet.submit(a_job(1, 600))
    jobs = fleet.state.durable.jobs
    assert [job.id for job in jobs.values() if isinstance(job.state, Queued)] == [JobId(2)]


def test_a_short_job_takes_what_is_kept_so_that_the_rest_stays_for_long_ones() -> None:
    fleet = Fleet()
    fleet.join(fleet.add_node("n1", gpus=5))
    fleet.submit(a_job(3, 60))
    fleet.submit(a_job(4, 60))  # keeps the three that come free, and one of the two that are free
    fleet.submit(a_job(1, 10), a_job(1, 600))
    jobs = fleet.state.durable.jobs
    assert [job.id for job in jobs.values() if isinstance(job.state, Queued)] == [JobId(2)]
