"""This process's own terminal: raw while keys go to a job, and always given back as it was; and standard input, read as
long as somebody has room for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import termios
import tty
from collections.abc import Callable
from typing import Any

from gpufleet.v1 import job_pb2


def has_terminal(*fds: int) -> bool:
    """Whether each of these descriptors is a terminal."""
    return all(os.isatty(fd) for fd in fds)


NO_KEY = b"\0"
"""A key of termios(3) that is switched off."""


class RawTerminal:
    """The terminal behind a descriptor. `leave` may be called at any time, any number of times."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._before: Any = None
        self.is_raw = False
        """Whether keys come as they are typed: no echo, and no Ctrl-C of our own."""

    def show_raw(self) -> None:
        """Show what comes as it is: the job's terminal has made each line end ready for ours. Keys are still ours."""
        if self._before is None:
            self._before = termios.tcgetattr(self._fd)
        modes = list(self._before)
        modes[1] &= ~termios.OPOST
        # What is typed already waits for `enter`. An end of input among it would come out of the kernel as NUL.
        modes[6] = [*modes[6]]
        modes[6][termios.VEOF] = NO_KEY
        with contextlib.suppress(termios.error):
            termios.tcsetattr(self._fd, termios.TCSADRAIN, modes)
        self.is_raw = False

    def enter(self) -> None:
        """Make it raw; keys that were typed before are kept."""
        if self._before is None:
            self._before = termios.tcgetattr(self._fd)
        tty.setraw(self._fd, termios.TCSADRAIN)
        self.is_raw = True

    def leave(self) -> None:
        """Give it back as it was."""
        if self._before is not None:
            before, self._before = self._before, None
            self.is_raw = False
            with contextlib.suppress(termios.error):  # its window was closed: there is nothing to give back
                termios.tcsetattr(self._fd, termios.TCSADRAIN, before)

    def size(self) -> job_pb2.TerminalSize | None:
        """Its size; None where it does not know."""
        try:
            columns, rows = os.get_terminal_size(self._fd)
        except OSError:
            return None
        return job_pb2.TerminalSize(columns=columns, rows=rows) if columns and rows else None


class Source:
    """A descriptor that is read in the loop; `on_bytes` is given what comes, and nothing at its end."""

    def __init__(self, fd: int, on_bytes: Callable[[bytes], None], room_bytes: Callable[[], int]) -> None:
        self._fd = fd
        self._on_bytes = on_bytes
        self._room_bytes = room_bytes
        self._is_wanted = False
        self._is_watched = False
        self._has_ended = False
        self._soon: asyncio.Handle | None = None

    def want(self, is_wanted: bool) -> None:
        """Read from now on, or no more."""
        self._is_wanted = is_wanted
        self.look()

    def look(self) -> None:
        """There may be room again, or none any more."""
        must_watch = self._is_wanted and not self._has_ended and self._room_bytes() > 0
        if must_watch == self._is_watched:
            return
        self._is_watched = must_watch
        loop = asyncio.get_running_loop()
        if not must_watch:
            loop.remove_reader(self._fd)
            if self._soon is not None:
                self._soon.cancel()
            return
        try:
            loop.add_reader(self._fd, self._read)
        except PermissionError:  # a regular file: it can always be read
            self._soon = loop.call_soon(self._read_file)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, self._room_bytes())
        except BlockingIOError:
            return
        except OSError:  # EIO: the terminal is gone
            data = b""
        if not data:
            self._has_ended = True
        self._on_bytes(data)
        self.look()

    def _read_file(self) -> None:
        self._read()
        if self._is_watched:
            self._soon = asyncio.get_running_loop().call_soon(self._read_file)
