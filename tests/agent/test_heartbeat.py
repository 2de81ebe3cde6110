"""What of the messages up goes together."""

from __future__ import annotations

import asyncio

from gpufleet.v1 import node_agent_pb2

from node_agent.heartbeat import JOINED_BYTES_MAX, JOINED_MESSAGES_MAX, join

Message = node_agent_pb2.HeartbeatRequest


def text(size_bytes: int) -> Message:
    return Message(program_log=node_agent_pb2.ProgramLogChunk(data=b"x" * size_bytes))


def waiting(*sizes_bytes: int) -> asyncio.Queue[Message]:
    unsent: asyncio.Queue[Message] = asyncio.Queue()
    for size_bytes in sizes_bytes:
        unsent.put_nowait(text(size_bytes))
    return unsent


def sizes(message: Message) -> list[int]:
    return [len(each.program_log.data) for each in (message, *message.more)]


def test_what_waits_goes_up_as_one_message_in_its_order() -> None:
    message = text(1)
    assert join(message, waiting(2, 3)) is None
    assert sizes(message) == [1, 2, 3]


def test_a_long_message_goes_alone() -> None:
    message = text(1)
    left = join(message, waiting(2, JOINED_BYTES_MAX, 3))
    assert left is not None
    assert sizes(left) == [JOINED_BYTES_MAX]
    assert sizes(message) == [1, 2]


def test_a_message_takes_along_a_bounded_number() -> None:
    message = text(1)
    assert join(message, waiting(*[1] * JOINED_MESSAGES_MAX)) is not None
    assert len(sizes(message)) == JOINED_MESSAGES_MAX
