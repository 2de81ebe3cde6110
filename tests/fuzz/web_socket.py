"""Browsers that break the protocol: frames of a WebSocket made by hand, in every order and of every kind."""

from __future__ import annotations

import asyncio
import base64
import json
import zlib
from contextlib import suppress
from random import Random
from typing import Any

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
FIN, COMPRESSED = 0x80, 0x40
BOMB_BYTES = 4_000_000
READ_SECONDS_MAX = 0.2

ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2**53, 2**64, 10**400, 0.5, float("nan"), float("inf"), "", "a", "\ud800", "\udc00\ud800"),
    *("x" * 300, [], {}, [[]], {"a": {}}, "1", "\0", "é", "‮", [0] * 50, ["jpeg", 1], ["\ud800"], "pattern"),
)
KINDS = (
    "hello",
    "pointer",
    "key",
    "text",
    "wheel",
    "ping",
    "shown",
    "still_here",
    "leave",
    "resize",
    "end",
    "",
    1,
    "\ud800",
)
FIELDS = (
    *(
        "version",
        "model",
        "place_key",
        "encodings",
        "width",
        "height",
        "density",
        "deliberate",
        "keeps_other",
        "pass_phrase",
    ),
    *("seq", "x", "y", "dx", "dy", "buttons", "button_change", "key", "down", "repeat", "text", "number", "frame"),
)
SENSIBLE: dict[str, Any] = {
    "version": 1, "model": "pattern", "place_key": "", "encodings": ["jpeg"], "width": 640, "height": 480, "density": 1,
    "seq": 1, "x": 0.5, "y": 0.5, "dx": 1, "dy": 1, "buttons": 1, "key": "a", "text": "a", "number": 1, "frame": 1,
}  # fmt: skip


async def trouble(address: str, path: str, random: Random) -> tuple[int, int]:
    """One connection; answers how many messages were sent, and the code that the gateway closed it with (0: none)."""
    with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            return await _connection(reader, writer, address, path, random)
        finally:
            writer.transport.abort()
    return 1, 0


async def _connection(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str, path: str, random: Random
) -> tuple[int, int]:
    compressed = random.random() < 0.3
    extension = "Sec-WebSocket-Extensions: permessage-deflate\r\n" if compressed else ""
    key = base64.b64encode(random.randbytes(16)).decode()
    writer.write(
        f"GET {path} HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n{extension}\r\n".encode()
    )
    async with asyncio.timeout(2):
        await reader.readuntil(b"\r\n\r\n")
    count = 0
    if random.random() < 0.6:
        writer.write(frame(random, TEXT, _text({"type": "hello", **{k: SENSIBLE[k] for k in ("version", "model")}})))
        count += 1
    for _ in range(random.randrange(1, 9)):
        writer.write(_message(random, compressed=compressed))
        count += 1
    if random.random() < 0.3:
        said = (b"", b"\x03", b"\x03\xe8", b"\x03\xed", b"\xff\xff", b"\x03\xe8\xff\xfe", b"\x03\xe8" + b"x" * 130)
        writer.write(frame(random, CLOSE, random.choice(said)))
    code = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(READ_SECONDS_MAX):
            code = await _close_code(reader)
    return count, code


async def _close_code(reader: asyncio.StreamReader) -> int:
    while True:
        first, second = await reader.readexactly(2)
        length = second & 0x7F
        if length == 126:
            length = int.from_bytes(await reader.readexactly(2), "big")
        elif length == 127:
            length = int.from_bytes(await reader.readexactly(8), "big")
        payload = await reader.readexactly(length)
        if first & 15 == CLOSE:
            return int.from_bytes(payload[:2], "big")


def _message(random: Random, *, compressed: bool) -> bytes:
    match random.randrange(14):
        case 0:
            return frame(random, BINARY, random.randbytes(random.randrange(200)))
        case 1:
            return frame(random, TEXT, random.randbytes(random.randrange(60)))
        case 2:
            return frame(random, TEXT, b"x" * random.choice((16_384, 16_385, 200_000)))
        case 3:
            return frame(random, PING, random.randbytes(random.choice((0, 125, 126)))) * random.choice((1, 300))
        case 4:
            parts = [frame(random, TEXT, b'{"type":', first=0), frame(random, 0, b'"ping"', first=0)]
            return b"".join((*parts, frame(random, 0, b',"number":1}')))
        case 5:
            return frame(random, random.choice((0, 3, 7, 11, 15)), b"x", first=random.choice((0, FIN, 0x90, 0xF0)))
        case 6 if compressed:
            packer = zlib.compressobj(wbits=-15)
            bomb = packer.compress(b" " * BOMB_BYTES) + packer.flush(zlib.Z_SYNC_FLUSH)
            return frame(random, TEXT, bomb[:-4], first=FIN | COMPRESSED)
        case 7:
            return random.randbytes(random.randrange(1, 40))
        case 8:
            return frame(
                random,
                TEXT,
                random.choice((b"{", b"[" * 9_000, b"1", b"null", b'"x"', b'{"type": "\\ud800"}', b"1e999")),
            )
    kind = random.choice(KINDS)
    said: dict[str, Any] = {"type": kind}
    for name in random.sample(FIELDS, random.randrange(len(FIELDS))):
        said[name] = random.choice(ODD) if random.random() < 0.4 else SENSIBLE.get(name, True)
    return frame(random, TEXT, _text(said))


def _text(said: dict[str, Any]) -> bytes:
    return json.dumps(said).encode()


def frame(random: Random, kind: int, payload: bytes, *, first: int = FIN) -> bytes:
    """A frame as a browser sends it, masked; now and then not."""
    length = len(payload)
    said = bytes((first | kind,))
    is_masked = random.random() > 0.01
    bit = 0x80 if is_masked else 0
    if length < 126:
        said += bytes((bit | length,))
    elif length < 65_536:
        said += bytes((bit | 126,)) + length.to_bytes(2, "big")
    else:
        said += bytes((bit | 127,)) + length.to_bytes(8, "big")
    # A mask of zeros changes nothing.
    return said + (b"\0\0\0\0" if is_masked else b"") + payload
