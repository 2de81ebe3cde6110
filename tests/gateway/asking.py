"""A program that speaks HTTP to a gateway: one answer, or events as they come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tests.e2e.processes import DEADLINE_SECONDS


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def cookie(self) -> str:
        """NAME=VALUE, as a browser sends it back."""
        return self.headers.get("set-cookie", "").partition(";")[0]


class Connection:
    """One request, and what comes back."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def send(self, method: str, path: str, host: str, headers: Mapping[str, str], body: bytes) -> None:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body or method == "POST":
            lines.append(f"Content-Length: {len(body)}")
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        text = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = text.strip().split("\r\n")
        pairs = (line.partition(": ") for line in lines)
        return int(first.split()[1]), {name.lower(): value for name, _, value in pairs}

    async def chunks(self, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
        """The body in the pieces that it was sent in, where it is chunked."""
        if headers.get("transfer-encoding") != "chunked":
            yield await self._reader.read()
            return
        while size := int(await self._reader.readline(), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]


@asynccontextmanager
async def connection(address: str) -> AsyncIterator[Connection]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=10_000_000)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()


async def ask(
    address: str,
    path: str,
    said: object = None,
    *,
    body: bytes | None = None,
    cookie: str = "",
    token: str = "",
    headers: Mapping[str, str] | None = None,
    method: str = "",
) -> Answer:
    """GET, or POST of an object, or what is said."""
    sent = dict(headers or {})
    if token:
        sent["Authorization"] = f"Bearer {token}"
    if cookie:
        sent["Cookie"] = cookie
    has_body = said is not None or body is not None
    method = method or ("POST" if has_body else "GET")
    if has_body:
        sent.setdefault("content-type", "application/json")
    content = body if body is not None else b"" if said is None else json.dumps(said).encode()
    async with asyncio.timeout(DEADLINE_SECONDS), connection(address) as asking:
        await asking.send(method, path, address, sent, content)
        status, told = await asking.head()
        return Answer(status, told, b"".join([chunk async for chunk in asking.chunks(told)]))


def is_sign_of_life(told: object) -> bool:
    """Whether this is what a Watch says when it has nothing to say."""
    return isinstance(told, dict) and told.get("event") == "WATCH_EVENT_KEEPALIVE"


class Events:
    """Server-sent events as they come."""

    def __init__(self, asking: Connection, headers: Mapping[str, str]) -> None:
        self._chunks = asking.chunks(headers)
        self._buffer = b""
        self.comments = 0

    async def next(self) -> tuple[str, Any]:
        """The next event's name ("message" for one without) and its data; ("closed", None) behind the last one.

        Signs of life, which come where a machine takes long over the next news, are passed over.
        """
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                block, found, rest = self._buffer.partition(b"\n\n")
                if not found:
                    try:
                        self._buffer += await anext(self._chunks)
                    except (StopAsyncIteration, ValueError, asyncio.IncompleteReadError):
                        return "closed", None
                    continue
                self._buffer = rest
                lines = dict(line.split(": ", 1) for line in block.decode().split("\n") if not line.startswith(":"))
                if not lines:
                    self.comments += 1
                elif not is_sign_of_life(data := json.loads(lines["data"])):
                    return lines.get("event", "message"), data


@asynccontextmanager
async def stream(address: str, method: str, request: object, token: str) -> AsyncIterator[Events]:
    """A stream of the dashboard, which must begin."""
    path = f"/api/v1/stream/{method}?request={quote(json.dumps(request))}"
    async with connection(address) as asking:
        await asking.send("GET", path, address, {"Authorization": f"Bearer {token}"}, b"")
        status, headers = await asking.head()
        assert (status, headers["content-type"].partition(";")[0]) == (200, "text/event-stream"), status
        yield Events(asking, headers)
