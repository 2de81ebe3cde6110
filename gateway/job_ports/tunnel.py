"""A connection to a port of a job, by a call of the scheduler: what speaks HTTP here meets it at a pair of sockets.

    Connection of proxy/ ══ a pair of sockets ══ carrying ═ForwardPort═▶ scheduler ═▶ agent ─▶ the job's process

What waits on the way is what the pair holds and a piece in each direction: who is not read from stops the other.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, closing, suppress
from typing import Any

import grpc.aio
from gpufleet.v1 import scheduler_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.carrying import READ_AHEAD_BYTES, Cut, Piece
from gpufleet.net.carrying import Connection as Carried
from gpufleet.net.status import from_rpc_error

from ..dashboard.calls import Scheduler
from ..proxy.upstream import Connection, P
from .names import JobPort

OPEN_S_MAX = 30.0
"""How long the scheduler may take to reach the port: it waits itself for a job that is being started."""

BROKE = "its connection through the scheduler broke off"

Request = scheduler_pb2.ForwardPortRequest


class Tunnel:
    """The way of one request, or of one WebSocket, to a port. `close` ends it, whatever is under way."""

    first_line = b""

    def __init__(self, scheduler: Scheduler, port: JobPort, token: str) -> None:
        self._scheduler = scheduler
        self._port = port
        self._token = token
        self._carrying: asyncio.Task[None] | None = None

    async def connection(self, *, is_new: bool = False) -> Connection:
        """One for a request. Raises what the scheduler refuses."""
        return await self.dialled(lambda: Connection(b""))

    def keep(self, connection: Connection) -> None:
        """Its exchange is over. It is not kept: another request may be another person's."""
        connection.abort()

    async def dialled(self, made: Callable[[], P]) -> P:
        """The connection, for `made`'s protocol. Raises what the scheduler refuses, and DEADLINE."""
        assert self._carrying is None, "one way is one connection"
        call: Any = self._scheduler.method("ForwardPort")(metadata=self._scheduler.metadata(self._token))
        with ExitStack() as undone:
            undone.callback(call.cancel)
            await self._reach(call)
            here, there = socket.socketpair()
            undone.callback(here.close)
            undone.callback(there.close)
            reader, writer = await asyncio.open_unix_connection(sock=there, limit=READ_AHEAD_BYTES)
            undone.callback(writer.transport.abort)
            _, protocol = await asyncio.get_running_loop().create_unix_connection(made, sock=here)
            undone.pop_all()
        self._carrying = asyncio.create_task(_carry(call, Carried(reader, writer), protocol), name="job port")
        return protocol

    async def close(self) -> None:
        """Be gone, at the job's process, too."""
        if self._carrying is not None:
            self._carrying.cancel()
            await asyncio.gather(self._carrying, return_exceptions=True)

    async def _reach(self, call: Any) -> None:
        target = scheduler_pb2.ForwardedPort(job_id=self._port.job, port=self._port.port, rank=self._port.rank)
        try:
            async with asyncio.timeout(OPEN_S_MAX):
                with suppress(asyncio.InvalidStateError):  # it has ended: why, the reading says
                    await call.write(Request(target=target))
                if await _read(call) is not grpc.aio.EOF:
                    return
        except TimeoutError:
            raise GpufleetError(Reason.DEADLINE, f"the port was not reached within {OPEN_S_MAX:g} s") from None
        except grpc.aio.AioRpcError as problem:
            raise from_rpc_error(problem) from None
        raise GpufleetError(Reason.SCHEDULER_UNREACHABLE, "the connection ended before it had begun")


async def _carry(call: Any, carried: Carried, protocol: asyncio.BaseProtocol) -> None:
    """Until both directions have ended. What was cut is no end: the answer that is under way is told to be broken."""
    with closing(carried):
        try:
            await carried.carry(_pieces(call), lambda piece: call.write(_said(piece)))
            await call.done_writing()
        except (Cut, OSError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
            if isinstance(protocol, Connection):
                protocol.fail(BROKE)
        finally:
            call.cancel()


async def _pieces(call: Any) -> AsyncIterator[Piece]:
    while (message := await _read(call)) is not grpc.aio.EOF:
        yield Piece(message.data, message.is_end)


async def _read(call: Any) -> Any:
    """The next message. Who is cut off leaves the reading to end with its call: one of grpc.aio that is cancelled while
    it waits loses memory."""
    reading = asyncio.ensure_future(call.read())
    await asyncio.wait([reading])
    return reading.result()


def _said(piece: Piece) -> Request:
    return Request(data=piece.data, is_end=piece.is_end)
