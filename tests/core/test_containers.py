"""Jobs in containers go where there is an engine."""

from __future__ import annotations

from dataclasses import replace

from scheduler.policy.fit import could_ever_hold
from scheduler.state.nodes import Node, NodeContainers
from scheduler.state.replies import Refused
from scheduler.state.specs import Resources
from tests.core.fleet import Fleet, spec


def node_with(containers: NodeContainers | None) -> Node:
    fleet = Fleet(passes=False)
    made = fleet.add_node("n1", gpus=2)
    made.info = replace(made.info, containers=containers)
    for _ in fleet.join(made):
        pass
    return fleet.state.durable.nodes[made.name]


def why_not(containers: NodeContainers | None, gpus: int = 0) -> tuple[str, str] | None:
    miss = could_ever_hold(node_with(containers), Resources(in_container=True, gpus=gpus), 0)
    return None if miss is None else (miss.reason, miss.clause)


def test_it_waits_for_a_node_with_an_engine_and_explain_says_so() -> None:
    assert why_not(None) == ("NO_ENGINE", "runs no containers: its agent knows nothing of them")
    assert why_not(NodeContainers(problem="it has no engine")) == ("NO_ENGINE", "runs no containers: it has no engine")
    assert why_not(NodeContainers(engine="podman 4")) is None
    assert why_not(NodeContainers(engine="podman 4"), gpus=1) == (
        "NO_GPU_CONTAINERS",
        "gives containers no GPUs: podman 4 lacks the way",
    )
    assert why_not(NodeContainers(engine="podman 4", gpus_by="cdi"), gpus=1) is None


def test_a_submit_that_no_node_can_run_for_want_of_an_engine_is_told_what_gives_it_one() -> None:
    fleet = Fleet()
    node = fleet.add_node("n1")
    fix = "Install Docker, or Podman and: systemctl enable --now podman.socket."
    node.info = replace(node.info, containers=NodeContainers(problem="it has no container engine", fix=fix))
    fleet.join(node)
    reply = fleet.submit(spec(in_container=True)).reply
    assert isinstance(reply, Refused)
    assert reply.next_step == "on node n1: install Docker, or Podman and: systemctl enable --now podman.socket"
    node.info = replace(node.info, containers=None)
    fleet.announce(node)
    reply = fleet.submit(spec(in_container=True)).reply
    assert isinstance(reply, Refused) and reply.next_step == "ask for less, or see what there is with: gpuctl nodes"
