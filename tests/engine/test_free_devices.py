"""A GPU counts as free where, and only where, a job that asks for one GPU is given it now."""

from __future__ import annotations

import pytest
from gpufleet.v1 import node_pb2

from scheduler.policy.explain import explain
from scheduler.policy.fit import NodeChanges, node_view
from scheduler.policy.order.queue import queue_order
from scheduler.state.ids import NodeName
from scheduler.wire.convert_nodes import device_now
from tests.core.transcript import Transcript


def shown(transcript: Transcript) -> node_pb2.NodeDevice:
    """The only GPU, as people see it."""
    state, at = transcript.fleet.state, transcript.fleet.now
    view = node_view(state, state.durable.nodes[NodeName("n1")], at, NodeChanges())
    return device_now(view.devices[0], view, state, at)


@pytest.mark.parametrize(
    ("reading", "is_used_by_others"),
    [
        ("free=80GB", False),
        ("free=80GB foreign", True),
        ("free=3GB", True),
        ("free=9GB utilization=99", False),
        ('free=80GB sick="XID 79"', False),
    ],
)
def test_what_is_free_is_given_and_what_is_given_was_free(reading: str, is_used_by_others: bool) -> None:
    transcript = Transcript()
    transcript.answer("node n1 gpus=1 memory=80GB")
    transcript.answer(f"device n1:0 {reading}")
    device = shown(transcript)
    transcript.answer("submit alice gpus=1")
    waiting = list(queue_order(transcript.fleet.state, transcript.fleet.now))
    assert device.is_free == (not waiting)
    assert device.is_used_by_others is is_used_by_others
    if waiting:
        reason = explain(transcript.fleet.state, waiting[0], transcript.fleet.now).reason
        assert is_used_by_others == (reason in {"DEVICE_BUSY", "DEVICE_MEMORY_IN_USE"})


def test_what_a_job_holds_is_used_by_nobody_else() -> None:
    transcript = Transcript()
    transcript.answer("node n1 gpus=1 memory=80GB")
    transcript.answer("submit alice gpus=1")
    transcript.answer("device n1:0 free=1GB")
    assert not shown(transcript).is_free and not shown(transcript).is_used_by_others
