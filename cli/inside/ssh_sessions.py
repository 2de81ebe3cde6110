"""What ssh asks for where it is answered from here: sessions are commands in the job, connections lead to its ports.

Each channel of ssh has a call of its own, ExecJob or ForwardPort, and what holds for `gpuctl exec` and `gpuctl forward`
holds for it, how many there may be as well. A channel that is not read from stops its own call, and a call that takes
nothing its own channel.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import deque
from collections.abc import Awaitable
from typing import Any, cast

import asyncssh
import grpc.aio
from asyncssh.constants import OPEN_ADMINISTRATIVELY_PROHIBITED, OPEN_CONNECT_FAILED
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError
from gpufleet.fleet.async_client import AsyncClient, is_told_to_end, understood
from gpufleet.fleet.inside.executing import command_cut_off
from gpufleet.fleet.inside.forwarding import Forwarding, pieces_of, request_of
from gpufleet.net.carrying import Piece

from .ssh_server import SFTP_PLACES

UNSENT_BYTES_MAX = 256 * 1024
"""What of a channel's bytes waits for its call, and of a call's for its channel, before no more are read."""

SIGNALS_MAX = 16
"""Signals that wait to be passed on; of more the newest are left out."""

NOT_RUN = 255
"""What ssh itself exits with where it could not do what it was asked for."""

SIGNALS = {each.name.removeprefix("SIG"): each.value for each in signal.Signals}
NAMES = {number: name for name, number in SIGNALS.items()}
"""Signals by the names that ssh has for them, and the other way round."""

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

SHELL = 'for each in "$SHELL" bash sh; do command -v "$each" > /dev/null 2>&1 && exec "$each"; done'
SFTP = (
    f'for each in {SFTP_PLACES}; do [ -x "$each" ] && exec "$each"; done; echo "gpuctl: there is no sftp-server in the '
    "job's image, or on its node, which sftp and scp need: use gpuctl cp, or rsync\" >&2; exit 127"
)

Request = scheduler_pb2.ExecJobRequest


class _Carried:
    """One channel of ssh, and what is between it and its call."""

    def __init__(self) -> None:
        self._channel: Any = None
        self._up: deque[bytes] = deque()
        self._up_bytes = 0
        self._has_ended = False
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, chan: Any) -> None:
        """The channel is open."""
        self._channel = chan
        chan.set_write_buffer_limits(high=UNSENT_BYTES_MAX)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone, and with it whoever wanted its call."""
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Bytes for the job."""
        self._up.append(data)
        self._up_bytes += len(data)
        if self._up_bytes > UNSENT_BYTES_MAX:
            self._channel.pause_reading()
        self._wake.set()

    def eof_received(self) -> bool:
        """No more bytes for the job; those of the other direction go on."""
        self._has_ended = True
        self._wake.set()
        return True

    def pause_writing(self) -> None:
        """ssh takes no more for now."""
        self._room.clear()

    def resume_writing(self) -> None:
        """It does again."""
        self._room.set()

    def _typed(self) -> bytes:
        """The next bytes for the job; none where none wait."""
        if not self._up:
            return b""
        data = self._up.popleft()
        was_full = self._up_bytes > UNSENT_BYTES_MAX
        self._up_bytes -= len(data)
        if was_full and self._up_bytes <= UNSENT_BYTES_MAX:
            self._channel.resume_reading()
        return data


class JobSession(_Carried, asyncssh.SSHServerSession[bytes]):
    """A session: a command in the job, with or without a terminal."""

    def __init__(self, client: AsyncClient, job_id: int, rank: int) -> None:
        super().__init__()
        self._client = client
        self._start = job_pb2.ExecStart(job_id=job_id, rank=rank, has_input=True)
        self._size: job_pb2.TerminalSize | None = None
        self._signals: deque[int] = deque()

    def pty_requested(self, term_type: str, term_size: Any, term_modes: Any) -> bool:
        """It wants a terminal."""
        self._start.has_terminal, self._start.terminal_type = True, term_type
        columns, rows, *_ = term_size
        if columns and rows:
            self._start.size.CopyFrom(job_pb2.TerminalSize(columns=columns, rows=rows))
        return True

    def shell_requested(self) -> bool:
        """It wants a shell."""
        return self._is_to_run(SHELL)

    def exec_requested(self, command: str) -> bool:
        """It wants a line run by a shell."""
        return self._is_to_run(command)

    def subsystem_requested(self, subsystem: str) -> bool:
        """It wants what sftp and scp speak with."""
        return subsystem == "sftp" and self._is_to_run(SFTP)

    def session_started(self) -> None:
        """It has been told that it gets what it wants."""
        self._task = asyncio.create_task(self._run())

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        """Its terminal has another size."""
        if width and height:
            self._size = job_pb2.TerminalSize(columns=width, rows=height)
            self._wake.set()

    def signal_received(self, signal: str) -> None:
        """A signal for its command."""
        number = SIGNALS.get(signal)
        if number is not None and len(self._signals) < SIGNALS_MAX:
            self._signals.append(number)
            self._wake.set()

    def _is_to_run(self, line: str) -> bool:
        self._start.argv[:] = ("/bin/sh", "-c", line)
        return True

    async def _run(self) -> None:
        call: Any = self._client.scheduler.ExecJob()
        sending: asyncio.Task[None] | None = None
        try:
            with contextlib.suppress(asyncio.InvalidStateError):  # it has ended: why, the reading says
                await call.write(Request(start=self._start))
            await _read(call)
            sending = asyncio.create_task(self._send(call))
            while not (message := await _read(call)).HasField("exit"):
                await self._write(message)
            if message.problem:
                self._say(message.problem)
            self._exit(message.exit)
        except (Exception, asyncio.CancelledError) as failure:
            if is_told_to_end():
                raise
            with contextlib.suppress(OSError):  # nobody listens any more
                self._say(str(understood(failure, self._client.translated)))
                self._channel.exit(NOT_RUN)
        finally:
            call.cancel()
            if sending is not None:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)

    async def _write(self, message: scheduler_pb2.ExecJobResponse) -> None:
        await self._room.wait()
        if message.stream == job_pb2.STREAM_STDERR:
            self._channel.write_stderr(message.data)
        else:
            self._channel.write(message.data)

    def _say(self, problem: str) -> None:
        self._channel.write_stderr(f"gpuctl: {problem}\r\n".encode())

    def _exit(self, status: job_pb2.ExitStatus) -> None:
        if status.HasField("signal") and (name := NAMES.get(status.signal)):
            self._channel.exit_with_signal(name)
        else:
            self._channel.exit(status.code)

    async def _send(self, call: Any) -> None:
        """Send what there is to send, the newest size first, then signals, then bytes."""
        has_told_end = False
        while True:
            self._wake.clear()
            if self._size is not None:
                message, self._size = Request(size=self._size), None
            elif self._signals:
                message = Request(signal=self._signals.popleft())
            elif data := self._typed():
                message = Request(data=data)
            elif self._has_ended and not has_told_end and not self._start.has_terminal:
                message, has_told_end = Request(is_end=True), True
            else:
                await self._wake.wait()
                continue
            try:
                await call.write(message)
            except asyncio.InvalidStateError:
                return  # whoever reads the call hears why it ended


async def _read(call: Any) -> scheduler_pb2.ExecJobResponse:
    message = await call.read()
    if message is grpc.aio.EOF:
        raise command_cut_off()
    return cast(scheduler_pb2.ExecJobResponse, message)


class JobPort(_Carried, asyncssh.SSHTCPSession[bytes]):
    """A connection to a port of the job, by a call that has reached it."""

    def __init__(self, call: Any) -> None:
        super().__init__()
        self._call = call

    def session_started(self) -> None:
        """It has been told that the port is reached."""
        self._task = asyncio.create_task(self._carry())

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone; that of the job goes with it."""
        self._call.cancel()
        super().connection_lost(exc)

    async def _carry(self) -> None:
        tasks = {asyncio.create_task(self._send()), asyncio.create_task(self._take())}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        except (Exception, asyncio.CancelledError):
            if is_told_to_end():
                raise
            self._channel.abort()
        else:
            self._channel.close()
        finally:
            self._call.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self) -> None:
        with contextlib.suppress(asyncio.InvalidStateError):  # it is over: what came before, and why, the reading tells
            while True:
                self._wake.clear()
                if data := self._typed():
                    await self._call.write(request_of(Piece(data)))
                elif self._has_ended:
                    await self._call.write(request_of(Piece(is_end=True)))
                    await self._call.done_writing()
                    return
                else:
                    await self._wake.wait()

    async def _take(self) -> None:
        async for piece in pieces_of(self._call):
            if piece.data:
                await self._room.wait()
                self._channel.write(piece.data)
            if piece.is_end:
                self._channel.write_eof()
                return
        raise ConnectionResetError


class JobServer(asyncssh.SSHServer):
    """One connection of ssh's, whose other end is the user's own client."""

    def __init__(self, client: AsyncClient, job_id: int, rank: int) -> None:
        self._client = client
        self._job_id = job_id
        self._rank = rank
        self._forwarding = Forwarding(client, job_id, rank, lambda problem: None)

    def session_requested(self) -> JobSession:
        """A session."""
        return JobSession(self._client, self._job_id, self._rank)

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> Awaitable[asyncssh.SSHTCPSession[bytes]]:
        """A connection to a port: one of the job's own."""
        if dest_host not in LOOPBACK:
            refused = f"only the job's own ports are reached, at localhost, and not {dest_host}"
            raise asyncssh.ChannelOpenError(OPEN_ADMINISTRATIVELY_PROHIBITED, refused)
        return self._connected(dest_port)

    async def _connected(self, port: int) -> asyncssh.SSHTCPSession[bytes]:
        try:
            return JobPort(await self._forwarding.opened(port))
        except GpufleetError as problem:
            raise asyncssh.ChannelOpenError(OPEN_CONNECT_FAILED, str(problem)) from None
