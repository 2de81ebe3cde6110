"""Connections to this machine's ports, each carried to a port of a job by a call of its own.

A connection that comes while scheduler or node are away waits for them, for OPEN_SECONDS_MAX; one that is open then is
reset, and the port here stays for the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc.aio

from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.async_client import AsyncClient, is_told_to_end, may_pass, understood
from gpufleet.net.carrying import READ_AHEAD_BYTES, Connection, Cut, Piece
from gpufleet.v1 import job_pb2, scheduler_pb2

from ..outcome import has_ended
from .ports import HERE, Listening

OPEN_SECONDS_MAX = 10.0
"""How long a connection waits for a scheduler, or a node, that is away."""

RETRY_SECONDS = 0.3
PROBE_SECONDS = 1.0
"""How often it is tried whether the job listens by now."""

CONNECTIONS_MAX = 256
"""Connections to one command's ports at once; one beyond them is reset."""

ADMIN = "admin"
"""The role of who may reach into everybody's jobs."""

Request = scheduler_pb2.ForwardPortRequest


class Forwarding:
    """The ports of one job. `say` is told, once for each why, that a connection led nowhere."""

    def __init__(self, client: AsyncClient, job_id: int, rank: int, say: Callable[[str], None]) -> None:
        self._client = client
        self._job_id = job_id
        self._rank = rank
        self._say = say
        self._told: dict[int, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def serve(self, ports: Sequence[Listening]) -> AsyncIterator[None]:
        """Take connections as long as the block lasts; its end resets those that are open."""
        async with contextlib.AsyncExitStack() as servers:
            for each in ports:
                taker = self._taker(each.port)
                server = await asyncio.start_server(taker, sock=each.listener, limit=READ_AHEAD_BYTES)
                servers.callback(server.close)
            try:
                yield
            finally:
                for task in tuple(self._tasks):
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    async def until_answers(self, port: int) -> None:
        """Return once something of the job accepts connections there. Raises what will not pass."""
        while True:
            call = self._client.scheduler.ForwardPort()
            try:
                await self._open(call, port)
            except (grpc.RpcError, asyncio.InvalidStateError) as problem:
                error = understood(problem, self._client.translated)
                if not isinstance(error, GpufleetError):
                    raise error from None
                if not (may_pass(error) or error.reason.name in ("PORT_NOT_OPEN", "JOB_NOT_RUNNING")):
                    raise error from None
            else:
                return
            finally:
                call.cancel()
            await asyncio.sleep(PROBE_SECONDS)

    def _taker(self, port: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = Connection(reader, writer)
            if len(self._tasks) >= CONNECTIONS_MAX:
                self._tell(port, f"{CONNECTIONS_MAX} connections are open already")
                connection.close()
                return
            task = asyncio.create_task(self._carry(connection, port))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return take

    async def _carry(self, connection: Connection, port: int) -> None:
        call: Any = None
        with contextlib.closing(connection):
            try:
                call = await self.opened(port)
                self._told.pop(port, None)
                await connection.carry(pieces_of(call), lambda piece: call.write(request_of(piece)))
                await call.done_writing()
                await call.code()
            except (Cut, OSError):
                pass  # the reset that follows says so
            except (Exception, asyncio.CancelledError) as failure:
                if is_told_to_end():
                    raise
                self._tell(port, str(understood(failure, self._client.translated)))
            finally:
                if call is not None:
                    call.cancel()

    async def opened(self, port: int) -> Any:
        """A call that has reached the port; it waits a while for scheduler and node. Raises GpufleetError."""
        until = time.monotonic() + OPEN_SECONDS_MAX
        while True:
            call = self._client.scheduler.ForwardPort()
            try:
                await self._open(call, port)
            except (Exception, asyncio.CancelledError) as failure:
                call.cancel()
                if is_told_to_end():
                    raise
                problem = understood(failure, self._client.translated)
                if not may_pass(problem) or time.monotonic() >= until:
                    raise problem from None
            else:
                return call
            await asyncio.sleep(RETRY_SECONDS)

    async def _open(self, call: Any, port: int) -> None:
        target = scheduler_pb2.ForwardedPort(job_id=self._job_id, port=port, rank=self._rank)
        with contextlib.suppress(asyncio.InvalidStateError):  # it has ended: why, the reading says
            await call.write(Request(target=target))
        if await call.read() is grpc.aio.EOF:
            raise asyncio.InvalidStateError("the call ended before it had begun")

    def _tell(self, port: int, why: str) -> None:
        if self._told.get(port) != why:
            self._told[port] = why
            self._say(f"port {port}: {why}")


async def check_may_forward(client: AsyncClient, job: job_pb2.Job) -> None:
    """Refuse at once what each connection would be refused for. Errors: JOB_FINISHED, NOT_YOUR_JOB."""
    if has_ended(job):
        raise GpufleetError(
            Reason.JOB_FINISHED, f"job {job.id} has ended", next_step=f"See how it did with: gpuctl job {job.id}"
        )
    caller = await client.call(client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest())
    if job.user != caller.user and caller.role != ADMIN:
        whose = f" belongs to {job.user}" if job.user else " is somebody else's"
        raise GpufleetError(
            Reason.NOT_YOUR_JOB,
            f"job {job.id}{whose}, and {caller.user} may not reach its ports",
            next_step="Its owner and admins may. Ask one of them, or forward a port of a job of your own.",
        )


def leads_to(each: Listening, job_id: int) -> str:
    """What is said of a port once it is there."""
    return f"{HERE}:{each.local} leads to port {each.port} of job {job_id}"


async def pieces_of(call: Any) -> AsyncIterator[Piece]:
    """What comes down by such a call."""
    while (message := await call.read()) is not grpc.aio.EOF:
        yield Piece(message.data, message.is_end)


def request_of(piece: Piece) -> Request:
    """What goes up by it."""
    return Request(data=piece.data, is_end=piece.is_end)
