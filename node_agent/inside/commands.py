"""Other commands in running jobs, for who runs them from elsewhere: a command a call, which the scheduler asks for.

A command lives as long as its call: with the link to the scheduler, or with the agent, all are ended, and the jobs go
on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import grpc.aio
from gpufleet.v1 import node_agent_pb2

from gpufleet.errors import Reason
from gpufleet.jobs.run_protos import exit_to_proto
from gpufleet.jobs.runs import ExitCode, ExitSignal, ExitStatus, InputMode
from gpufleet.net.carrying import PIECE_BYTES_MAX

from ..core.commands import OpenExec
from ..core.entering import EnteredCommand
from ..core.launch import NotRun, Refusal, RefusalReason
from ..core.outcome import Stream
from ..keeper.connection import KeeperGone
from ..wire import STREAMS
from .descriptors import until_readable, write_all
from .dialled import Dialled, NotOpened
from .world import Entered, World

if TYPE_CHECKING:
    from gpufleet.v1.node_agent_pb2_grpc import NodeAgentAsyncStub

_log = logging.getLogger(__name__)

COMMANDS_MAX = 512
"""Commands in jobs of this node at once; one that is asked for beyond them is told so."""

LAST_BYTES_MAX = 1024 * 1024
"""What is still read of a command that has ended: more than its pipes hold. What it left may write on, unread."""

END_KEY = b"\x04"
"""Ctrl-D: what the end of an input is to a command that has a terminal."""

REASONS = {
    RefusalReason.NOT_RUNNING: Reason.JOB_NOT_RUNNING,
    RefusalReason.UNKNOWN_ATTEMPT: Reason.JOB_NOT_RUNNING,
    RefusalReason.TOO_MANY_COMMANDS: Reason.TOO_MANY_STREAMS,
    RefusalReason.TOO_OLD: Reason.AGENT_VERSION_UNSUPPORTED,
    RefusalReason.BAD_REQUEST: Reason.INVALID_ARGUMENT,
}
"""Whatever else hinders it is the node's trouble."""

Request = node_agent_pb2.CarryExecRequest


class Commands(Dialled[OpenExec]):
    """The commands in jobs of this node."""

    def __init__(self, world: World) -> None:
        super().__init__(COMMANDS_MAX)
        self._world = world

    async def _serve(self, stub: NodeAgentAsyncStub, command: OpenExec, *, is_one_too_many: bool) -> None:
        call: Any = stub.CarryExec()
        try:
            if is_one_too_many:
                raise NotOpened(Reason.TOO_MANY_STREAMS, f"{COMMANDS_MAX} commands run in jobs of this node")
            entered = await self._enter(command)
            await call.write(Request(channel_id=command.channel_id))
            if isinstance(entered, NotRun):
                await call.write(Request(exit=exit_to_proto(ExitCode(code=entered.code)), problem=entered.detail))
                await call.done_writing()
                await call
            else:
                with closing(entered):
                    await _carry(call, entered)
        except NotOpened as problem:
            told = Request(channel_id=command.channel_id, problem=str(problem), reason=problem.reason.name)
            with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
                await call.write(told)
                await call.done_writing()
                await call
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, ConnectionError) as problem:
            _log.debug("a command in %s was cut off: %s", command.key, problem)
        finally:
            call.cancel()

    async def _enter(self, command: OpenExec) -> Entered | NotRun:
        env = {"TERM": command.terminal_type} if command.terminal_type else {}
        wanted = EnteredCommand(
            argv=command.argv,
            input=command.input,
            env=env if command.input is InputMode.TERMINAL else {},
            columns=command.columns,
            rows=command.rows,
        )
        try:
            entered = await self._world.enter(command.key, wanted)
        except KeeperGone:
            raise NotOpened(Reason.JOB_NOT_RUNNING, f"{command.key} does not run here any more") from None
        if isinstance(entered, Refusal):
            raise NotOpened(REASONS.get(entered.reason, Reason.NODE_UNREACHABLE), entered.detail)
        return entered


async def _carry(call: Any, entered: Entered) -> None:
    """Carry until the command has ended and all is told. Raises ConnectionError where nobody hears of it any more."""
    has_ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    writing = asyncio.Lock()

    async def send(message: Request) -> None:
        async with writing:
            await call.write(message)

    outputs = [asyncio.create_task(_read(fd, stream, has_ended, send)) for stream, fd in entered.outputs.items()]
    ending = asyncio.create_task(entered.exit())
    hearing = asyncio.create_task(_hear(call, entered))
    running = {ending, hearing, *outputs}
    try:
        while not ending.done():
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        has_ended.set_result(None)
        await asyncio.gather(*outputs)
        await send(_last(ending.result()))
        await call.done_writing()
        await call.code()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(ending, hearing, *outputs, return_exceptions=True)


async def _read(
    fd: int, stream: Stream, has_ended: asyncio.Future[None], send: Callable[[Request], Awaitable[None]]
) -> None:
    """Send what the command writes, until it ends: then what is there, and no more."""
    last_bytes = 0
    while last_bytes <= LAST_BYTES_MAX:
        try:
            data = os.read(fd, PIECE_BYTES_MAX)
        except BlockingIOError:
            if has_ended.done():
                return
            await until_readable(fd, has_ended)
            continue
        except OSError:  # EIO: nobody has the terminal open any more
            return
        if not data:
            return
        last_bytes += len(data) if has_ended.done() else 0
        await send(Request(data=data, stream=STREAMS[stream]))


async def _hear(call: Any, entered: Entered) -> None:
    """Do what comes, one after the other; what a command that reads nothing any more would read is dropped."""
    async for message in call:
        if message.HasField("size"):
            entered.resize(message.size.columns, message.size.rows)
        if message.signal:
            await entered.signal(message.signal)
        data = message.data
        if message.is_end and entered.is_terminal:
            data += END_KEY
        try:
            if data and entered.input_fd is not None:
                await write_all(entered.input_fd, data)
            if message.is_end and not entered.is_terminal:
                entered.end_input()
        except OSError:
            entered.end_input()
    raise ConnectionResetError("nobody is there for the command any more")


def _last(status: ExitStatus | None) -> Request:
    if status is None:
        return Request(exit=exit_to_proto(ExitSignal(signal=signal.SIGKILL)), problem="it was ended with its job")
    return Request(exit=exit_to_proto(status))
