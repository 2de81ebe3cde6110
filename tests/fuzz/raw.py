"""Bytes for a port that expects others: noise, beginnings of protocols, requests that mean two things, slow ones."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

from gpufleet.v1 import inference_pb2

from gpufleet.net.local_stream import HEAD, MESSAGE, NONCE_BYTES, PROOF, STATUS
from tests.fuzz.http2 import PREFACE, call, frame, message

LOCAL = "worker's local socket"
"""What speaks as gpufleet/net/local_stream.py does."""

READ_SECONDS_MAX = 0.15
SLOW_BYTES = 12
HTTP_PATHS = (
    *(
        "/",
        "/ws",
        "/healthz",
        "/metrics",
        "/api/v1/jobs",
        "/api/v1/lobby",
        "/api/v1/nodes",
        "/v1/models",
        "/v2/health/ready",
    ),
    *(
        "/serve/answers/",
        "/serve/answers/x",
        "/v1/chat/completions",
        "/openapi.json",
        "/dashboard",
        "/login",
        "/%00",
        "/%ff%fe",
    ),
    *("/../../etc/passwd", "/api/v1/lobby/x/picture", "/api/v1/jobs/1", "/v2/models/answers/infer", "/api/v1/\udcff"),
)
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "TRACE", "PRI", "GE T", "")


@dataclass(frozen=True, slots=True)
class Port:
    """Where somebody listens: HOST:PORT, or the path of a Unix socket, or the name of an abstract one."""

    name: str
    address: str

    async def connect(self) -> socket.socket:
        """A connection, not blocking."""
        loop = asyncio.get_running_loop()
        if self.address.startswith(("/", "\0")):
            connection = socket.socket(socket.AF_UNIX)
            where: object = self.address
        else:
            connection = socket.socket()
            host, _, port = self.address.rpartition(":")
            where = (host, int(port))
        connection.setblocking(False)
        try:
            await loop.sock_connect(connection, where)  # type: ignore[arg-type]
        except BaseException:
            connection.close()
            raise
        return connection


async def trouble(port: Port, random: Random, secret: str) -> str:
    """One connection; answers the status line of what is answered, or nothing."""
    data, is_slow, resets = _bytes(random, secret, port.name), random.random() < 0.03, random.random() < 0.15
    answer = b""
    with suppress(OSError):
        connection = await port.connect()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(2 if is_slow else 1):
                if is_slow:
                    for at in range(min(SLOW_BYTES, len(data))):
                        await loop.sock_sendall(connection, data[at : at + 1])
                        await asyncio.sleep(0.05)
                else:
                    await loop.sock_sendall(connection, data)
                if random.random() < 0.3:
                    connection.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(READ_SECONDS_MAX):
                answer = await loop.sock_recv(connection, 4096)
        except TimeoutError:
            pass
        finally:
            if resets and connection.family == socket.AF_INET:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
    return answer[9:12].decode("latin-1") if answer.startswith(b"HTTP/1.1 ") else ""


def _bytes(random: Random, secret: str, name: str) -> bytes:
    kinds = {"keeper": (_noise, _frames), LOCAL: (_noise, _local)}.get(
        name, (_noise, _http, _http, _http, _smuggled, _http2, _tls)
    )
    return random.choice(kinds)(random, secret)


def _noise(random: Random, secret: str) -> bytes:
    return random.randbytes(random.choice((0, 1, 5, 24, 100, 2_000, 60_000)))


def _http(random: Random, secret: str) -> bytes:
    path = random.choice(HTTP_PATHS) + random.choice(("", "", "?a=b", "?" + "x" * 9_000, "?%f0%28", "#"))
    body = random.choice(
        (b"", b"{}", b"[", b'{"a": "\\ud800"}', b"\xff" * 50, b"[" * 5_000, b'{"model": NaN}', b"1" * 6_000)
    )
    version = random.choice(("1.1", "1.1", "1.1", "1.0", "9.9", ""))
    lines = [
        f"{random.choice((*METHODS, 'GET', 'POST', 'POST'))} {path} HTTP/{version}",
        random.choice(
            ("Host: localhost", "Host: answers.localhost", "Host: \udcff", "Host: a\r\nHost: b", "Host:", "X: y")
        ),
        *random.sample(
            (
                f"Authorization: Bearer {secret}",
                "Authorization: Bearer \udcff\udcfe",
                "Content-Type: application/json",
                f"Content-Length: {random.choice((len(body), len(body), 0, -1, 10**30, 'x', '1, 2'))}",
                "Transfer-Encoding: chunked",
                "Transfer-Encoding: gzip, chunked, identity",
                "Expect: 100-continue",
                "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13",
                "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAAA",
                "Cookie: \udcff=;;;=,\x01",
                "Accept-Encoding: gzip;q=-1",
                "Range: bytes=9-1,-",
                "X-Forwarded-For: " + "1.1.1.1, " * 500,
                "traceparent: 00-\udcff",
                " folded: yes",
                "no colon at all",
                "X" * 9_000 + ": y",
            ),
            random.randrange(5),
        ),
    ]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body


def _smuggled(random: Random, secret: str) -> bytes:
    inner = b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n"
    return random.choice(
        (
            b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + inner,
            b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nContent-Length: 40\r\n\r\nabcd" + inner,
            b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding : chunked\r\n\r\n5;x=y\r\nabcde\r\n0\r\nT: r\r\n\r\n"
            + inner,
            b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n" + inner,
            b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n\r\n" + inner,
            b"GET / HTTP/1.1\nHost: h\n\n" + inner,
            b"GET http://elsewhere/ HTTP/1.1\r\nHost: h\r\n\r\n" + inner * 40,
        )
    )


def _http2(random: Random, secret: str) -> bytes:
    behind = (
        random.randbytes(300),
        b"".join(
            frame(random.randrange(12), random.randrange(256), random.randrange(9), random.randbytes(20))
            for _ in range(9)
        ),
        frame(4, 0, 0, random.randbytes(12)) + frame(1, 0, 1, b"\x82" * 50) + frame(9, 0, 1, b"\x82" * 9) * 60,
        frame(4, 0, 0, b"")
        + b"".join(frame(1, 4, 1 + 2 * n, b"\x82\x86\x84") + frame(3, 0, 1 + 2 * n, b"\0\0\0\x08") for n in range(80)),
        frame(4, 0, 0, b"") + frame(6, 0, 0, b"8 bytes!") * 200,
        frame(8, 0, 0, b"\x7f\xff\xff\xff") * 3,
        call("/gpufleet.v1.Scheduler/Queue", secret, message(b""))[len(PREFACE) :] * 3,
    )
    return PREFACE + random.choice(behind)


def _tls(random: Random, secret: str) -> bytes:
    return (
        b"\x16\x03\x01"
        + random.choice((b"\x00\x05", b"\xff\xff", b"\x02\x00\x01\x00\x01\xfc\x03\x03"))
        + random.randbytes(200)
    )


def _frames(random: Random, secret: str) -> bytes:
    """For the keeper: greetings of agents that it cannot talk to, and requests of who has not greeted.

    Steered: who greets it well is its agent from then on, and the one before leaves.
    """
    hello = {"id": 1, "do": "hello", "protocol": random.choice((2, -1, 2**70, "1", None, [1], {}))}
    return b"".join(_framed(random, each) for each in (hello, *(_asked(random) for _ in range(random.randrange(4)))))


def _asked(random: Random) -> Any:
    odd: tuple[Any, ...] = (None, -1, 2**70, 1.5, "", "1.1.0", "1.1", "\ud800", [], {}, [1], {"a": 1}, True)
    does = random.choice(("launch", "check", "stop", "inventory", "shutdown", "", 1, None, "\ud800"))
    said: Any = {"id": random.choice((2, 3, *odd)), "do": does, "key": random.choice(odd)}
    return said if random.random() < 0.9 else random.choice(odd)


def _framed(random: Random, said: Any) -> bytes:
    body = json.dumps(said).encode()
    if random.random() < 0.2:
        body = random.choice((b"{", b"\xff" * 9, b"[" * 9_000, b'{"a": NaN}', b'"\\ud800"', b"[]", b"1"))
    length = random.choice((*[len(body)] * 9, 0, 2**32 - 1, len(body) + 5))
    return length.to_bytes(4, "big") + body


def _local(random: Random, secret: str) -> bytes:
    """For a worker's local socket: what is no proof, and behind a good one requests of who has no ticket."""
    nonce = random.randbytes(random.choice((*[NONCE_BYTES] * 4, 0, 31, 64)))
    requests = [
        inference_pb2.StreamRequest(open=inference_pb2.OpenTurn(ticket=secret, width=2**31 - 1)),
        inference_pb2.StreamRequest(leave=True),
        inference_pb2.StreamRequest(input=inference_pb2.Input(sequence=2**62, text="\0" * 1_000)),
    ]
    said = [(PROOF, nonce)]
    for _ in range(random.randrange(4)):
        body = random.choice((random.choice(requests).SerializeToString(), random.randbytes(random.randrange(90)), b""))
        said.append((random.choice((MESSAGE, MESSAGE, PROOF, STATUS, 255)), body))
    lies = (0, 2**32 - 1, 64_001)
    return b"".join(HEAD.pack(kind, random.choice((*[len(body)] * 9, *lies))) + body for kind, body in said)
