"""The way from a person's keyboard to a node: who may type, what waits where, and that no end of it hangs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gpufleet.v1 import node_agent_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.telemetry.spans import OFF
from scheduler.api.output import channels as channels_module
from scheduler.api.output.attaching import serve_channel
from scheduler.api.output.channels import PIECES_WAITING, Channel, ChannelClosed, Channels, Keyboards
from scheduler.links import AgentStream, Links
from scheduler.state.ids import JobId, NodeName, RankKey

N1 = NodeName("n1")
KEY = RankKey(JobId(7), 1, 0)
DEADLINE_SECONDS = 60.0

Chunk = node_agent_pb2.InputChunk
State = node_agent_pb2.InputState
Up = node_agent_pb2.OpenChannelRequest


class Agent:
    """A node's agent, as far as channels see it."""

    def __init__(self) -> None:
        self.links = Links(OFF)
        self.connection = AgentStream(N1, 1, 1)
        self.links.join(self.connection)
        self.channels = Channels(self.links)
        self.down: list[Chunk] = []
        self.changes = 0

    def changed(self) -> None:
        self.changes += 1

    async def asked(self) -> node_agent_pb2.OpenChannelCommand:
        """The command to open a channel."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            (message,) = await self.connection.next_messages()
        return message.open_channel

    async def serve(self, channel_id: str, states: asyncio.Queue[State | None]) -> None:
        """Dial the channel; each state is said when it is put, None ends the call."""

        async def requests() -> AsyncIterator[Up]:
            is_first = True
            while (state := await states.get()) is not None:
                yield Up(channel_id=channel_id if is_first else "", input=state)
                is_first = False

        agent = self

        class Context:
            async def write(self, message: Any) -> None:
                agent.down.append(message.input)

        await serve_channel(self.channels, requests(), Context())


@pytest.fixture
def agent() -> Agent:
    return Agent()


async def test_a_channel_is_asked_for_dialled_and_used_both_ways(agent: Agent) -> None:
    states: asyncio.Queue[State | None] = asyncio.Queue()

    async def dial() -> None:
        command = await agent.asked()
        assert (command.writer, command.key.job_id, command.key.attempt) == ("me", 7, 1)
        states.put_nowait(State(offset=5, is_continued=True))
        await agent.serve(command.channel_id, states)

    dialling = asyncio.create_task(dial())
    async with agent.channels.open(N1, KEY, "me", agent.changed) as channel:
        assert channel.begun == channel.state == State(offset=5, is_continued=True)
        await channel.put(Chunk(offset=5, data=b"hello"))
        states.put_nowait(State(offset=10))
        async with asyncio.timeout(DEADLINE_SECONDS):
            while channel.state == channel.begun:  # noqa: ASYNC110 - it all happens in this very loop
                await asyncio.sleep(0)
        assert channel.begun == State(offset=5, is_continued=True)
    await asyncio.wait_for(dialling, DEADLINE_SECONDS)
    assert [chunk.data for chunk in agent.down] == [b"hello"]
    assert agent.changes >= 2


async def test_a_channel_that_nobody_asked_for_is_refused(agent: Agent) -> None:
    states: asyncio.Queue[State | None] = asyncio.Queue()
    states.put_nowait(State())
    with pytest.raises(GpufleetError) as caught:
        await agent.serve("made up", states)
    assert caught.value.reason is Reason.INVALID_ARGUMENT


async def test_an_agent_that_refuses_says_why_and_the_call_ends(agent: Agent) -> None:
    states: asyncio.Queue[State | None] = asyncio.Queue()
    states.put_nowait(State(problem="7.1.0 does not run any more"))

    async def dial() -> None:
        await agent.serve((await agent.asked()).channel_id, states)

    dialling = asyncio.create_task(dial())
    with pytest.raises(ChannelClosed, match=r"7\.1\.0 does not run any more"):
        async with agent.channels.open(N1, KEY, "me", agent.changed):
            raise AssertionError("it is not open")
    await asyncio.wait_for(dialling, DEADLINE_SECONDS)


async def test_a_node_that_is_away_and_an_agent_that_never_dials_are_told(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ChannelClosed, match="n2 is not connected"):
        async with agent.channels.open(NodeName("n2"), KEY, "me", agent.changed):
            pass
    monkeypatch.setattr(channels_module, "OPEN_SECONDS_MAX", 0.01)
    with pytest.raises(ChannelClosed, match="opened none"):
        async with agent.channels.open(N1, KEY, "me", agent.changed):
            pass
    command = await agent.asked()
    assert agent.channels.asked_for(command.channel_id) is None, "too late now"


async def test_an_agent_that_takes_nothing_makes_the_person_wait_and_a_closed_channel_lets_go() -> None:
    channel = Channel(lambda: None)
    for _ in range(PIECES_WAITING):
        await channel.put(Chunk(data=b"x"))
    waiting = asyncio.create_task(channel.put(Chunk(data=b"one too many")))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    channel.close("gone")
    await asyncio.wait_for(waiting, DEADLINE_SECONDS)
    assert await asyncio.wait_for(channel.next_piece(), DEADLINE_SECONDS) is not None or channel.closed.is_set()


def test_one_session_types_at_a_time() -> None:
    keyboards = Keyboards()
    mine = keyboards.take(JobId(7), "me", take_over=False)
    with pytest.raises(GpufleetError) as caught:
        keyboards.take(JobId(7), "you", take_over=False)
    assert caught.value.reason is Reason.INPUT_TAKEN
    assert "gpuctl attach --take-over 7" in caught.value.next_step
    keyboards.take(JobId(8), "you", take_over=False)
    assert not mine.taken.is_set()


def test_a_session_that_comes_back_takes_its_own_place_and_another_one_when_it_says_so() -> None:
    keyboards = Keyboards()
    old = keyboards.take(JobId(7), "me", take_over=False)
    new = keyboards.take(JobId(7), "me", take_over=False)
    assert old.taken.is_set() and old.by == "me"
    keyboards.leave(JobId(7), old)  # late: it has nothing to leave any more
    yours = keyboards.take(JobId(7), "you", take_over=True)
    assert new.taken.is_set() and new.by == "you"
    keyboards.leave(JobId(7), yours)
    keyboards.take(JobId(7), "anybody", take_over=False)
