"""One attempt's standard input: what is typed waits here, in a bounded queue, until its process takes it."""

import contextlib
import fcntl
import os
import signal
import struct
import termios
from collections.abc import Callable

from gpufleet.jobs.runs import InputMode

from ..core.typed import InputPiece, InputQueue, Typed
from .linux import boottime_us
from .processes import look_at
from .reactor import Reactor

TellTyped = Callable[[Typed], None]
"""Is told where the input stands once a piece was taken."""

RETRY_US = 100_000
"""A terminal that took nothing is tried again after this: not every kernel says when it has room."""


class Input:
    """Writes to a pipe or a terminal whenever it takes bytes; the descriptor is this object's to close."""

    def __init__(self, reactor: Reactor, fd: int, mode: InputMode | None) -> None:
        self.mode = mode
        self._reactor = reactor
        self._fd: int | None = fd
        self._queue = InputQueue()
        self._is_watched = False
        self._unfinished: tuple[InputPiece, TellTyped] | None = None

    @property
    def typed(self) -> Typed:
        """Answer where it stands."""
        return Typed(self._queue.offset, self._fd is None or self._queue.is_ending)

    def begin(self, writer: str) -> bool:
        """Let another session type; answer whether it was the last one to do so. Who waits is told."""
        self._tell()
        return self._queue.begin(writer)

    def is_writer(self, writer: str) -> bool:
        """Say whether this session types at present."""
        return writer == self._queue.writer

    def take(self, piece: InputPiece, tell: TellTyped) -> None:
        """Take a piece, and tell once all of it has found room; who waits for an earlier one is told now."""
        self._tell()
        if self._fd is None:
            tell(self.typed)
            return
        if self.mode is InputMode.TERMINAL:
            piece = InputPiece(piece.offset, piece.data)  # a terminal has no end but the character that means one
        self._unfinished = (piece, tell)
        self._go_on()

    def resize(self, columns: int, rows: int) -> None:
        """Give the terminal another size. Of the same size its program is told, too: it may have to draw anew."""
        if self._fd is None or self.mode is not InputMode.TERMINAL:
            return
        size = struct.pack("HHHH", rows, columns, 0, 0)
        before = fcntl.ioctl(self._fd, termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, size)
        if before[:4] == size[:4] and (group := self.foreground_group(0)) is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGWINCH)

    def foreground_group(self, session_id: int) -> int | None:
        """Answer the group that the terminal's keys reach; None where there is none, or it is of another session.

        `session_id` 0 is any session: enough for a signal that harms nobody.
        """
        if self._fd is None or self.mode is not InputMode.TERMINAL:
            return None
        try:
            group = os.tcgetpgrp(self._fd)
        except OSError:
            return None
        process = look_at(group) if group > 1 else None
        return group if process is not None and session_id in (0, process.session_id) else None

    def close(self) -> None:
        """The process is gone, or reads no more."""
        if self._fd is not None:
            self._watch(is_wanted=False)
            self._reactor.call_at(self._go_on, None)
            os.close(self._fd)
            self._fd = None
            self._queue.waiting.clear()
        self._tell()

    def _go_on(self) -> None:
        """Take in and write out, until there is nothing to take or no room to write."""
        while self._fd is not None:
            is_taken = self._unfinished is None or self._queue.take(self._unfinished[0])
            if is_taken:
                self._tell()
            if not self._queue.waiting:
                break
            if not self._write():
                return
        self._reactor.call_at(self._go_on, None)
        self._watch(is_wanted=False)
        if self._queue.is_ending:
            self.close()

    def _write(self) -> bool:
        """Write what the process takes now; answer whether it took any."""
        assert self._fd is not None
        try:
            count = os.write(self._fd, self._queue.waiting)
        except BlockingIOError:
            count = 0
        except OSError:  # EPIPE, EIO: nobody will ever read it
            self.close()
            return False
        self._queue.written(count)
        if count == 0:
            self._watch(is_wanted=True)
            if self.mode is InputMode.TERMINAL:
                self._reactor.call_at(self._go_on, boottime_us() + RETRY_US)
        return count > 0

    def _watch(self, *, is_wanted: bool) -> None:
        assert self._fd is not None
        if is_wanted != self._is_watched:
            self._is_watched = is_wanted
            if is_wanted:
                self._reactor.call_when_writable(self._fd, self._go_on)
            else:
                self._reactor.forget(self._fd)

    def _tell(self) -> None:
        if self._unfinished is not None:
            (_, tell), self._unfinished = self._unfinished, None
            tell(self.typed)
