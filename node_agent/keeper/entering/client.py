"""The agent's end of a command in the world of an attempt: the keeper is asked for the way in, and that is all."""

import asyncio
import contextlib
import fcntl
import os
import socket
import struct
import termios
from pathlib import Path
from typing import Self

from gpufleet.jobs.runs import ExitCode, ExitSignal, ExitStatus, InputMode, RankKey

from ...core.entering import EnteredCommand
from ...core.launch import NotRun, Refusal, RefusalReason
from ...core.outcome import Stream
from ..descriptors import Ends, open_ends
from ..frames import Unpacker, pack
from ..state_dir import socket_address
from ..values import NO_INPUT, Json, not_run_from, refusal_from

ANSWER_SECONDS_MAX = 30.0
"""How long a way in may take, and a program to begin: it may lie on a file system that is slow."""

READ_BYTES = 65_536


class Entry:
    """A command that runs, until `close`. Its ends here do not block: `outputs` are read, `input_fd` is written."""

    def __init__(self, line: "_Line", ends: Ends, *, is_terminal: bool) -> None:
        self._line = line
        self._ends = ends
        self._is_terminal = is_terminal

    @property
    def outputs(self) -> dict[Stream, int]:
        """What it writes; on a terminal all of it is standard output."""
        return self._ends.outputs

    @property
    def input_fd(self) -> int | None:
        """What it reads; None where it reads nothing any more."""
        return self._ends.input_fd

    @property
    def is_terminal(self) -> bool:
        """Whether it has a terminal."""
        return self._is_terminal

    def end_input(self) -> None:
        """Let it read the end."""
        if self._ends.input_fd is not None:
            os.close(self._ends.input_fd)
            self._ends.input_fd = None

    def resize(self, columns: int, rows: int) -> None:
        """Give its terminal another size, of which its foreground is told by the kernel."""
        _resize(self._ends, columns, rows)

    async def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        with contextlib.suppress(OSError):  # it has ended, which is told
            await self._line.send({"signal": number})

    async def exit(self) -> ExitStatus | None:
        """How it ended, once it has; None where it was ended with its attempt."""
        while (message := await self._line.next()) is not None:
            if "exit" in message:
                code = os.waitstatus_to_exitcode(message["exit"])
                return ExitSignal(signal=-code) if code < 0 else ExitCode(code=code)
        return None

    def close(self) -> None:
        """Let go of it; one that still runs is ended."""
        self._line.close()
        self._ends.close()


async def enter(
    directory: Path, key: RankKey, command: EnteredCommand, one_by_one: asyncio.Lock
) -> Entry | NotRun | Refusal:
    """Run a command in the world of an attempt of the keeper that lives in this directory.

    `one_by_one` is held until the keeper has handed the connection on: it lets few strangers wait at its door.
    """
    ends = Ends()
    line: _Line | None = None
    entered: Entry | None = None
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            async with one_by_one:
                line = await _Line.open(directory)
                await line.send({"do": "enter", "key": key.name})
                await line.until_told()
            problem = _problem(await line.next())
            if problem is not None:
                return problem
            open_ends(ends, command.input)
            if command.input is InputMode.TERMINAL:
                _resize(ends, command.columns, command.rows)
            told = {"argv": command.argv, "input": command.input or NO_INPUT, "env": dict(command.env)}
            await line.send({"run": told}, ends.theirs)
            ends.close_theirs()
            problem = _problem(await line.next())
            if problem is not None:
                return problem
        entered = Entry(line, ends, is_terminal=command.input is InputMode.TERMINAL)
        return entered
    except (OSError, TimeoutError) as error:
        return Refusal(RefusalReason.SPAWN_FAILED, f"the command could not be started: {error or 'no answer in time'}")
    finally:
        ends.close_theirs()
        if entered is None:
            ends.close()
            if line is not None:
                line.close()


class _Line:
    """A connection of one command: whole messages both ways."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._unpacker = Unpacker()
        self._messages: list[Json] = []
        self._sending = asyncio.Lock()

    @classmethod
    async def open(cls, directory: Path) -> Self:
        """Connect to the keeper. OSError."""
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        directory_fd = -1
        try:
            directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            await asyncio.get_running_loop().sock_connect(channel, socket_address(directory_fd))
        except BaseException:
            channel.close()
            raise
        finally:
            if directory_fd >= 0:
                os.close(directory_fd)
        return cls(channel)

    async def send(self, message: Json, descriptors: list[int] | None = None) -> None:
        """Send all of a message. OSError when the other side has gone."""
        data = pack(message)
        async with self._sending:
            sent = socket.send_fds(self._channel, [data], descriptors) if descriptors else 0
            if sent < len(data):
                await asyncio.get_running_loop().sock_sendall(self._channel, data[sent:])

    async def until_told(self) -> bool:
        """Wait for a message, which stays the next; False when the other side has gone."""
        while not self._messages:
            try:
                data = await asyncio.get_running_loop().sock_recv(self._channel, READ_BYTES)
            except OSError:
                return False
            if not data:
                return False
            self._messages += self._unpacker.feed(data)
        return True

    async def next(self) -> Json | None:
        """The next message, but for the keeper's that it has handed us on; None when the other side has gone."""
        while await self.until_told():
            message = self._messages.pop(0)
            if "handed" not in message:
                return message
        return None

    def close(self) -> None:
        """Hang up."""
        self._channel.close()


def _problem(answer: Json | None) -> NotRun | Refusal | None:
    """What an answer says against the command; None where it says that it goes on."""
    if answer is None:
        return Refusal(RefusalReason.NOT_RUNNING, "the job ended before the command had begun")
    if "bye" in answer:
        return Refusal(
            RefusalReason.TOO_OLD,
            "the job was started by an older version of the node's agent, which lets no commands in; "
            "jobs that start now can be entered",
        )
    if "not_run" in answer:
        return not_run_from(answer["not_run"])
    return refusal_from(answer["refused"]) if "refused" in answer else None


def _resize(ends: Ends, columns: int, rows: int) -> None:
    fd = ends.outputs.get(Stream.STDOUT)
    if fd is not None:
        with contextlib.suppress(OSError):  # a pipe, which has no size
            fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
