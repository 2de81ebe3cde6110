"""A command in a job's world, from here: what is typed goes up, what it writes comes down, and its exit is ours."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import grpc.aio
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.fleet.async_client import AsyncClient, connected_async, is_told_to_end, understood
from gpufleet.fleet.exit_codes import SIGNALLED
from gpufleet.fleet.inside.executing import code_of, command_cut_off
from gpufleet.fleet.settings import Settings

from ..attaching.escape import Escape, EscapeFilter, Modes
from ..attaching.keyboard import STDIN, STDOUT
from ..attaching.terminal import RawTerminal, Source, has_terminal
from ..quitting import Left
from ..render.terminal_text import TerminalText
from ..screen import say

WINDOW_BYTES_MAX = 256 * 1024
"""What is read here and not sent yet; behind it whoever types waits."""

STDERR = 2
FDS = {job_pb2.STREAM_STDERR: STDERR}
"""Where what comes is written, if not to standard output."""

WRITE_BYTES = select.PIPE_BUF
"""A pipe that can be written takes so much without waiting."""

PASSED_ON = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""Without a terminal the command gets these from us, and the second of them is ours."""

Request = scheduler_pb2.ExecJobRequest
Response = scheduler_pb2.ExecJobResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be run, and what it has. `first` are bytes for its standard input before all others."""

    argv: Sequence[str]
    rank: int = 0
    has_terminal: bool = False
    has_input: bool = False
    first: bytes = b""


async def run_in_job(settings: Settings, job_id: int, wanted: Wanted) -> int:
    """Run it, and answer what it exited with: of a signal 128 and its number, as a shell does."""
    async with connected_async(settings) as client:
        execution = Execution(client, job_id, wanted)
        try:
            return await execution.run()
        except Left as left:
            return left.code


class Execution:
    """One command, from here. What it writes goes to `take`, by default to our own descriptors."""

    def __init__(
        self,
        client: AsyncClient,
        job_id: int,
        wanted: Wanted,
        take: Callable[[int, bytes], Awaitable[None]] | None = None,
    ) -> None:
        self._take = take or write_out
        self._client = client
        self._job_id = job_id
        self._wanted = wanted
        self._call: Any = None
        self._terminal = RawTerminal(STDIN)
        self._is_raw = wanted.has_terminal and has_terminal(STDIN, STDOUT)
        self._source = Source(STDIN, self._on_bytes, lambda: WINDOW_BYTES_MAX - len(self._typed))
        self._escape = EscapeFilter()
        self._modes = Modes()
        self._texts = {fd: TerminalText() for fd in (STDOUT, STDERR) if os.isatty(fd)}
        self._typed = bytearray(wanted.first)
        self._signals: list[int] = []
        self._told: set[int] = set()
        self._has_new_size = self._ends = self._is_sending = False
        self._wake = asyncio.Event()
        self._left: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self) -> int:
        """Until it has ended. Raises Left, GpufleetError."""
        self._call = self._client.scheduler.ExecJob()
        tasks: list[asyncio.Future[Any]] = [self._left]
        try:
            with self._listening():
                tasks.append(asyncio.create_task(self._hear()))
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if not tasks[1].done():
                    raise Left(self._left.result())
                code: int = tasks[1].result()
                return code
        except (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError) as failure:
            raise understood(failure, self._client.translated) from None
        finally:
            self._call.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _hear(self) -> int:
        wanted = self._wanted
        start = job_pb2.ExecStart(
            job_id=self._job_id,
            rank=wanted.rank,
            argv=wanted.argv,
            has_terminal=wanted.has_terminal,
            has_input=wanted.has_input,
            size=self._terminal.size() if self._is_raw else None,
            terminal_type=os.environ.get("TERM", "") if self._is_raw else "",
        )
        with contextlib.suppress(asyncio.InvalidStateError):  # it has ended: why, the reading says
            await self._call.write(Request(start=start))
        await self._read()
        if self._is_raw:
            self._terminal.enter()
        if wanted.has_input:
            self._source.want(True)
        sending = asyncio.create_task(self._send())
        try:
            while True:
                message = await self._read()
                if message.data:
                    await self._show(FDS.get(message.stream, STDOUT), message.data)
                if message.HasField("exit"):
                    if message.problem:
                        self._rest()
                        say(message.problem)
                    return code_of(message.exit)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _show(self, fd: int, data: bytes) -> None:
        if self._is_raw:
            self._modes.feed(data)
        elif fd in self._texts:
            data = self._texts[fd].passed(data)
        await self._take(fd, data)

    async def _read(self) -> Response:
        try:
            message = await self._call.read()
        except asyncio.CancelledError:
            if is_told_to_end():
                raise
            message = grpc.aio.EOF
        if message is grpc.aio.EOF:
            raise command_cut_off()
        return cast(Response, message)

    async def _send(self) -> None:
        """Send what there is to send, the newest size first, then signals, then bytes."""
        while True:
            self._wake.clear()
            message = self._next()
            if message is None:
                await self._wake.wait()
                continue
            self._is_sending = True
            try:
                await self._call.write(message)
            except asyncio.InvalidStateError:
                return  # whoever reads the call hears why it ended
            self._is_sending = False
            self._source.look()

    def _next(self) -> Request | None:
        if self._has_new_size:
            self._has_new_size = False
            return Request(size=self._terminal.size())
        if self._signals:
            return Request(signal=self._signals.pop(0))
        if self._typed:
            data = bytes(self._typed)
            self._typed.clear()
            return Request(data=data)
        if self._ends:
            self._ends = False
            return Request(is_end=True)
        return None

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Take signals and keys; at the end the terminal is as it was."""
        loop = asyncio.get_running_loop()
        handlers: dict[signal.Signals, Callable[[], None]] = {
            number: partial(self._on_signal, number) for number in PASSED_ON
        }
        handlers[signal.SIGHUP] = partial(self._leave, SIGNALLED + signal.SIGHUP)
        if self._is_raw:
            handlers[signal.SIGWINCH] = self._on_resize
            handlers[signal.SIGCONT] = self._on_continue
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)
            self._source.want(False)
            self._rest()

    def _rest(self) -> None:
        """Give the terminal back."""
        if self._is_raw:
            with contextlib.suppress(OSError):
                os.write(STDOUT, self._modes.undo())
            self._terminal.leave()

    def _on_bytes(self, data: bytes) -> None:
        if self._is_raw:
            if not data:
                self._leave(SIGNALLED + signal.SIGHUP)  # the terminal is gone, and so is whoever typed
            passed, asked = self._escape.feed(data)
            self._typed += passed
            if asked is Escape.DETACH:
                self._leave(SIGNALLED + signal.SIGHUP)
        elif data:
            self._typed += data
        else:
            self._ends = True
        self._wake.set()

    def _on_signal(self, number: int) -> None:
        """The command's the first time, if it can be told: behind an input that is not taken it would never hear it."""
        if self._is_raw or self._is_sending or number in self._told:
            self._leave(SIGNALLED + number)
            return
        self._told.add(number)
        self._signals.append(number)
        self._wake.set()

    def _on_resize(self) -> None:
        self._has_new_size = self._terminal.size() is not None
        self._wake.set()

    def _on_continue(self) -> None:
        """The shell has had the terminal for itself."""
        if self._terminal.is_raw:
            self._terminal.enter()
        self._on_resize()

    def _leave(self, code: int) -> None:
        if not self._left.done():
            self._left.set_result(code)


async def write_out(fd: int, data: bytes) -> None:
    """Write all of it; waits, without holding up anything else, while nobody takes it. Raises BrokenPipeError."""
    loop = asyncio.get_running_loop()
    ready = select.poll()
    ready.register(fd, select.POLLOUT)
    rest = memoryview(data)
    while rest:
        if ready.poll(0):
            with contextlib.suppress(BlockingIOError):
                rest = rest[os.write(fd, rest[:WRITE_BYTES]) :]
            continue
        told: asyncio.Future[None] = loop.create_future()
        loop.add_writer(fd, told.set_result, None)
        try:
            await told
        finally:
            loop.remove_writer(fd)
