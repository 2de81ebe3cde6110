"""What goes down to a node as one message, and when an acknowledgement goes without a command."""

from __future__ import annotations

import asyncio

import pytest
from gpufleet.v1 import node_agent_pb2

from scheduler import links
from scheduler.links import JOINED_BYTES_MAX, JOINED_MESSAGES_MAX, AgentStream, joined
from scheduler.state.ids import NodeName

Message = node_agent_pb2.HeartbeatResponse
DEADLINE_SECONDS = 60.0


def forget(job: int) -> Message:
    return Message(forget=node_agent_pb2.Forget(key=node_agent_pb2.AttemptKey(job_id=job, attempt=1)))


def launch(job: int, size_bytes: int) -> Message:
    key = node_agent_pb2.AttemptKey(job_id=job, attempt=1)
    return Message(launch=node_agent_pb2.Launch(key=key, env={"LARGE": "x" * size_bytes}))


def sizes(messages: list[Message]) -> list[int]:
    return [1 + len(message.more) for message in messages]


async def next_messages(connection: AgentStream) -> list[Message]:
    async with asyncio.timeout(DEADLINE_SECONDS):
        return await connection.next_messages()


def test_messages_that_wait_go_as_one_up_to_a_number_and_a_length() -> None:
    assert sizes(joined([forget(1)])) == [1]
    assert sizes(joined([forget(job) for job in range(JOINED_MESSAGES_MAX + 1)])) == [JOINED_MESSAGES_MAX, 1]
    large = JOINED_BYTES_MAX + 1
    mixed = [forget(1), forget(2), launch(3, large), forget(4), launch(5, JOINED_BYTES_MAX // 2)]
    assert sizes(joined(mixed)) == [2, 1, 2]


async def test_joined_commands_keep_their_order_and_each_has_its_own_number() -> None:
    connection = AgentStream(NodeName("n1"), 1, 1)
    for job in (1, 2, 3):
        connection.put(forget(job))
    (message,) = await next_messages(connection)
    together = [message, *message.more]
    assert [each.forget.key.job_id for each in together] == [1, 2, 3]
    assert [each.sequence for each in together] == [1, 2, 3]


async def test_a_report_is_acknowledged_with_the_next_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "LINGER_SECONDS", 3600.0)
    connection = AgentStream(NodeName("n1"), 1, 1)
    connection.heard(1)
    connection.done(1)
    waiting = asyncio.create_task(next_messages(connection))
    await asyncio.sleep(0)
    assert not waiting.done()
    connection.put(forget(1))
    (message,) = await waiting
    assert (message.acked_sequence, message.newest_heartbeat) == (1, 1)


async def test_what_may_linger_goes_with_the_next_command_and_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "LINGER_SECONDS", 3600.0)
    connection = AgentStream(NodeName("n1"), 1, 1)
    connection.put(forget(1), may_linger=True)
    waiting = asyncio.create_task(next_messages(connection))
    await asyncio.sleep(0)
    assert not waiting.done()
    connection.put(launch(2, 1))
    (message,) = await waiting
    assert message.WhichOneof("command") == "forget"
    assert [each.WhichOneof("command") for each in message.more] == ["launch"]


async def test_what_may_linger_goes_by_itself_soon() -> None:
    connection = AgentStream(NodeName("n1"), 1, 1)
    connection.put(forget(1), may_linger=True)
    (message,) = await next_messages(connection)
    assert message.WhichOneof("command") == "forget"


async def test_a_report_is_acknowledged_without_a_command_soon() -> None:
    connection = AgentStream(NodeName("n1"), 1, 1)
    connection.heard(1)
    connection.done(1)
    (message,) = await next_messages(connection)
    assert (message.acked_sequence, message.WhichOneof("command")) == (1, None)


async def test_a_beat_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "LINGER_SECONDS", 3600.0)
    connection = AgentStream(NodeName("n1"), 1, 1)
    connection.heard(1, is_beat=True)
    (message,) = await next_messages(connection)
    assert (message.acked_sequence, message.newest_heartbeat) == (0, 1)
