"""HTTP/2 by hand, so that frames can be wrong where every library would make them right: a call in some bytes."""

from __future__ import annotations

import asyncio
import re
from random import Random

from tests.fuzz.messages import Forge

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS = 1, 4
NO_TABLE = b"\x00\x01\x00\x00\x00\x00"
"""A setting: answers name their headers in full, so that a status can be read without the codec."""

_STATUS = re.compile(rb"grpc-status(?:\x01(\d)|\x02(\d\d))")
ODD_PATHS = (b"/", b"", b"//", b"/a/b/c", b"x" * 900, b"/a\x9b/b")
READ_SECONDS_MAX = 0.3
ANSWER_BYTES_MAX = 1 << 20


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One frame."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def headers(*pairs: tuple[bytes, bytes]) -> bytes:
    """A block of headers, each in full and not to be remembered."""
    return b"".join(b"\x00" + _text(name) + _text(value) for name, value in pairs)


def _text(text: bytes) -> bytes:
    length = len(text)
    if length < 127:
        return bytes((length,)) + text
    said, length = b"\x7f", length - 127
    while length >= 128:
        said, length = said + bytes((length % 128 + 128,)), length // 128
    return said + bytes((length,)) + text


def message(data: bytes, length: int | None = None, flag: int = 0) -> bytes:
    """A message in gRPC's own frame, which may lie about it."""
    return bytes((flag,)) + (len(data) if length is None else length).to_bytes(4, "big") + data


def call(path: str | bytes, secret: str, data: bytes, *more: tuple[bytes, bytes], ends: bool = True) -> bytes:
    """A connection with one call."""
    asked = headers(
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path if isinstance(path, bytes) else path.encode()),
        (b":authority", b"fuzz"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *(((b"authorization", b"Bearer " + secret.encode()),) if secret else ()),
        *more,
    )
    return b"".join(
        (
            PREFACE,
            frame(SETTINGS, 0, 0, NO_TABLE),
            frame(HEADERS, END_HEADERS, 1, asked),
            frame(DATA, END_STREAM if ends else 0, 1, data),
        )
    )


def wrong_call(random: Random, forge: Forge, path: str, secret: str, data: bytes) -> tuple[bytes, str]:
    """A connection with a call whose frames or metadata are wrong, and what is wrong with it."""
    kinds = {
        "wrong length": lambda: call(
            path, secret, message(data, random.choice((0, 1, len(data) + 9, 2**31, 2**32 - 1)))
        ),
        "compression flag": lambda: call(path, secret, message(data, flag=random.choice((1, 2, 255)))),
        "corrupt gzip": lambda: call(path, secret, message(data, flag=1), (b"grpc-encoding", b"gzip")),
        "made-up encoding": lambda: call(path, secret, message(data, flag=1), (b"grpc-encoding", b"snow")),
        "no message": lambda: call(path, secret, b""),
        "half a frame": lambda: call(path, secret, message(data)[: random.randrange(5)]),
        "two messages": lambda: call(path, secret, message(data) + message(data)),
        "bytes for a token": lambda: call(path, "", message(data), (b"authorization", b"Bearer \xff\xfe\xed\xa0\x80")),
        "text for a token": lambda: call(path, "", message(data), (b"authorization", "Bearer ☃é".encode())),
        "other scheme": lambda: call(path, "", message(data), (b"authorization", b"Basic " + b"A" * 30)),
        "two tokens": lambda: call(path, secret, message(data), (b"authorization", b"Bearer made-up")),
        "odd deadline": lambda: call(
            path, secret, message(data), (b"grpc-timeout", random.choice((b"0n", b"-1S", b"9x")))
        ),
        "many headers": lambda: call(path, secret, message(data), *((b"x-%d" % n, b"y" * 90) for n in range(900))),
        "made-up method": lambda: call(path + "x", secret, message(data)),
        "odd path": lambda: call(
            random.choice((b"/", b"", b"//", b"/a/b/c", b"x" * 900, b"/a\x9b/b")), secret, message(data)
        ),
        "odd content": lambda: call(path, secret, message(data), (b"content-type", b"text/html")),
        "odd trace": lambda: call(
            path, secret, message(data), (b"traceparent", random.choice((b"x", b"00-\xff", b"0" * 9000)))
        ),
        "cut off": lambda: (whole := call(path, secret, message(data)))[: random.randrange(24, len(whole))],
        "reset": lambda: call(path, secret, message(data), ends=False) + frame(RST_STREAM, 0, 1, b"\0\0\0\x08"),
        "garbage behind": lambda: call(path, secret, message(data), ends=False) + random.randbytes(200),
        "bits turned": lambda: PREFACE + forge.mutated(call(path, secret, message(data))[len(PREFACE) :]),
    }
    kind = random.choice(list(kinds))
    return kinds[kind](), kind


async def statuses(host: str, port: int, data: bytes, seconds: float = READ_SECONDS_MAX) -> list[int]:
    """Send these bytes and answer the statuses that come; the first piece with one is the last that is read."""
    reader, writer = await asyncio.open_connection(host, port)
    answer = b""
    try:
        writer.write(data)
        async with asyncio.timeout(seconds):
            while (piece := await reader.read(65_536)) and len(answer) < ANSWER_BYTES_MAX:
                answer += piece
                if _STATUS.search(answer):
                    break
    except (TimeoutError, OSError):
        pass
    finally:
        writer.transport.abort()
    return [int(one or two) for one, two in _STATUS.findall(answer)]
