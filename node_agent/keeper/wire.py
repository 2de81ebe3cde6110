"""What keeper and supervisors say to each other: the frames of the keeper's own socket, and descriptors."""

import array
import socket
from collections import deque
from typing import Any

from .frames import Unpacker, pack

Json = dict[str, Any]

DESCRIPTORS_MAX = 8
"""More than comes with one message: those of a command, and those by which it enters its control group."""

_DESCRIPTORS_SPACE = socket.CMSG_SPACE(DESCRIPTORS_MAX * array.array("i").itemsize)

PIECE_BYTES = 65_536


def send(channel: socket.socket, message: Json, descriptors: tuple[int, ...] = ()) -> None:
    """Send all of a message. OSError when the other side has gone, TimeoutError where a time-out is set and passes."""
    data = pack(message)
    sent = socket.send_fds(channel, [data], descriptors) if descriptors else 0
    if sent < len(data):
        channel.sendall(memoryview(data)[sent:])


class Received:
    """Cuts what comes into messages. `has_more`: one has come that was not answered yet."""

    def __init__(self, channel: socket.socket) -> None:
        self.has_ended = False
        self._channel = channel
        self._unpacker = Unpacker()
        self._messages: deque[Json] = deque()
        self._descriptors: list[int] = []

    @property
    def has_more(self) -> bool:
        """Say whether the next message is here: the channel, being read, tells nothing of it any more."""
        return bool(self._messages)

    def next(self) -> Json | None:
        """Answer the next message, waiting for it; None when the other side has gone.

        Of a channel that does not wait, BlockingIOError when there is none yet.
        """
        while not self._messages:
            if not self._read():
                return None
        return self._messages.popleft()

    def take_descriptors(self, count: int | None = None) -> list[int]:
        """Answer the descriptors that came, or the first so many, which are the caller's to close from now on."""
        end = len(self._descriptors) if count is None else count
        taken, self._descriptors = self._descriptors[:end], self._descriptors[end:]
        return taken

    def _read(self) -> bool:
        try:
            data, beside, _, _ = self._channel.recvmsg(PIECE_BYTES, _DESCRIPTORS_SPACE, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:
            data, beside = b"", []
        for level, kind, found in beside:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._descriptors += array.array("i", found)
        self._messages += self._unpacker.feed(data)
        self.has_ended = not data
        return not self.has_ended
