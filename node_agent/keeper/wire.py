"""What keeper and supervisors say to each other: JSON with its length in front, and descriptors."""

import array
import json
import socket
import struct
from typing import Any

from .frames import to_text

Json = dict[str, Any]

_LENGTH = struct.Struct(">I")
DESCRIPTORS_MAX = 4
"""Most that comes with one text: those of a command."""

_DESCRIPTORS_SPACE = socket.CMSG_SPACE(DESCRIPTORS_MAX * array.array("i").itemsize)

PIECE_BYTES = 65_536


def send(channel: socket.socket, message: Json, descriptors: tuple[int, ...] = ()) -> None:
    """Send all of a text. OSError when the other side has gone, TimeoutError where a time-out is set and passes."""
    body = to_text(message).encode("ascii")
    data = _LENGTH.pack(len(body)) + body
    sent = socket.send_fds(channel, [data], descriptors) if descriptors else 0
    if sent < len(data):
        channel.sendall(memoryview(data)[sent:])


class Received:
    """Cuts what comes into texts. `descriptors` are those that came and nobody took."""

    def __init__(self, channel: socket.socket) -> None:
        self.descriptors: list[int] = []
        self.has_ended = False
        self._channel = channel
        self._pending = bytearray()

    def next(self) -> Json | None:
        """Answer the next text, waiting for it; None when the other side has gone.

        Of a channel that does not wait, BlockingIOError when there is none yet.
        """
        while (message := self._take()) is None:
            if not self._read():
                return None
        return message

    def take_descriptors(self) -> list[int]:
        """Answer the descriptors that came, which are the caller's to close from now on."""
        taken, self.descriptors = self.descriptors, []
        return taken

    def _read(self) -> bool:
        try:
            data, told, _, _ = self._channel.recvmsg(PIECE_BYTES, _DESCRIPTORS_SPACE, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:
            data, told = b"", []
        for level, kind, found in told:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self.descriptors += array.array("i", found)
        self._pending += data
        self.has_ended = not data
        return not self.has_ended

    def _take(self) -> Json | None:
        if len(self._pending) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._pending)
        end = _LENGTH.size + length
        if len(self._pending) < end:
            return None
        message: Json = json.loads(bytes(self._pending[_LENGTH.size : end]))
        del self._pending[:end]
        return message
