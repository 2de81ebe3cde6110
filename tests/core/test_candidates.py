"""What a pass remembers of the nodes is what it would find if it asked every node for every job."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from scheduler.policy.admission import minimum_memory
from scheduler.policy.fit import Miss, devices_that_fit, node_views
from scheduler.policy.placement import candidates_of, take
from scheduler.policy.reservation import ends_if_placed, holds_on, keep, reserve
from scheduler.state.ids import JobId, UserName
from scheduler.state.jobs import Job, Queued
from scheduler.state.limits import NodeOrder
from scheduler.state.specs import Band, JobSpec, Resources
from scheduler.state.units import MINUTE, Span
from tests.core.transcript import Transcript


def fleet_of(rng: random.Random) -> Transcript:
    transcript = Transcript()
    for number in range(rng.randint(1, 6)):
        transcript.answer(f"node n{number} gpus={rng.randint(0, 4)} cpus={rng.randint(1, 8)}")
    return transcript


@pytest.mark.parametrize("order", list(NodeOrder))
@pytest.mark.parametrize("seed", range(60))
def test_the_node_is_the_one_that_asking_all_of_them_finds(seed: int, order: NodeOrder) -> None:
    rng = random.Random(seed)
    transcript = fleet_of(rng)
    state, at = transcript.fleet.state, transcript.fleet.now
    views = node_views(state, at)
    specs = [
        JobSpec(
            argv=("true",),
            name="true",
            cwd="/",
            resources=Resources(
                gpus=rng.randint(0, 3), cpus=rng.randint(1, 3), min_memory_bytes=0, share_milli=rng.choice((0, 0, 300))
            ),
            time_limit=rng.choice((None, Span(rng.randint(1, 60) * MINUTE))),
        )
        for _ in range(4)
    ]

    def job(number: int) -> Job:
        spec = rng.choice(specs)
        return Job(
            id=JobId(number), user=UserName("alice"), spec=spec, band=Band.NORMAL, submitted_at=at, state=Queued()
        )

    first = job(1)
    if claim := reserve(views, first, (first.spec.resources,), 0, at, lambda view: holds_on(state.durable, view)):
        keep(views, claim)
    candidates = candidates_of(views, order)
    for number in range(1, 30):
        asking = replace(job(number), id=JobId(1 if rng.random() < 0.2 else number))
        minimum, ends_at = minimum_memory(state, asking.spec.resources), ends_if_placed(asking, at)
        found = candidates.place(asking, minimum, ends_at)
        fitting = {
            name
            for name, view in views.items()
            if not isinstance(devices_that_fit(view, asking.spec.resources, minimum, asking.id, ends_at), Miss)
        }
        best = min((candidates.rank_of(views[name], asking.spec.resources) for name in fitting), default=None)
        assert (None if found is None else found.node) == (None if best is None else best[-1])
        if found is not None:
            take(views[found.node], found, asking.id, ends_at)
        elif reservation := reserve(
            views, asking, (asking.spec.resources,), minimum, at, lambda view: holds_on(state.durable, view)
        ):
            keep(views, reservation)
