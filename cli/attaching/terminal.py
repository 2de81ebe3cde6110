"""This process's own terminal: raw while keys go to a job, and always given back as it was."""

from __future__ import annotations

import contextlib
import os
import termios
import tty
from typing import Any

from gpufleet.v1 import job_pb2


def has_terminal(*fds: int) -> bool:
    """Whether each of these descriptors is a terminal."""
    return all(os.isatty(fd) for fd in fds)


class Terminal:
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
