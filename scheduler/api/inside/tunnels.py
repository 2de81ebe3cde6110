"""Two streams that meet: a person's and the one that an agent dialled for it. What comes by one leaves by the other.

A message is read from one side only when the one before has been taken by the other, so that nothing gathers here.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
from gpufleet.v1 import job_pb2, node_agent_pb2

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.jobs.run_protos import key_to_proto

from ...links import Links
from ...state.ids import NodeName, RankKey, UserName
from ..long_streams import first_of, let_end

OPEN_SECONDS_MAX = 15.0
"""How long an agent may take to connect, and to dial."""

DIAL_SECONDS_MAX = 10.0
"""How long an agent that has dialled may take to say for what."""


@dataclass(slots=True, eq=False)
class AgentSide:
    """The stream that an agent dialled. `first` is what it said first, `requests` the rest; `context` takes answers.

    `cut` has the agent break it off, whatever is under way.
    """

    first: Any
    requests: AsyncIterator[Any]
    context: Any
    cut: Callable[[], None]


@dataclass(slots=True, eq=False)
class Tunnel:
    """One that was asked of an agent. `side` comes when it dials, `has_ended` when nothing passes any more."""

    cut: Callable[[], None]
    side: asyncio.Future[AgentSide] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)


class Tunnels:
    """The tunnels that were asked for, until whoever asked lets go of them."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._tunnels: dict[str, Tunnel] = {}

    @asynccontextmanager
    async def to_port(self, node: NodeName, key: RankKey, port: int) -> AsyncIterator[AgentSide]:
        """A connection to a port of a rank. Errors: NODE_UNREACHABLE, and what the agent says."""
        command = node_agent_pb2.OpenPortCommand(key=key_to_proto(key), port=port)
        async with self._opened(node, lambda channel_id: _open_port(command, channel_id)) as side:
            yield side

    @asynccontextmanager
    async def to_command(self, node: NodeName, key: RankKey, start: job_pb2.ExecStart) -> AsyncIterator[AgentSide]:
        """A command in the world of a rank. Errors: NODE_UNREACHABLE, and what the agent says."""
        command = node_agent_pb2.OpenExecCommand(key=key_to_proto(key), start=start)
        async with self._opened(node, lambda channel_id: _open_exec(command, channel_id)) as side:
            yield side

    @asynccontextmanager
    async def to_files(
        self, node: NodeName, key: RankKey, user: UserName, only: tuple[str, ...] | None = None
    ) -> AsyncIterator[AgentSide]:
        """The folder of a rank, by the rights of its user; with `only` no more of it than these lines choose.

        Errors: NODE_UNREACHABLE, what the agent says, and NOT_BUILT where it cannot keep to `only`.
        """

        def command(channel_id: str) -> node_agent_pb2.HeartbeatResponse:
            opens = node_agent_pb2.OpenFilesCommand(channel_id=channel_id, key=key_to_proto(key), user=user)
            if only is not None:
                opens.only_results = True
                opens.results.extend(only)
            return node_agent_pb2.HeartbeatResponse(open_files=opens)

        async with self._opened(node, command) as side:
            if only is not None and not side.first.only_results:  # an agent of before would show all of it
                why = f"the agent of node {node} cannot show the chosen files of a folder alone"
                raise GpufleetError(Reason.NOT_BUILT, why, next_step="an admin updates the agent")
            yield side

    @asynccontextmanager
    async def _opened(
        self, node: NodeName, command: Callable[[str], node_agent_pb2.HeartbeatResponse]
    ) -> AsyncIterator[AgentSide]:
        connection = self._links.of(node)
        if connection is None:
            raise _unreachable(f"the agent of node {node} is not connected")
        channel_id = secrets.token_urlsafe(24)

        def cut() -> None:
            close = node_agent_pb2.CloseChannelCommand(channel_id=channel_id)
            connection.put(node_agent_pb2.HeartbeatResponse(close_channel=close))

        tunnel = self._tunnels[channel_id] = Tunnel(cut)
        try:
            connection.put(command(channel_id))
            try:
                async with asyncio.timeout(OPEN_SECONDS_MAX):
                    side = await tunnel.side
            except TimeoutError:
                said = f"the agent of node {node} was asked for a connection and opened none"
                raise _unreachable(said, "see whether it is of an older version: gpuctl nodes -o wide") from None
            if side.first.problem:
                raise GpufleetError(_reason(side.first.reason), side.first.problem)
            yield side
        except BaseException:
            cut()
            raise
        finally:
            del self._tunnels[channel_id]
            tunnel.has_ended.set()

    async def serve(self, requests: AsyncIterator[Any], context: Any) -> None:
        """What an agent dials: lend its stream until the tunnel ends. Errors: INVALID_ARGUMENT for an unknown id."""
        first = await first_of(requests, DIAL_SECONDS_MAX)
        tunnel = self._tunnels.get(first.channel_id) if first is not None else None
        if first is None or tunnel is None or tunnel.side.done():
            raise invalid("channel_id", "is not one that this scheduler asked for", next_step="wait for a command")
        tunnel.side.set_result(AgentSide(first, requests, context, tunnel.cut))
        await tunnel.has_ended.wait()


class TunnelCut(Exception):
    """One side ended before it had said that no more comes."""


class Direction:
    """Passes messages one way. `read` answers the next one; `write` hands it on, and says whether more is to come."""

    def __init__(self, read: Callable[[], Awaitable[Any]], write: Callable[[Any], Awaitable[bool]]) -> None:
        self._read = read
        self._write = write
        self.is_sending = False

    async def pass_all(self) -> None:
        """Until the last one. Raises TunnelCut where there is none."""
        is_open = True
        while is_open:
            message = await self._read()
            if message is None:
                raise TunnelCut
            self.is_sending = True
            is_open = await self._write(message)
            self.is_sending = False


async def relay(side: AgentSide, up: Direction, down: Direction, *, ends_with_down: bool = False) -> None:
    """Pass messages until both directions have ended, or one side has gone: then the other one is cut off, too.

    `ends_with_down`: the end of what comes down is the end of all.
    """
    directions = (up, down)
    tasks = [asyncio.create_task(each.pass_all(), name="tunnel") for each in directions]
    running = set(tasks)
    try:
        while running:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if ends_with_down and tasks[1].done():
                break
        if running:
            raise TunnelCut
    except BaseException as problem:
        # What is under way to a process that takes nothing would keep the agent's stream from ending by itself.
        side.cut()
        for direction, task in zip(directions, tasks, strict=True):
            if not direction.is_sending:  # a write that is cut off half-way would keep its call from ever ending
                task.cancel()
        await let_end(*tasks)
        if not isinstance(problem, TunnelCut | grpc.aio.BaseError | asyncio.InvalidStateError):
            raise


def _open_port(command: node_agent_pb2.OpenPortCommand, channel_id: str) -> node_agent_pb2.HeartbeatResponse:
    command.channel_id = channel_id
    return node_agent_pb2.HeartbeatResponse(open_port=command)


def _open_exec(command: node_agent_pb2.OpenExecCommand, channel_id: str) -> node_agent_pb2.HeartbeatResponse:
    command.channel_id = channel_id
    return node_agent_pb2.HeartbeatResponse(open_exec=command)


def _unreachable(message: str, next_step: str = "") -> GpufleetError:
    return GpufleetError(Reason.NODE_UNREACHABLE, message, next_step=next_step)


def _reason(name: str) -> Reason:
    return Reason[name] if name in Reason.__members__ else Reason.NODE_UNREACHABLE
