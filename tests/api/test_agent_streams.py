"""An agent's streams end as soon as the agent has said its last word, with everything that it was owed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from gpufleet.v1 import job_pb2, node_agent_pb2, node_agent_pb2_grpc, node_pb2

from tests.api.asking import forget_node
from tests.e2e.client import Client, dial
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS

TRIES = 50
"""The end raced with the last write: once is not enough to see it lost."""


async def told(*messages: Any) -> AsyncIterator[Any]:
    """These messages, and then no more."""
    for message in messages:
        yield message


async def test_an_output_stream_answers_the_last_question_and_ends(fleet: Fleet) -> None:
    ask = node_agent_pb2.OutputPosition(
        key=node_agent_pb2.AttemptKey(job_id=1_000_000, attempt=1), stream=job_pb2.STREAM_STDOUT
    )
    async with dial(fleet.scheduler.address, fleet.scheduler.token("agent")) as channel:
        stub = node_agent_pb2_grpc.NodeAgentStub(channel)
        for _ in range(TRIES):
            request = node_agent_pb2.ReportOutputRequest(node="nowhere", asks=[ask])
            call = stub.ReportOutput(told(request), timeout=DEADLINE_SECONDS)
            positions = [position async for message in call for position in message.synced]
            assert [(position.offset, position.is_unwanted) for position in positions] == [(0, True)]


async def test_a_heartbeat_stream_ends_when_its_agent_has_said_all(fleet: Fleet, admin: Client) -> None:
    info = node_pb2.NodeInfo(hostname="here", cpus=1)
    async with dial(fleet.scheduler.address, fleet.scheduler.token("agent")) as channel:
        stub = node_agent_pb2_grpc.NodeAgentStub(channel)
        announced = node_agent_pb2.RegisterRequest(
            node="brief", agent_id="a", incarnation=1, boot_id="b", info=info, protocol_version=1
        )
        await stub.Register(announced, timeout=DEADLINE_SECONDS)
        for _ in range(TRIES):
            inventory = node_agent_pb2.Inventory(boot_id="b", info=info)
            first = node_agent_pb2.HeartbeatRequest(node="brief", incarnation=1, sequence=1, inventory=inventory)
            beat = node_agent_pb2.HeartbeatRequest(node="brief", incarnation=1, sequence=2, beat=node_agent_pb2.Beat())
            call = stub.Heartbeat(told(first, beat), timeout=DEADLINE_SECONDS)
            assert all([message.term async for message in call])
    await forget_node(admin, "brief")
