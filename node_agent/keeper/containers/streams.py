"""The streams of a container's command, carried between its engine and the descriptors 0, 1 and 2 of this process."""

import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Callable

INPUT_BYTES_MAX = 64 * 1024
"""What is read of its input and not taken by the container yet."""

PIECE_BYTES = 256 * 1024

LOOK_S = 1.0
"""How long nothing comes before the engine is asked after a command whose process is not seen here."""

DRAIN_S_MAX = 2.0
"""How long what a dead command wrote last is waited for."""

SAID_BYTES = 512
"""So much of what was written last is known afterwards."""

DETACH_KEYS = "ctrl-^,ctrl-_,ctrl-^,ctrl-_,ctrl-^"
"""Keys at which an engine hangs up on a terminal: it has some in any case, and of its own the first,
ctrl-p, is one of every shell's."""
DETACH_KEYS_IN_PATH = DETACH_KEYS.replace("^", "%5E")

_HEAD = struct.Struct(">BxxxL")
_OUT, _ERR = 1, 2


class Streams:
    """Those of one command. `pidfd` is its process on this machine, -1 where that is not seen; `died` hears of its
    death at once.
    """

    def __init__(self, *, has_input: bool, is_terminal: bool, died: Callable[[], None] = lambda: None) -> None:
        self._died = died
        self.pidfd = -1
        self.last_said = b""
        self.is_input_closed = not has_input
        self._is_terminal = is_terminal
        self._has_input_ended = not has_input
        self._received = bytearray()
        self._typed = bytearray()

    @property
    def is_seen_alive(self) -> bool:
        """Whether its process is seen here, and lives."""
        if self.pidfd < 0:
            return False
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return not poll.poll(0)

    def carry(self, channel: socket.socket, is_over: Callable[[], bool]) -> None:
        """Carry until the command's process is dead, it has closed all, or the engine has hung up.

        An engine need not hang up: where the process is not seen here, `is_over` says whether it still runs.
        """
        poll = select.poll()
        watched: dict[int, int] = {}
        with channel:
            while True:
                self._watch(poll, watched, channel)
                ready = poll.poll(None if self.pidfd >= 0 else LOOK_S * 1000)
                if not ready and is_over():
                    self.drain(channel)
                    return
                for fd, _ in ready:
                    if fd == self.pidfd:
                        self._died()
                        self.drain(channel)
                        return
                    if fd == 0:
                        self._read_input()
                    elif fd == channel.fileno() and not self._take(channel):
                        return
                self._type(channel)

    def peek(self, channel: socket.socket, bytes_max: int) -> bytes:
        """Read up to so much of what an engine has sent of a command that is over; it is carried nevertheless."""
        poll = select.poll()
        poll.register(channel.fileno(), select.POLLIN)
        while len(self._received) < bytes_max and poll.poll(DRAIN_S_MAX * 1000):
            piece = channel.recv(bytes_max - len(self._received))
            if not piece:
                break
            self._received += piece
        if self._is_terminal:
            return bytes(self._received)
        said, at = bytearray(), 0
        while len(self._received) - at >= _HEAD.size:
            _, size = _HEAD.unpack_from(self._received, at)
            said += self._received[at + _HEAD.size : at + _HEAD.size + size]
            at += _HEAD.size + size
        return bytes(said)

    def drain(self, channel: socket.socket) -> None:
        """Its process is dead: take what is on its way."""
        deadline = time.monotonic() + DRAIN_S_MAX
        poll = select.poll()
        poll.register(channel.fileno(), select.POLLIN)
        while (left_s := deadline - time.monotonic()) > 0 and poll.poll(left_s * 1000):
            if not self._take(channel):
                return

    def _watch(self, poll: select.poll, watched: dict[int, int], channel: socket.socket) -> None:
        has_room = not self._has_input_ended and len(self._typed) < INPUT_BYTES_MAX
        wanted = {channel.fileno(): select.POLLIN | (select.POLLOUT if self._typed else 0)}
        if has_room:
            wanted[0] = select.POLLIN
        if self.pidfd >= 0:
            wanted[self.pidfd] = select.POLLIN
        for fd in watched.keys() - wanted.keys():
            poll.unregister(fd)
            del watched[fd]
        for fd, events in wanted.items():
            if watched.get(fd) != events:
                poll.register(fd, events)
                watched[fd] = events

    def _read_input(self) -> None:
        try:
            piece = os.read(0, INPUT_BYTES_MAX)
        except OSError:
            piece = b""
        self._typed += piece
        self._has_input_ended = not piece

    def _type(self, channel: socket.socket) -> None:
        if self._typed:
            try:
                del self._typed[: channel.send(self._typed)]
            except BlockingIOError:
                return
            except OSError:  # it reads no more
                self._typed.clear()
                self._has_input_ended = self.is_input_closed = True
                return
        if self._has_input_ended and not self._typed and not self.is_input_closed:
            self.is_input_closed = True
            with contextlib.suppress(OSError):
                channel.shutdown(socket.SHUT_WR)

    def _take(self, channel: socket.socket) -> bool:
        """Write down what has come; False when nothing more comes."""
        try:
            piece = channel.recv(PIECE_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._received += piece
        if self._is_terminal:
            self._say(1, self._received)
            self._received.clear()
        else:
            self._write_frames()
        return bool(piece)

    def _say(self, fd: int, data: bytes | bytearray) -> None:
        write_all(fd, data)
        self.last_said = (self.last_said + bytes(data[-SAID_BYTES:]))[-SAID_BYTES:]

    def _write_frames(self) -> None:
        """The streams come in frames: which one, how many bytes, and the bytes."""
        taken = 0
        while len(self._received) - taken >= _HEAD.size:
            stream, size = _HEAD.unpack_from(self._received, taken)
            available = min(size, len(self._received) - taken - _HEAD.size)
            begin = taken + _HEAD.size
            self._say(_ERR if stream == _ERR else _OUT, self._received[begin : begin + available])
            taken = begin + available
            if available < size:  # the rest of the frame, as a frame of its own
                self._received[:taken] = _HEAD.pack(stream, size - available)
                return
        del self._received[:taken]


def write_all(fd: int, data: bytes | bytearray) -> None:
    """Write all of it; what nobody reads is left."""
    view = memoryview(bytes(data))
    while view:
        try:
            view = view[os.write(fd, view) :]
        except OSError:
            return
