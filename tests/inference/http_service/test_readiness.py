"""Whether a program is well: its port, and the status line that its ready path answers with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from inference.http_service import readiness
from inference.http_service.readiness import probe
from tests.inference.serving import until
from tests.ports import kept_port

HOST = "127.0.0.1"


@asynccontextmanager
async def answering(answer: bytes, *, then_waits: bool = False) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A program that says this to whoever asks, and what it was asked."""
    asked: list[bytes] = []

    async def answer_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(answer)
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            if then_waits:
                await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            asked.append(b"")
        finally:
            writer.close()

    server = await asyncio.start_server(answer_one, HOST, 0)
    try:
        yield server.sockets[0].getsockname()[1], asked
        await until(lambda: bool(asked))
    finally:
        server.close()


@pytest.mark.parametrize(
    ("answer", "miss"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", ""),
        (b"HTTP/1.0 204\r\n\r\n", ""),
        (b"HTTP/1.1 399 Hm\r\nmore: of it\r\n\r\n" + b"x" * 100_000, ""),
        (b"HTTP/1.1 302 Found\r\n", ""),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", "GET /health answers 503"),
        (b"HTTP/1.1 199 Hm\r\n", "GET /health answers 199"),
        (b"HTTP/1.1 404 \r\n", "GET /health answers 404"),
        (b"HTTP/1.1 200 OK\n", "GET /health is not answered in HTTP"),
        (b"HTTP/2 200 OK\r\n", "GET /health is not answered in HTTP"),
        (b"HTTP/1.1  200 OK\r\n", "GET /health is not answered in HTTP"),
        (b"HTTP/1.1 2000 OK\r\n", "GET /health is not answered in HTTP"),
        (b"HTTP/1.1 200OK\r\n", "GET /health is not answered in HTTP"),
        (b"HTTP/1.1 900 OK\r\n", "GET /health is not answered in HTTP"),
        (b"hello\r\n", "GET /health is not answered in HTTP"),
        (b"x" * 1_000_000, "GET /health is not answered in HTTP"),
        (b"", "GET /health: the connection was closed without an answer"),
        (b"HTTP/1.1 200", "GET /health: the connection was closed without an answer"),
    ],
)
async def test_the_status_line_alone_says_it_and_is_read_strictly(answer: bytes, miss: str) -> None:
    async with answering(answer) as (port, _):
        assert await probe(HOST, port, "/health") == miss


async def test_it_is_asked_as_http_1_1_and_to_close() -> None:
    async with answering(b"HTTP/1.1 200 OK\r\n") as (port, asked):
        await probe(HOST, port, "/health?deep=1")
    assert asked == [
        f"GET /health?deep=1 HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode("ascii")
    ]


async def test_without_a_path_an_open_port_is_enough() -> None:
    async with answering(b"") as (port, _):
        assert await probe(HOST, port, "") == ""


@pytest.mark.parametrize("path", ["", "/health"])
async def test_a_closed_port_is_waited_for(path: str) -> None:
    port = kept_port()
    assert await probe(HOST, port, path) == f"waits for 127.0.0.1:{port} to open"


async def test_a_program_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "ANSWER_S_MAX", 0.05)
    async with answering(b"", then_waits=True) as (port, _):
        assert await probe(HOST, port, "/health") == "GET /health does not answer within 0.05 s"


async def test_a_forwarded_port_is_open_where_a_connection_stays() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    inside = "port 80 of its container"
    server = await asyncio.start_server(hang_up, HOST, 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert await probe(HOST, port, "", forwarded_to=inside) == f"waits for {inside} to open"
        said = await probe(HOST, port, "/health", forwarded_to=inside)
        assert said == f"GET /health: the connection was closed without an answer; maybe nothing listens on {inside}"
    async with answering(b"HTTP/1.1 200 OK\r\n\r\n", then_waits=True) as (port, _):
        assert await probe(HOST, port, "/health", forwarded_to=inside) == ""
    async with answering(b"", then_waits=True) as (port, _):
        assert await probe(HOST, port, "", forwarded_to=inside) == ""
