"""Ports of running jobs, for who dials them from elsewhere: a connection a channel, which the scheduler asks for.

Only what a process of the very attempt listens on is connected to, and it is looked again once the connection is
there: a port may change hands between the two. Nothing is kept: with the connection to the scheduler all channels end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import grpc.aio
from gpufleet.v1 import node_agent_pb2

from gpufleet.errors import Reason
from gpufleet.jobs.runs import RankKey
from gpufleet.net.carrying import READ_AHEAD_BYTES, Connection, Cut, Piece

from ..core.commands import OpenPort
from .dialled import Dialled, NotOpened
from .listening import NotListening, doors_of, is_still

if TYPE_CHECKING:
    from gpufleet.v1.node_agent_pb2_grpc import NodeAgentAsyncStub

_log = logging.getLogger(__name__)

CONNECTIONS_MAX = 1_024
"""Connections to jobs of this node at once; one that is asked for beyond them is told so."""

CONNECT_SECONDS_MAX = 5.0
"""A process that accepts nothing for so long is told to be busy."""

Request = node_agent_pb2.CarryPortRequest


class Forwarding(Dialled[OpenPort]):
    """The connections of one link to the scheduler after another; `hold` as long as there is one.

    `leader_of` answers the leader's process id of a rank that runs here.
    """

    def __init__(self, leader_of: Callable[[RankKey], int | None]) -> None:
        super().__init__(CONNECTIONS_MAX)
        self._leader_of = leader_of

    async def _serve(self, stub: NodeAgentAsyncStub, command: OpenPort, *, is_one_too_many: bool) -> None:
        call: Any = stub.CarryPort()
        try:
            if is_one_too_many:
                raise NotOpened(
                    Reason.TOO_MANY_STREAMS, f"{CONNECTIONS_MAX:,} connections to jobs of this node are open"
                )
            with closing(await self._connect(command)) as connection:
                await call.write(Request(channel_id=command.channel_id))
                await connection.carry(_pieces(call), lambda piece: call.write(_request(piece)))
                await call.done_writing()
                await call.code()
        except NotOpened as closed:
            problem = Request(channel_id=command.channel_id, problem=str(closed), reason=closed.reason.name)
            with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
                await call.write(problem)
                await call.done_writing()
                await call
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, OSError, Cut) as problem:
            _log.debug("a connection to port %d of %s was cut: %s", command.port, command.key, problem)
        finally:
            call.cancel()

    async def _connect(self, command: OpenPort) -> Connection:
        leader = self._leader_of(command.key)
        if leader is None:
            raise NotOpened(Reason.JOB_NOT_RUNNING, f"{command.key} does not run here any more")
        try:
            doors = await asyncio.to_thread(doors_of, command.port, leader)
        except NotListening as problem:
            raise NotOpened(Reason.PORT_NOT_OPEN, str(problem)) from None
        why = ""
        for door in doors:
            try:
                async with asyncio.timeout(CONNECT_SECONDS_MAX):
                    reader, writer = await asyncio.open_connection(door.address, command.port, limit=READ_AHEAD_BYTES)
            except TimeoutError:
                why = f"it accepted no connection within {CONNECT_SECONDS_MAX:g} s"
                continue
            except OSError as problem:
                why = problem.strerror or str(problem)
                continue
            connection = Connection(reader, writer)
            if await asyncio.to_thread(is_still, door, command.port):
                return connection
            connection.close()
            why = "another process took its place"
        raise NotOpened(Reason.PORT_NOT_OPEN, f"port {command.port} of the job cannot be connected to: {why}")


async def _pieces(call: Any) -> AsyncIterator[Piece]:
    async for message in call:
        yield Piece(message.data, message.is_end)


def _request(piece: Piece) -> Request:
    return Request(data=piece.data, is_end=piece.is_end)
