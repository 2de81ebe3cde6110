"""How the devices of a job are chosen, and that the job and its story say how."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler.core.story import sentence
from scheduler.state.attempts import AllocationMethod, Placement
from scheduler.state.ids import DeviceUuid, NodeName
from scheduler.state.limits import Limits, NodeOrder, ScoreWeights
from scheduler.state.records import AttemptPlaced
from scheduler.state.specs import NodePins
from scheduler.state.units import GB
from tests.core.fleet import FakeNode, Fleet, spec

LOADS = (90, 10, 50, 30)
"""Of the four devices by index; 20 GB of memory is used on each, so that the load alone decides."""


def fleet() -> tuple[Fleet, FakeNode]:
    made = Fleet()
    node = made.add_node("n1", gpus=4)
    for index, load in enumerate(LOADS):
        uuid = DeviceUuid(f"n1-gpu{index}")
        node.samples[uuid] = replace(node.samples[uuid], utilization_percent=load, memory_free_bytes=60 * GB)
    made.join(node)
    return made, node


def placed(made: Fleet, **asked: Any) -> tuple[Placement, str]:
    """Where a job with this request goes, and the sentence of its story."""
    turn = made.submit(spec(**asked))
    record = next(each for each in turn.records if isinstance(each, AttemptPlaced))
    (rank,) = record.attempt.ranks
    return rank.placement, sentence(record)


def indices(placement: Placement) -> list[int]:
    return [device.index for device in placement.devices]


def test_of_those_that_fit_the_best_by_score_are_taken() -> None:
    made, _ = fleet()
    placement, told = placed(made, gpus=2)
    assert (indices(placement), placement.method.value) == ([1, 3], "score")
    assert [device.score for device in placement.devices] == pytest.approx([0.45 + 0.36, 0.45 + 0.28])
    assert told == "Attempt 1/1 was placed on n1:1,3."


def test_pinned_ones_are_taken_whatever_they_do() -> None:
    made, _ = fleet()
    placement, told = placed(made, gpus=1, pins=(NodePins(node=NodeName("n1"), indices=(0,)),))
    assert (indices(placement), placement.method.value) == ([0], "pinned")
    assert told == "Attempt 1/1 was placed on n1:0."


def test_a_share_goes_to_the_fullest_that_has_room_so_that_whole_ones_stay_whole() -> None:
    made, _ = fleet()
    assert indices(placed(made, gpus=1, share_milli=300)[0]) == [1]
    placement, _ = placed(made, gpus=1, share_milli=300)
    assert (indices(placement), placement.method.value) == ([1], "fragmentation")


def test_who_asks_for_no_choice_gets_plain_order_and_is_told() -> None:
    made, _ = fleet()
    placement, told = placed(made, gpus=2, ignores_telemetry=True)
    assert (indices(placement), placement.method.value) == ([0, 1], "fallback")
    assert told == "Attempt 1/1 was placed on n1:0,1, GPUs in plain order: without a choice by their readings."


def test_without_telemetry_of_one_of_them_plain_order_is_taken_and_told() -> None:
    made, node = fleet()
    for index in (0, 2):
        uuid = DeviceUuid(f"n1-gpu{index}")
        node.samples[uuid] = replace(node.samples[uuid], memory_free_bytes=None)
    made.beat(node.name)
    placement, told = placed(made, gpus=2)
    assert (indices(placement), placement.method) == ([0, 1], AllocationMethod.FALLBACK)
    assert [device.score is None for device in placement.devices] == [True, False]
    assert told == "Attempt 1/1 was placed on n1:0,1, GPUs in plain order: what they do was not known."


@pytest.mark.parametrize(("order", "node"), [(NodeOrder.FRAGMENTATION, "tight"), (NodeOrder.IDLE, "idle")])
def test_between_nodes_the_tightest_fit_goes_first_or_the_idlest_node(order: NodeOrder, node: str) -> None:
    made = Fleet(replace(Limits(), node_order=order))
    for name, gpus, load in (("idle", 4, 0), ("tight", 2, 80)):
        machine = made.add_node(name, gpus=gpus)
        machine.samples = {uuid: replace(sample, utilization_percent=load) for uuid, sample in machine.samples.items()}
        made.join(machine)
    assert placed(made, gpus=1)[0].node == node


def test_a_score_stays_between_0_and_1_whatever_the_weights_are() -> None:
    made = Fleet(replace(Limits(), score_weights=ScoreWeights(free_memory=1.0, idleness=1.0)))
    made.join(made.add_node("n1", gpus=1))
    placement, _ = placed(made, gpus=1)
    assert placement.devices[0].score == 1.0
