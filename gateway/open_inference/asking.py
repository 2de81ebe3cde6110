"""One request to a program over HTTP, and its whole answer, for a call of gRPC."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Iterator
from ipaddress import IPv6Address, ip_address
from typing import Any
from urllib.parse import unquote

from starlette.requests import HTTPConnection

from ..proxy.core.headers import Header
from ..proxy.whole_answer import WholeAnswer
from .requests import HttpRequest
from .room import MESSAGE_BYTES_MAX

PIECE_BYTES = 262_144
"""A body is sent in pieces of so many bytes; a shorter one in one."""

HEADER_LENGTH = b"inference-header-content-length"
TIMEOUT_HEADER = b"x-request-timeout-ms"
TIMEOUT_MS_MAX = 24 * 3_600 * 1_000
"""A later deadline is told to no replica."""

PASSED = frozenset(
    {
        *("authorization", "traceparent", "tracestate", "x-request-id"),
        *("gpufleet-session", "gpufleet-gpu-mode", "gpufleet-content-type"),
    }
)
"""Metadata of a call that become headers of the request; the proxy says which of them a program gets."""


class Exchange(WholeAnswer):
    """The gateway's own side of a request: its body is there as a whole, and so is its answer in the end. Each part of
    the body is let go of when it was sent: `parts` is empty then."""

    def __init__(self, request: HTTPConnection, parts: deque[bytes]) -> None:
        super().__init__(request.scope, MESSAGE_BYTES_MAX)
        self._parts = parts

    async def body(self) -> AsyncIterator[bytes]:
        """The request's body."""
        for piece in _pieces(self._parts):
            self.is_body_used = True
            yield piece

    @property
    def head_bytes(self) -> int:
        """How many bytes of the answer are JSON."""
        said = self.header(HEADER_LENGTH)
        return int(said) if said.isascii() and said.isdigit() and len(said) < 20 else len(self.answer)


def request_for(
    context: Any, host: str, path: bytes, body: HttpRequest | None = None, *, is_secure: bool = False
) -> HTTPConnection:
    """The request of a call. `host` is where the call came to, HOST:PORT."""
    headers: list[Header] = [(b"host", host.encode("latin-1", "replace"))]
    for name, value in context.invocation_metadata() or ():
        if name in PASSED and isinstance(value, str):
            headers.append((name.encode(), value.strip().encode("latin-1", "replace")))
    if (rest_s := context.time_remaining()) is not None and (rest_ms := math.ceil(rest_s * 1e3)) <= TIMEOUT_MS_MAX:
        headers.append((TIMEOUT_HEADER, b"%d" % max(1, rest_ms)))
    if body is not None:
        headers += [
            (b"content-type", b"application/octet-stream"),
            (b"content-length", b"%d" % body.size_bytes),
            (HEADER_LENGTH, b"%d" % len(body.head)),
        ]
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET" if body is None else "POST",
        "scheme": "https" if is_secure else "http",
        "path": path.decode(),
        "raw_path": path,
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": peer_of(context.peer()),
        "server": None,
    }
    return HTTPConnection(scope)


def peer_of(peer: str) -> tuple[str, int]:
    """The address and port of who calls, from gRPC's words for it, such as ipv6:%5B::1%5D:50123."""
    _, _, where = unquote(peer).partition(":")
    host, _, port = where.rpartition(":")
    host = host.strip("[]")
    try:
        address = ip_address(host)
    except ValueError:
        return host, 0
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address), int(port) if port.isdigit() else 0


def _pieces(parts: deque[bytes]) -> Iterator[bytes]:
    """The parts in pieces that are short, but not so short that they cost more than they are."""
    together: list[bytes] = []
    size = 0
    while parts:
        part = parts.popleft()
        if size + len(part) <= PIECE_BYTES:
            together.append(part)
            size += len(part)
            continue
        if together:
            yield b"".join(together)
            together, size = [], 0
        view = memoryview(part)
        for at in range(0, len(part), PIECE_BYTES):
            yield view[at : at + PIECE_BYTES].tobytes()
    if together:
        yield b"".join(together)
