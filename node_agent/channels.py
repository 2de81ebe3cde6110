"""What people type to jobs of this node: a channel is dialled when the scheduler asks for it, and fed to the keeper.

A channel lives no longer than the connection that it was asked for on. It keeps nothing: the keeper knows how much was
taken and who typed last, so the next channel goes on where this one broke off.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol

import grpc.aio
from gpufleet.v1 import node_agent_pb2

from gpufleet.jobs.runs import RankKey

from .core.commands import OpenChannel
from .core.launch import Refusal
from .core.typed import InputPiece, Typed
from .keeper.connection import KeeperGone, KeeperSilent

if TYPE_CHECKING:
    from gpufleet.v1.node_agent_pb2_grpc import NodeAgentAsyncStub

_log = logging.getLogger(__name__)

CHANNELS_MAX = 256
"""Channels at once; one that is asked for beyond them is told so."""

END_SECONDS_MAX = 5.0
"""How long an older channel of a rank may take to end before a newer one goes on without it."""

Request = node_agent_pb2.OpenChannelRequest
State = node_agent_pb2.InputState


class Inputs(Protocol):
    """What takes in what is typed; the keepers."""

    async def begin_input(self, key: RankKey, writer: str) -> tuple[Typed, bool] | Refusal:
        """Let a session type."""
        ...

    async def type(self, key: RankKey, writer: str, piece: InputPiece) -> Typed | Refusal:
        """Take a piece; waits for room."""
        ...

    async def resize(self, key: RankKey, columns: int, rows: int) -> Refusal | None:
        """Change a terminal's size."""
        ...


class Channels:
    """The channels of one connection after another; `hold` as long as there is one."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self._stub: NodeAgentAsyncStub | None = None
        self._open: dict[RankKey, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def hold(self, stub: NodeAgentAsyncStub) -> None:
        """Dial on this connection until cancelled."""
        self._stub = stub
        try:
            await asyncio.Event().wait()
        finally:
            self._stub = None
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def open(self, command: OpenChannel) -> None:
        """Begin to serve a channel; an older one of the same rank ends first."""
        if self._stub is None:
            return
        older = self._open.get(command.key)
        is_one_too_many = len(self._tasks) >= CHANNELS_MAX
        task = asyncio.create_task(self._serve(self._stub, command, older, is_one_too_many=is_one_too_many))
        if not is_one_too_many:
            self._open[command.key] = task
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(command.key, done))

    def _ended(self, key: RankKey, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._open.get(key) is task:
            del self._open[key]
        if not task.cancelled() and (problem := task.exception()) is not None:
            _log.error("a channel to attempt %s failed", key, exc_info=problem)

    async def _serve(
        self,
        stub: NodeAgentAsyncStub,
        command: OpenChannel,
        older: asyncio.Task[None] | None,
        *,
        is_one_too_many: bool,
    ) -> None:
        call: Any = stub.OpenChannel()
        try:
            if is_one_too_many:
                state = State(problem=f"{CHANNELS_MAX} people type to jobs of this node already")
            else:
                if older is not None:
                    older.cancel()
                    await asyncio.wait({older}, timeout=END_SECONDS_MAX)
                state = await self._begin(command)
            await call.write(Request(channel_id=command.channel_id, input=state))
            if not state.problem:
                await self._carry(call, command)
            await call.done_writing()
            await call
        except (grpc.aio.AioRpcError, ConnectionError, asyncio.InvalidStateError) as problem:
            _log.debug("a channel to attempt %s ended: %s", command.key, problem)
        finally:
            call.cancel()

    async def _begin(self, command: OpenChannel) -> State:
        try:
            begun = await self._inputs.begin_input(command.key, command.writer)
        except (KeeperGone, KeeperSilent) as problem:
            return State(problem=str(problem))
        if isinstance(begun, Refusal):
            return State(problem=begun.detail)
        typed, is_continued = begun
        return State(offset=typed.offset, has_ended=typed.has_ended, is_continued=is_continued)

    async def _carry(self, call: Any, command: OpenChannel) -> None:
        """Pass on piece by piece; the scheduler is not read from while the process does not read."""
        async for message in call:
            chunk = message.input
            try:
                if chunk.HasField("size"):
                    await self._inputs.resize(command.key, chunk.size.columns, chunk.size.rows)
                if not chunk.data and not chunk.is_end:
                    continue
                piece = InputPiece(chunk.offset, chunk.data, chunk.is_end)
                typed = await self._inputs.type(command.key, command.writer, piece)
            except (KeeperGone, KeeperSilent) as problem:
                state = State(problem=str(problem))
            else:
                if isinstance(typed, Refusal):
                    state = State(problem=typed.detail)
                else:
                    state = State(offset=typed.offset, has_ended=typed.has_ended)
            await call.write(Request(input=state))
            if state.problem:
                return
