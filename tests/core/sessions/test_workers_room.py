"""What a worker asks for where nothing was named, and what those who wait are told that it waits for."""

from __future__ import annotations

import pytest

from scheduler.policy.sessions.room import lacks, where_it_waits
from scheduler.state.ids import UserName
from scheduler.state.jobs import Queued
from scheduler.state.sessions.events import ServeRequested, WorkerJoined, WorkerReported, WorkerState
from scheduler.state.sessions.session import Model, ModelName, WorkerId
from scheduler.state.specs import JobSpec, Resources
from scheduler.state.units import GB
from tests.core.fleet import Fleet

ALICE = UserName("alice")


def serve(fleet: Fleet, workers: int, cpus: int = 0, gpus: int = 1) -> list[int]:
    """Serve a model; answers the CPUs of each of its workers that has a place."""
    name = ModelName("canvas")
    resources = Resources(gpus=gpus, cpus=cpus, min_memory_bytes=0)
    spec = JobSpec(argv=("w",), name=name, cwd="/", resources=resources, serves=name)
    model = Model(name=name, owner=ALICE, worker=spec, min_workers=workers, max_workers=workers, entry_point="m:C")
    fleet.take_up(ServeRequested(at=fleet.now, model=model))
    jobs = [fleet.state.durable.jobs[job] for job in sorted(fleet.state.durable.services[name])]
    return [rank.placement.cpus for job in jobs if job.attempt is not None for rank in job.attempt.ranks]


def fleet_of(*, gpus: int = 6, cpus: int = 2, is_virtual: bool = True) -> Fleet:
    fleet = Fleet()
    fleet.join(fleet.add_node("n1", gpus=gpus, cpus=cpus, is_virtual=is_virtual))
    return fleet


def test_on_virtual_gpus_a_machine_of_two_cpus_holds_more_than_two_workers() -> None:
    assert serve(fleet_of(), workers=6) == [0] * 6


def test_a_worker_on_a_real_gpu_has_a_cpu_and_so_has_one_without_gpus() -> None:
    assert serve(fleet_of(is_virtual=False), workers=6) == [1, 1]
    assert serve(fleet_of(), workers=1, gpus=0) == [1]


def test_cpus_that_were_named_are_reserved_on_virtual_gpus_too() -> None:
    assert serve(fleet_of(), workers=3, cpus=1) == [1, 1]


def test_where_some_gpus_are_real_each_worker_has_a_cpu() -> None:
    fleet = fleet_of()
    fleet.join(fleet.add_node("n2", gpus=1))
    assert serve(fleet, workers=1) == [1]


@pytest.mark.parametrize(
    ("gpus", "cpus", "batch", "reason", "words"),
    [
        (2, 1, Resources(cpus=1), "CPUS_IN_USE", "for a free CPU"),
        (1, 8, Resources(gpus=1, min_memory_bytes=0), "DEVICES_IN_USE", "for a free GPU"),
        (2, 8, Resources(memory_bytes=512 * GB), "MEMORY_IN_USE", "for free memory of a machine"),
    ],
)
def test_who_waits_is_told_what_the_worker_waits_for(
    gpus: int, cpus: int, batch: Resources, reason: str, words: str
) -> None:
    fleet = fleet_of(gpus=gpus, cpus=cpus)
    fleet.submit(JobSpec(argv=("b",), name="b", cwd="/", resources=batch))
    name = ModelName("canvas")
    wanted = Resources(gpus=1, cpus=1, min_memory_bytes=0, memory_bytes=1)
    spec = JobSpec(argv=("w",), name=name, cwd="/", resources=wanted, serves=name)
    model = Model(name=name, owner=ALICE, worker=spec, min_workers=1, max_workers=1, entry_point="m:C")
    fleet.take_up(ServeRequested(at=fleet.now, model=model))
    (job,) = (fleet.state.durable.jobs[job] for job in fleet.state.durable.services[name])
    assert isinstance(job.state, Queued)
    assert (lacks(fleet.state, job, fleet.now), where_it_waits(fleet.state, job, fleet.now)) == (reason, words)


@pytest.mark.parametrize("is_virtual", [True, False])
def test_a_model_whose_cpus_were_not_named_is_known_to_have_been_ready(is_virtual: bool) -> None:
    fleet = fleet_of(is_virtual=is_virtual)
    serve(fleet, workers=1)
    name, worker = ModelName("canvas"), WorkerId("w1")
    (job,) = fleet.state.durable.services[name]
    joined = WorkerJoined(at=fleet.now, worker=worker, model=name, endpoint="n1:8001", stream=1, by=ALICE, job=job)
    fleet.take_up(joined)
    fleet.take_up(
        WorkerReported(at=fleet.now, worker=worker, stream=1, state=WorkerState.READY, seats=1, progress=1.0, turns=())
    )
    assert fleet.state.durable.models[name].has_been_ready
