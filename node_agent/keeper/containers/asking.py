"""The few calls of the Docker API that need no SDK: HTTP over the engine's socket, for keepers and runners.

HTTP/1.0, so that an answer ends where the engine hangs up.
"""

import socket
from dataclasses import dataclass

ANSWER_BYTES_MAX = 4 * 1024 * 1024
ANSWER_S_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What the engine said: the status of HTTP, and the body."""

    status: int
    body: bytes

    @property
    def is_ok(self) -> bool:
        """Whether it was done, or was so already."""
        return 200 <= self.status < 300 or self.status == 304


def ask(engine: str, method: str, path: str, *, timeout_s: float = ANSWER_S_MAX) -> Answer:
    """Make a call without a body; `engine` is the path of its socket. OSError when there is no answer in time."""
    with connected(engine, timeout_s) as channel:
        channel.sendall(f"{method} {path} HTTP/1.0\r\nHost: engine\r\nContent-Length: 0\r\n\r\n".encode())
        received = bytearray()
        while piece := channel.recv(65_536):
            received += piece
            if len(received) > ANSWER_BYTES_MAX:
                raise OSError(f"the engine's answer to {method} {path} has no end")
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    return Answer(status_of(head), body)


def connected(engine: str, timeout_s: float) -> socket.socket:
    """A connection to the engine. OSError when there is none."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel.settimeout(timeout_s)
    try:
        channel.connect(engine)
    except OSError:
        channel.close()
        raise
    return channel


def status_of(head: bytes) -> int:
    """The status in the head of an answer. OSError when that is none."""
    words = head.split(b"\r\n", 1)[0].split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise OSError("the engine's answer is no HTTP")
    return int(words[1])
