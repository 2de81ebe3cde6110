"""How messages travel on the keeper's socket: four bytes of length, big-endian, then a JSON object."""

import json
import struct
from typing import Any

PROTOCOL_VERSION = 1
"""Raised when an old side could misunderstand a new one; both say theirs in their first message."""

FRAME_BYTES_MAX = 8 * 1024 * 1024
"""A launch with the longest argv and environment Linux takes fits in this."""

_LENGTH = struct.Struct(">I")

to_text = json.JSONEncoder(separators=(",", ":")).encode
"""JSON without spaces; `json.dumps` would make an encoder for each message."""


class FrameTooLong(ValueError):
    """A message does not fit in FRAME_BYTES_MAX."""


class BadFrame(ValueError):
    """The other side does not speak this protocol."""


def pack(message: dict[str, Any]) -> bytes:
    """Frame one message; FrameTooLong when it is too long."""
    body = to_text(message).encode("ascii")
    if len(body) > FRAME_BYTES_MAX:
        raise FrameTooLong(f"a message of {len(body)} bytes; at most {FRAME_BYTES_MAX} are sent")
    return _LENGTH.pack(len(body)) + body


class Unpacker:
    """Cuts what arrives into messages; holds at most one incomplete message."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Take bytes in and answer the messages they complete; BadFrame when they are not this protocol."""
        self._pending += data
        messages: list[dict[str, Any]] = []
        start = 0
        while len(self._pending) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._pending, start)
            if length > FRAME_BYTES_MAX:
                raise BadFrame(f"announces a message of {length} bytes; at most {FRAME_BYTES_MAX} are taken")
            end = start + _LENGTH.size + length
            if len(self._pending) < end:
                break
            messages.append(_parse(bytes(self._pending[start + _LENGTH.size : end])))
            start = end
        del self._pending[:start]
        return messages


def _parse(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"sends no JSON: {error}") from error
    if not isinstance(message, dict):
        raise BadFrame("sends JSON that is no object")
    return message
