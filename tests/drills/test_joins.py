"""What happens to nodes that join a drill: the same for a seed, and something of everything."""

from __future__ import annotations

from tests.drills.faults import plan
from tests.drills.joins import LAST_SECONDS, NAMES, Step, What, steps

NODES = ("node1", "node2", "node3")
SECONDS = 180.0
SEEDS = range(200)


def drawn(seed: int, seconds: float = SECONDS) -> tuple[Step, ...]:
    return steps(seed, seconds, plan(seed, NODES, seconds))


def test_a_seed_gives_the_same_joins_and_each_thing_happens_in_time() -> None:
    assert drawn(7) == drawn(7) != drawn(8)
    for seed in SEEDS:
        found = drawn(seed)
        assert {step.what for step in found} == set(What), f"seed {seed}"
        assert all(0 <= step.at <= SECONDS - LAST_SECONDS for step in found), f"seed {seed}"
        for name in NAMES:
            joins = [step.at for step in found if step.node == name and step.what is What.JOIN]
            later = [step.at for step in found if step.node == name and step.what is not What.JOIN]
            assert len(joins) == 1
            assert min(later) > joins[0]


def test_some_joins_meet_an_outage_of_the_scheduler() -> None:
    met = 0
    for seed in SEEDS:
        outages = [fault for fault in plan(seed, NODES, SECONDS) if fault.target == "scheduler"]
        joins = [step for step in drawn(seed) if step.what is What.JOIN]
        met += any(0 <= fault.at - step.at <= 1.0 for step in joins for fault in outages)
    assert met > len(SEEDS) / 3


def test_nothing_that_a_restore_may_take_back_is_tried_where_the_store_is_put_back() -> None:
    found = {step.what for step in steps(7, SECONDS, plan(7, NODES, SECONDS), is_restored=True)}
    assert found == {What.JOIN, What.KILL, What.OTHER_NAME}


def test_a_drill_that_is_too_short_has_none() -> None:
    assert drawn(7, LAST_SECONDS) == ()
