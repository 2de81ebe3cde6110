"""The few calls of the Docker API that need no SDK: HTTP over the engine's socket, for keepers and runners.

HTTP/1.0, so that an answer ends where the engine hangs up; but for a connection that becomes a command's streams.
"""

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ANSWER_BYTES_MAX = 4 * 1024 * 1024
ANSWER_S_MAX = 30.0
HEAD_BYTES_MAX = 65_536

UPGRADED = (101, 200)
"""What an engine answers before a connection becomes streams."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the engine said: the status of HTTP, and the body."""

    status: int
    body: bytes

    @property
    def is_ok(self) -> bool:
        """Whether it was done, or was so already."""
        return 200 <= self.status < 300 or self.status == 304

    def as_object(self) -> dict[str, Any]:
        """The JSON object in its body. OSError when there is none."""
        try:
            told = json.loads(self.body)
        except ValueError as error:
            raise OSError(f"the engine's answer cannot be read: {error}") from None
        if not isinstance(told, dict):
            raise OSError("the engine's answer is no JSON object")
        return told

    def sentence(self) -> str:
        """Its own words for what it did not do, on one line of at most 1,000 characters."""
        try:
            said = str(self.as_object()["message"])
        except (OSError, KeyError):
            said = self.body.decode(errors="replace")
        return " ".join(said.split())[:1000]


def ask(
    engine: str, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = ANSWER_S_MAX
) -> Answer:
    """Make a call; `engine` is the path of its socket. OSError when there is no answer in time."""
    with connected(engine, timeout_s) as channel:
        channel.sendall(_request(f"{method} {path} HTTP/1.0", body))
        return _rest_of(channel, bytearray(), f"{method} {path}")


def upgraded(
    engine: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float
) -> socket.socket | Answer:
    """Make a call whose connection becomes a command's streams, from their first byte on; an Answer where it does not.

    The connection does not block. OSError when there is no answer in time.
    """
    channel = connected(engine, timeout_s)
    is_handed = False
    try:
        channel.sendall(_request(f"POST {path} HTTP/1.1", body, "Connection: Upgrade", "Upgrade: tcp"))
        head = bytearray()
        while not head.endswith(b"\r\n\r\n"):
            piece = channel.recv(1)  # no byte of the streams is to be taken with the head
            if not piece or len(head) > HEAD_BYTES_MAX:
                raise OSError("the engine hung up")
            head += piece
        if status_of(bytes(head)) not in UPGRADED:
            return _rest_of(channel, head, f"POST {path}", _length_in(bytes(head)))
        channel.setblocking(False)
        is_handed = True
        return channel
    finally:
        if not is_handed:
            channel.close()


def _request(line: str, body: Mapping[str, Any] | None, *headers: str) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    kind = () if body is None else ("Content-Type: application/json",)
    lines = (line, "Host: engine", *headers, *kind, f"Content-Length: {len(data)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + data


def _rest_of(channel: socket.socket, received: bytearray, call: str, body_bytes: int | None = None) -> Answer:
    """The answer of which this much has come; of a body whose length is known no more is waited for."""
    wanted = None if body_bytes is None else len(received) + body_bytes
    while (wanted is None or len(received) < wanted) and (piece := channel.recv(65_536)):
        received += piece
        if len(received) > ANSWER_BYTES_MAX:
            raise OSError(f"the engine's answer to {call} has no end")
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    return Answer(status_of(head), body)


def _length_in(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip().isdigit():
            return min(int(value), ANSWER_BYTES_MAX)
    return 0


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
