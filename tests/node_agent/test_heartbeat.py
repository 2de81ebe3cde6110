"""What of the messages up goes together."""

from __future__ import annotations

import asyncio

import pytest
from gpufleet.v1 import node_agent_pb2

from node_agent import heartbeat
from node_agent.core.delivery import Receipt
from node_agent.heartbeat import JOINED_BYTES_MAX, JOINED_MESSAGES_MAX, Body, Heartbeats, join

DEADLINE_SECONDS = 60.0

Message = node_agent_pb2.HeartbeatRequest


def text(size_bytes: int) -> Message:
    return Message(program_log=node_agent_pb2.ProgramLogChunk(data=b"x" * size_bytes))


def waiting(*sizes_bytes: int) -> asyncio.Queue[Message]:
    unsent: asyncio.Queue[Message] = asyncio.Queue()
    for size_bytes in sizes_bytes:
        unsent.put_nowait(text(size_bytes))
    return unsent


class Stub:
    """A scheduler that says nothing and keeps what it is told."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[Message] = asyncio.Queue()
        self._silence = asyncio.Event()

    def Heartbeat(self) -> Stub:
        return self

    async def write(self, message: Message) -> None:
        self.told.put_nowait(message)

    def __aiter__(self) -> Stub:
        return self

    async def __anext__(self) -> node_agent_pb2.HeartbeatResponse:
        await self._silence.wait()
        raise StopAsyncIteration

    def cancel(self) -> None:
        pass


class Duties:
    """An agent that knows of nothing."""

    def inventory(self, now_us: int) -> node_agent_pb2.Inventory:
        return node_agent_pb2.Inventory()

    def beat(self) -> node_agent_pb2.Beat:
        return node_agent_pb2.Beat()

    def heard(self, sent_us: int) -> None: ...

    def heard_term(self, term: int) -> None: ...

    def heard_position(self, position: str) -> None: ...

    def carry_out(
        self, message: node_agent_pb2.HeartbeatResponse, heartbeat_sent_us: int | None, receipt: Receipt
    ) -> None: ...


def started(now_us: int) -> Body:
    return {"attempt_started": node_agent_pb2.AttemptStarted()}


def exited(now_us: int) -> Body:
    return {"attempt_exited": node_agent_pb2.AttemptExited()}


async def told(*reports: heartbeat.Report) -> list[list[str | None]]:
    """What goes up after these reports, message by message, up to the message with the last of them."""
    heartbeats = Heartbeats("n1", 1, 0, Duties())
    stub = Stub()
    holding = asyncio.create_task(heartbeats.hold(stub, 3600.0))  # type: ignore[arg-type]
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            opening = await stub.told.get()
            seen = 1 + len(opening.more)
            while seen < 2:  # the inventory and the first beat
                seen += 1 + len((await stub.told.get()).more)
            found: list[list[str | None]] = []
            for report in reports:
                heartbeats.report(report)
            while sum(map(len, found)) < len(reports):
                message = await stub.told.get()
                found.append([each.WhichOneof("body") for each in (message, *message.more)])
            return found
    finally:
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)


async def test_that_an_attempt_runs_goes_up_with_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "LINGER_SECONDS", 3600.0)
    assert await told(started, exited) == [["attempt_started", "attempt_exited"]]


async def test_that_an_attempt_runs_goes_up_without_its_end_soon() -> None:
    assert await told(started) == [["attempt_started"]]


async def test_an_inventory_has_a_higher_number_than_all_that_went_up_before() -> None:
    """By it the scheduler knows a stream that was given up and arrives late."""
    heartbeats = Heartbeats("n1", 1, 0, Duties())
    numbers: list[list[int]] = []
    for _ in range(2):
        stub = Stub()
        holding = asyncio.create_task(heartbeats.hold(stub, 3600.0))  # type: ignore[arg-type]
        async with asyncio.timeout(DEADLINE_SECONDS):
            opening = await stub.told.get()
            heartbeats.report(exited)
            ended = await stub.told.get()
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
        assert opening.WhichOneof("body") == "inventory"
        numbers.append([each.sequence for message in (opening, ended) for each in (message, *message.more)])
    assert numbers[1][0] > max(numbers[0])


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
