"""The plan of a drill: the same for a seed, and within what is promised to be borne."""

from __future__ import annotations

from itertools import combinations

import pytest

from node_agent.core.fence import FENCE_MARGIN_US_MIN
from scheduler.wire.validate import FENCE_MIN
from tests.drills.faults import (
    APART_SECONDS,
    FENCE_SECONDS,
    LONG,
    MARGIN_SECONDS,
    Fault,
    Kind,
    outside_the_guarantee,
    plan,
)

NODES = ("node1", "node2", "node3")
SECONDS = 170.0
SEEDS = range(200)


def test_a_seed_gives_the_same_faults() -> None:
    assert plan(7, NODES, SECONDS) == plan(7, NODES, SECONDS) != plan(8, NODES, SECONDS)


def test_every_plan_ends_in_time_and_keeps_within_the_guarantee() -> None:
    for seed in SEEDS:
        faults = plan(seed, NODES, SECONDS)
        assert all(fault.at > 0 and fault.end <= SECONDS for fault in faults)
        assert outside_the_guarantee(faults) is None
        for one, other in combinations(faults, 2):
            if one.target == other.target:
                assert one.end + APART_SECONDS <= other.at, f"seed {seed}: {one} meets {other}"


def test_plans_of_three_minutes_hold_every_kind_of_fault_and_silences_longer_than_the_fence() -> None:
    parts = {Kind.KILL: {"scheduler", "agent", "keeper"}, Kind.PAUSE: {"scheduler", "agent", "keeper"}}
    for seed in SEEDS:
        faults = plan(seed, NODES, SECONDS)
        assert {fault.kind for fault in faults} == set(Kind), f"seed {seed}"
        for kind, wanted in parts.items():
            assert {fault.part for fault in faults if fault.kind is kind} == wanted, f"seed {seed}"
        assert any(fault.part == "link" and fault.seconds == LONG for fault in faults)
        assert any(fault.part == "agent" and fault.seconds == LONG for fault in faults)


def test_the_fence_of_a_drill_is_the_shortest_and_its_margin_the_nodes_own() -> None:
    assert FENCE_SECONDS * 1e6 == FENCE_MIN
    assert MARGIN_SECONDS * 1e6 == FENCE_MARGIN_US_MIN


def fault(target: str, kind: Kind, at: float, seconds: float = 0.0) -> Fault:
    return Fault(at=at, kind=kind, target=target, seconds=seconds)


@pytest.mark.parametrize(
    "faults",
    [
        [fault("keeper node1", Kind.PAUSE, 10, 4.0)],
        [fault("keeper node1", Kind.KILL, 20), fault("agent node1", Kind.PAUSE, 10, LONG)],
        [
            fault("keeper node1", Kind.KILL, 40),
            fault("agent node1", Kind.KILL, 39, 5.0),
            fault("link node1", Kind.CUT, 12, 20.0),
        ],
    ],
    ids=["a keeper stopped", "a keeper killed under a stopped agent", "all away on a silent node"],
)
def test_what_is_more_than_promised_is_no_plan(faults: list[Fault]) -> None:
    assert outside_the_guarantee(faults) is not None
    for fewer in combinations(faults, len(faults) - 1):
        assert outside_the_guarantee(list(fewer)) is None
