"""The indices of arrays, their lines and places: many items cost what few do, and are told as the many they are."""

from __future__ import annotations

import random

import pytest

from scheduler.policy.order.page import order_from
from scheduler.policy.order.queue import queue_order
from scheduler.state.events import CancelRequested, HoldRequested, JobsSubmitted, WantedJob
from scheduler.state.groups.group import NO_GROUP
from scheduler.state.ids import JobId, UserName
from scheduler.state.indices import Indices
from scheduler.state.jobs import Items
from scheduler.state.specs import Band
from tests.core.fleet import Fleet, spec


def indices(*ranges: range) -> Indices:
    return Indices.of_ranges(ranges)


@pytest.mark.parametrize("seed", range(50))
def test_indices_are_the_numbers_that_they_were_made_of(seed: int) -> None:
    rng = random.Random(seed)
    numbers = sorted(rng.sample(range(rng.choice([12, 40, 1000])), rng.randrange(1, 12)))
    for made in (Indices.of_numbers(numbers), indices(*(range(number, number + 1) for number in reversed(numbers)))):
        assert made.count == len(numbers)
        assert [made.at(position) for position in range(made.count)] == numbers
        assert [number for part in made.parts() for number in part] == numbers
        assert [made.position(number) for number in numbers] == list(range(len(numbers)))
        assert made.position(numbers[-1] + 1) is None
        assert made.first_from(numbers[0] - 1) == 0


def test_indices_are_written_as_a_person_would() -> None:
    assert str(indices(range(1, 101))) == "1-100"
    assert str(indices(range(5, 10), range(1, 2), range(3, 4))) == "1,3,5-9"
    assert str(indices(range(0, 31, 10))) == "0-30:10"
    assert str(Indices.of_numbers([1, 2, 4, 6, 8, 9])) == "1-2,4-8:2,9"
    assert str(indices(range(1, 10, 2), range(2, 10, 2))) == "1-9"
    with pytest.raises(ValueError, match="index 3 is named twice"):
        indices(range(1, 5), range(3, 9, 4))


def submit(fleet: Fleet, count: int, user: str = "alice", cpus: int = 1) -> JobId:
    first = fleet.state.durable.counters.next_job
    fleet.take_up(
        JobsSubmitted(
            at=fleet.now,
            user=UserName(user),
            jobs=(WantedJob(spec=spec(cpus=cpus), band=Band.NORMAL),),
            items=Items(indices=indices(range(count))) if count else None,
        )
    )
    return JobId(first)


@pytest.mark.parametrize("seed", range(30))
def test_a_walk_that_passes_items_tells_every_place_as_one_that_does_not(seed: int) -> None:
    rng = random.Random(seed)
    fleet = Fleet()
    for _ in range(rng.randrange(1, 8)):
        submit(fleet, rng.choice([0, 0, 1, 3, 7]), rng.choice(["alice", "bob", "carol"]), cpus=rng.randrange(1, 3))
        fleet.now += rng.randrange(2)  # type: ignore[assignment]
    for job in rng.choices(range(1, fleet.state.durable.counters.next_job), k=2) if rng.random() < 0.5 else ():
        for is_held in (True, False):
            fleet.take_up(HoldRequested(at=fleet.now, by=UserName("alice"), jobs=(JobId(job),), is_held=is_held))
    durable = fleet.state.durable
    places = {job.id: place for place, job in enumerate(queue_order(fleet.state, fleet.now), 1)}
    told = [(place, job.id) for place, job in order_from(fleet.state, fleet.now, None)]
    assert [place for place, _ in told] == sorted(place for place, _ in told)

    def stands_among_alike(job: JobId) -> bool:
        """One that differs and has kept its age stands between the others: it is told behind all of them."""
        array = durable.jobs[job].array
        alike = None if array is None else durable.items_alike(array)
        return alike is not None and job not in alike and durable.jobs[job].age_since == alike.first.age_since

    assert all(places[job] == place for place, job in told if not stands_among_alike(job))
    alike = {job for array in durable.arrays if (each := durable.items_alike(array)) for job in each.ids()}
    firsts = {next(each.ids()) for array in durable.arrays if (each := durable.items_alike(array))}
    assert {job for _, job in told} == (places.keys() - alike) | firsts
    for number, (_, job) in enumerate(told):
        if stands_among_alike(job):
            continue
        known = durable.jobs[job]
        cursor = (known.band, (NO_GROUP, known.user), (known.age_since, known.id))
        rest = [(place, each.id) for place, each in order_from(fleet.state, fleet.now, cursor)]
        assert rest == told[number + 1 :]


def test_an_array_of_many_costs_what_one_of_few_does() -> None:
    """By the count of what is kept; how long it takes is for the bench."""
    fleet = Fleet(passes=False)
    array = submit(fleet, 2_000)
    assert len(fleet.store.entities) == 3  # the array, its items, the next id
    assert len(fleet.store.records) == 1
    turn = fleet.take_up(CancelRequested(at=fleet.now, by=UserName("alice"), jobs=(array,)))
    assert len(turn.records) == 2 and len(fleet.store.finished) == 1
    assert len(fleet.store.entities) == 1
