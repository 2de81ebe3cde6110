"""The three descriptors of a command, and the keeper's ends of them: pipes, or one terminal for all three."""

import contextlib
import fcntl
import os
import struct
import termios
from dataclasses import dataclass, field

from gpufleet.jobs.runs import InputMode

from ..core.outcome import Stream
from ..core.typed import COLUMNS, ROWS

PIPE_BYTES = 256 * 1024

FileActions = tuple[tuple[object, ...], ...]
"""What posix_spawn does in the child before the command begins."""

_F_SETPIPE_SZ = 1031
_IUTF8 = 0o40000
"""Erasing a character takes all bytes of it; the module termios lacks the name."""


@dataclass(slots=True)
class Ends:
    """The ends that the keeper holds, and those that are the command's and closed here once it runs."""

    outputs: dict[Stream, int] = field(default_factory=dict)
    input_fd: int | None = None
    theirs: list[int] = field(default_factory=list)

    def close_theirs(self) -> None:
        """Let go of what the command has."""
        for fd in self.theirs:
            os.close(fd)
        self.theirs.clear()

    def close(self) -> None:
        """There is no command: let go of the keeper's own."""
        for fd in (*self.outputs.values(), *(() if self.input_fd is None else (self.input_fd,))):
            os.close(fd)


def open_ends(ends: Ends, mode: InputMode | None) -> None:
    """Open what a command is to have, into `ends`. OSError when there is none left."""
    if mode is InputMode.TERMINAL:
        _open_terminal(ends)
    else:
        _open_pipes(ends, mode)


def actions_of(theirs: list[int], mode: InputMode | None) -> FileActions:
    """Say how a command comes to what was opened for it.

    A command on a terminal, which leads a session of its own, opens it first: so it becomes the session's.
    """
    if mode is InputMode.TERMINAL:
        first: tuple[object, ...] = (os.POSIX_SPAWN_OPEN, 0, os.ttyname(theirs[0]), os.O_RDWR, 0)
        return (first, (os.POSIX_SPAWN_DUP2, 0, 1), (os.POSIX_SPAWN_DUP2, 0, 2))
    first = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    if mode is InputMode.PIPE:
        first = (os.POSIX_SPAWN_DUP2, theirs[2], 0)
    return (first, (os.POSIX_SPAWN_DUP2, theirs[0], 1), (os.POSIX_SPAWN_DUP2, theirs[1], 2))


def _open_pipes(ends: Ends, mode: InputMode | None) -> None:
    """Open a pipe for each output, and one for the input where it is asked for."""
    for stream in Stream:
        ends.outputs[stream], write_fd = os.pipe2(os.O_CLOEXEC)
        ends.theirs.append(write_fd)
        os.set_blocking(ends.outputs[stream], False)
        with contextlib.suppress(OSError):  # the user's share of pipe memory may be used up; a small pipe works too
            fcntl.fcntl(write_fd, _F_SETPIPE_SZ, PIPE_BYTES)
    if mode is InputMode.PIPE:
        read_fd, ends.input_fd = os.pipe2(os.O_CLOEXEC)
        ends.theirs.append(read_fd)
        os.set_blocking(ends.input_fd, False)


def _open_terminal(ends: Ends) -> None:
    master_fd, slave_fd = os.openpty()
    ends.outputs[Stream.STDOUT] = master_fd
    ends.theirs.append(slave_fd)
    os.set_blocking(master_fd, False)
    # A second descriptor of the same end: one is watched for what comes, the other for room.
    ends.input_fd = os.dup(master_fd)
    fcntl.ioctl(slave_fd, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    modes = termios.tcgetattr(slave_fd)
    modes[0] |= _IUTF8
    termios.tcsetattr(slave_fd, termios.TCSANOW, modes)


def close_all_but(keep: set[int]) -> None:
    """Close every descriptor of this process that is none of these."""
    low = 0
    for fd in sorted(keep):
        if low < fd:  # an empty range is taken for all from there on, by some versions of Python
            os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX"))
