"""The agent's channels against a keeper and a scheduler that do what a test tells them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gpufleet.v1 import job_pb2
from gpufleet.v1 import node_agent_pb2 as pb

from gpufleet.jobs.runs import JobId, RankKey
from node_agent import channels as channels_module
from node_agent.channels import Channels
from node_agent.core.commands import OpenChannel
from node_agent.core.launch import Refusal, RefusalReason
from node_agent.core.typed import InputPiece, Typed
from node_agent.keeper.connection import KeeperGone

KEY = RankKey(JobId(7), 1, 0)
DEADLINE_SECONDS = 60.0


class Call:
    """One OpenChannel as the agent sees it."""

    def __init__(self) -> None:
        self.said: list[pb.OpenChannelRequest] = []
        self.pieces: asyncio.Queue[pb.InputChunk | None] = asyncio.Queue()
        self.is_over = asyncio.Event()

    async def write(self, message: pb.OpenChannelRequest) -> None:
        self.said.append(message)

    async def done_writing(self) -> None:
        self.is_over.set()

    async def code(self) -> None:
        pass

    def cancel(self) -> None:
        self.is_over.set()

    async def __aiter__(self) -> AsyncIterator[pb.OpenChannelResponse]:
        while (piece := await self.pieces.get()) is not None:
            yield pb.OpenChannelResponse(input=piece)


class Keeper:
    """What takes in what is typed; `answers` are given in place of its own."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.answers: list[Refusal | Exception] = []
        self.offset = 0
        self.has_room = asyncio.Event()
        self.has_room.set()

    def _unusual(self) -> Refusal | None:
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def begin_input(self, key: RankKey, writer: str) -> tuple[Typed, bool] | Refusal:
        self.happened.append(f"begin {key} {writer}")
        return self._unusual() or (Typed(self.offset, has_ended=False), True)

    async def type(self, key: RankKey, writer: str, piece: InputPiece) -> Typed | Refusal:
        self.happened.append(f"type {writer} {piece.data.decode()}")
        await self.has_room.wait()
        refusal = self._unusual()
        if refusal is None:
            self.offset += len(piece.data)
        return refusal or Typed(self.offset, has_ended=piece.is_end)

    async def resize(self, key: RankKey, columns: int, rows: int) -> Refusal | None:
        self.happened.append(f"resize {columns} {rows}")
        return None


class Agent:
    """Channels on a connection, and the calls that they have dialled."""

    def __init__(self) -> None:
        self.keeper = Keeper()
        self.channels = Channels(self.keeper)
        self.calls: list[Call] = []
        self.holding: asyncio.Task[None] | None = None

    def OpenChannel(self) -> Any:
        self.calls.append(Call())
        return self.calls[-1]

    async def __aenter__(self) -> Agent:
        stub: Any = self
        self.holding = asyncio.create_task(self.channels.hold(stub))
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.holding is not None
        self.holding.cancel()
        await asyncio.gather(self.holding, return_exceptions=True)

    async def open(self, channel_id: str, writer: str = "me") -> Call:
        count = len(self.calls)
        self.channels.open(OpenChannel(channel_id, KEY, writer))
        await self.until(lambda: len(self.calls) > count and self.calls[count].said)
        return self.calls[count]

    async def until(self, is_so: Any) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not is_so():  # noqa: ASYNC110 - everything here happens in this very loop
                await asyncio.sleep(0)


async def test_a_channel_says_where_the_input_stands_and_each_piece_is_answered() -> None:
    async with Agent() as agent:
        agent.keeper.offset = 5
        call = await agent.open("c1")
        assert call.said == [pb.OpenChannelRequest(channel_id="c1", input=pb.InputState(offset=5, is_continued=True))]
        call.pieces.put_nowait(pb.InputChunk(offset=5, data=b"abc", size=job_pb2.TerminalSize(columns=90, rows=30)))
        call.pieces.put_nowait(pb.InputChunk(offset=8, is_end=True))
        await agent.until(lambda: len(call.said) == 3)
        assert [each.input.offset for each in call.said[1:]] == [8, 8]
        assert call.said[-1].input.has_ended
        assert agent.keeper.happened == ["begin 7/1 me", "resize 90 30", "type me abc", "type me "]
        call.pieces.put_nowait(None)
        await agent.until(call.is_over.is_set)


async def test_a_newer_channel_of_a_rank_begins_when_the_older_one_has_ended() -> None:
    async with Agent() as agent:
        older = await agent.open("c1")
        agent.keeper.has_room.clear()
        older.pieces.put_nowait(pb.InputChunk(data=b"stuck"))
        await agent.until(lambda: "type me stuck" in agent.keeper.happened)
        newer = await agent.open("c2", "you")
        assert older.is_over.is_set()
        assert not newer.is_over.is_set()
        assert len(older.said) == 1, "what it had under way is not answered for"


@pytest.mark.parametrize("answer", [Refusal(RefusalReason.NOT_RUNNING, "it is over"), KeeperGone("it is over")])
async def test_what_the_keeper_does_not_do_ends_the_channel_with_the_reason(answer: Refusal | Exception) -> None:
    async with Agent() as agent:
        agent.keeper.answers = [answer]
        refused = await agent.open("c1")
        assert refused.said[0].input.problem == "it is over"
        await agent.until(refused.is_over.is_set)
        call = await agent.open("c2")
        agent.keeper.answers = [answer]
        call.pieces.put_nowait(pb.InputChunk(data=b"abc"))
        await agent.until(call.is_over.is_set)
        assert call.said[-1].input.problem == "it is over"


async def test_one_channel_too_many_is_told_so_and_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels_module, "CHANNELS_MAX", 1)
    async with Agent() as agent:
        first = await agent.open("c1")
        second = await agent.open("c2")
        assert "1 people type" in second.said[0].input.problem
        assert not first.is_over.is_set()


async def test_channels_end_with_their_connection_and_none_is_dialled_without_one() -> None:
    agent = Agent()
    async with agent:
        call = await agent.open("c1")
    assert call.is_over.is_set()
    agent.channels.open(OpenChannel("c2", KEY, "me"))
    assert len(agent.calls) == 1
