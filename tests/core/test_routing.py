"""Who falls back, against a plain count; what one that fell back counts as; what AUTO makes of a content type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.policy.order.band import GivenUp
from scheduler.policy.order.queue import queue_order
from scheduler.policy.routing import pattern_for, routed
from scheduler.state.gpu_choice import begun_anew, fallen_back
from scheduler.state.ids import UserName
from scheduler.state.jobs import Job, Queued
from scheduler.state.limits import GpuRouting, Limits
from scheduler.state.replies import Refused
from scheduler.state.specs import Band, GpuChoice, GpuMode, JobSpec, Resources
from scheduler.state.state import State
from scheduler.state.units import MINUTE, Instant, Span
from tests.core.fleet import Fleet, spec
from tests.rings.choosing import examples

ROUTING = GpuRouting(
    modes={
        "*": GpuMode.NEVER,
        "image/*": GpuMode.PREFERRED,
        "image/svg*": GpuMode.NEVER,
        "image/svg": GpuMode.REQUIRED,
        "image/svg+xml": GpuMode.PREFERRED,
    }
)


def choosing(mode: GpuMode, content_type: str = "", gpus: int = 0, node_count: int = 0, cpus: int = 1) -> JobSpec:
    choice = GpuChoice(asked=mode, mode=mode, content_type=content_type)
    return replace(spec(), resources=Resources(gpus=gpus, node_count=node_count, cpus=cpus), gpu_choice=choice)


@pytest.mark.parametrize(
    ("content_type", "pattern"),
    [
        ("image/png", "image/*"),
        ("IMAGE/PNG; quality=1", "image/*"),
        ("image/svg", "image/svg"),
        ("image/svg-old", "image/svg*"),
        ("image/svg+xml", "image/svg+xml"),
        ("imagery/png", "*"),
        ("text/plain", "*"),
    ],
)
def test_the_longest_pattern_decides(content_type: str, pattern: str) -> None:
    assert pattern_for(ROUTING, content_type) == (pattern, ROUTING.modes[pattern])


def test_without_a_pattern_that_matches_a_job_is_none_for_a_gpu() -> None:
    assert pattern_for(GpuRouting(modes={}), "audio/mpeg")[1] is GpuMode.NEVER


@pytest.mark.parametrize(
    ("mode", "is_without", "program"),
    [
        (GpuMode.NEVER, False, "on-cpus"),
        (GpuMode.PREFERRED, False, "on-gpus"),
        (GpuMode.PREFERRED, True, "on-cpus"),
    ],
)
def test_another_command_runs_where_a_job_has_no_gpu(mode: GpuMode, is_without: bool, program: str) -> None:
    asked = choosing(mode, gpus=1)
    assert asked.gpu_choice is not None
    with_both = replace(asked, argv=("on-gpus",), gpu_choice=replace(asked.gpu_choice, cpu_argv=("on-cpus",)))
    kept = routed(with_both, ROUTING, "")
    assert isinstance(kept, JobSpec)
    now = fallen_back(kept) if is_without else kept
    assert now.argv_now == (program,)
    assert begun_anew(now).argv_now == kept.argv_now
    assert replace(
        now, gpu_choice=replace(now.gpu_choice or GpuChoice(asked=mode, mode=mode), cpu_argv=())
    ).argv_now == ("on-gpus",), "the same, where there is no other"


def test_what_was_decided_for_a_job_is_decided_anew_for_one_like_it() -> None:
    first = routed(choosing(GpuMode.AUTO, "image/png", gpus=2), ROUTING, "")
    assert isinstance(first, JobSpec) and first.prefers_gpus
    assert routed(first, GpuRouting(), "") == first
    never = routed(first, GpuRouting(modes={"*": GpuMode.NEVER}), "")
    assert isinstance(never, JobSpec) and (never.resources.gpus, never.resources_asked.gpus) == (0, 2)
    assert routed(never, ROUTING, "") == first


@pytest.mark.parametrize("asked", [choosing(GpuMode.AUTO, gpus=1), choosing(GpuMode.PREFERRED)])
def test_what_cannot_be_decided_is_refused_with_its_field(asked: JobSpec) -> None:
    refused = routed(asked, ROUTING, "specs[3]")
    assert isinstance(refused, Refused) and refused.field == "specs[3].gpu_mode" and refused.next_step


@pytest.mark.parametrize(("node_count", "gpus"), [(0, 1), (1, 1), (3, 3)])
def test_auto_asks_for_one_gpu_on_each_node_where_nobody_said_how_many(node_count: int, gpus: int) -> None:
    found = routed(choosing(GpuMode.AUTO, "image/png", node_count=node_count), ROUTING, "")
    assert isinstance(found, JobSpec) and found.resources.gpus == gpus


def test_a_job_that_fell_back_counts_as_one_without_gpus() -> None:
    fleet = Fleet(Limits(user_gpus_max=1))
    list(fleet.join(fleet.add_node("n1", gpus=0, cpus=4)))
    fleet.submit(choosing(GpuMode.PREFERRED, gpus=1), choosing(GpuMode.PREFERRED, gpus=1))
    holds = fleet.state.durable.holds_of_user[UserName("alice")]
    assert (holds.jobs, holds.gpu_milli) == (2, 0)
    assert [fleet.job(number).spec.resources_asked.gpus for number in (1, 2)] == [1, 1]


GPU_JOBS = st.tuples(
    st.sampled_from(["ann", "bob", "cy"]), st.sampled_from([GpuMode.REQUIRED, GpuMode.PREFERRED]), st.sampled_from(Band)
)


@settings(max_examples=examples(40))
@given(jobs=st.lists(st.one_of(GPU_JOBS, st.none()), max_size=12), limit=st.integers(0, 4))
def test_who_falls_back_at_once_stands_behind_more_jobs_than_the_limit(
    jobs: list[tuple[str, GpuMode, Band] | None], limit: int
) -> None:
    routing = GpuRouting(gpu_queue_limit=limit, gpu_wait=Span(60 * MINUTE))
    fleet = Fleet(Limits(routing=routing), passes=False)
    list(fleet.join(fleet.add_node("n1", gpus=1, cpus=1)))
    fleet.submit(spec(gpus=1, cpus=1), user="root", band=Band.URGENT)
    for job in jobs:
        if job is None:
            fleet.submit(spec(cpus=1), user="dan")
        else:
            user, mode, band = job
            fleet.submit(choosing(mode, gpus=1, cpus=1), user=user, band=band)
    waiting = [job for job in queue_order(fleet.state, fleet.now) if job.spec.resources.gpus and job.id != 1]
    behind = [job.id for number, job in enumerate(waiting) if number > limit and job.spec.prefers_gpus]
    fleet._passes = True
    list(fleet.advance(fleet.limits.heartbeat_interval))
    fell = [job.id for job in fleet.state.durable.jobs.values() if job.fell_back is not None]
    assert sorted(fell) == sorted(behind)
    assert all(isinstance(job.state, Queued) for job in fleet.state.durable.jobs.values() if job.id != 1)


def test_a_limit_that_no_line_reaches_costs_no_look_at_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(Limits(routing=GpuRouting(gpu_queue_limit=3, gpu_wait=Span(60 * MINUTE))))
    list(fleet.join(fleet.add_node("n1", gpus=1, cpus=4)))
    fleet.submit(spec(gpus=1, cpus=1))
    looked: list[Instant] = []

    def looks(state: State, at: Instant, given_up: GivenUp) -> Iterator[Job]:
        looked.append(at)
        return queue_order(state, at, given_up)

    monkeypatch.setattr("scheduler.policy.routing.queue_order", looks)
    for _ in range(3):
        fleet.submit(choosing(GpuMode.PREFERRED, gpus=1))
    assert not looked
    fleet.submit(choosing(GpuMode.PREFERRED, gpus=1))
    assert looked
