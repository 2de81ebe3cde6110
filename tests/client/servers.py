"""Real servers on loopback that speak the Open Inference Protocol well, or misbehave as a script says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

MODEL = "double"


@dataclass(frozen=True)
class HttpRequest:
    """A request as a server got it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def items(self) -> list[Any]:
        """The JSON data of its input."""
        data: list[Any] = json.loads(self.body)["inputs"][0]["data"]
        return data


Script = Callable[["Server", HttpRequest, asyncio.StreamWriter], Awaitable[None]]
"""Answers one infer request, or does something else with its connection."""


@dataclass
class Server:
    """A worker. `scripts` are what its infer requests meet, one each; then it doubles numbers."""

    scripts: Iterator[Script] = field(default_factory=lambda: iter(()))
    device: str = "cuda:0"
    datatype: str = "FP64"
    ready_status: int = 200
    prefix: str = ""
    address: str = ""
    infers: list[HttpRequest] = field(default_factory=list)
    requests: list[HttpRequest] = field(default_factory=list)
    open: set[asyncio.StreamWriter] = field(default_factory=set)
    server: asyncio.Server | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        """One request."""
        self.requests.append(request)
        self.news.set()
        path = request.path.removeprefix(self.prefix)
        if path == f"/v2/models/{MODEL}/ready":
            await respond(writer, self.ready_status, {"error": "not ready"} if self.ready_status != 200 else {})
        elif path == f"/v2/models/{MODEL}":
            inputs = [{"name": "x", "datatype": self.datatype, "shape": [-1]}]
            await respond(writer, 200, {"name": MODEL, "inputs": inputs, "parameters": {"device": self.device}})
        elif path == f"/v2/models/{MODEL}/infer":
            self.infers.append(request)
            self.news.set()
            script = next(self.scripts, doubles)
            await script(self, request, writer)
        else:
            await respond(writer, 404, {"error": f"there is no {path}"})

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.open.add(writer)
        try:
            while (request := await read_request(reader)) is not None:
                await self.answer(request, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open.discard(writer)
            writer.transport.abort()

    async def asked(self, count: int = 1) -> None:
        """Wait until so many infer requests have come, or, of 0, anything."""
        while len(self.infers) < count or not self.requests:
            self.news.clear()
            await self.news.wait()

    def die(self) -> None:
        """Take no connections any more, and break those there are."""
        assert self.server is not None
        self.server.close()
        for writer in list(self.open):
            writer.transport.abort()


async def read_request(reader: asyncio.StreamReader) -> HttpRequest | None:
    """The next request of a connection; None at its end."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    except asyncio.IncompleteReadError:
        return None
    method, path, _ = head[0].split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return HttpRequest(method, path, headers, body)


async def respond(writer: asyncio.StreamWriter, status: int, document: Any, **headers: str) -> None:
    """A whole answer."""
    await send(writer, status, json.dumps(document).encode(), **headers)


async def send(writer: asyncio.StreamWriter, status: int, body: bytes, **headers: str) -> None:
    """The same of bytes."""
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    await writer.drain()


def doubled(values: list[Any], **parameters: Any) -> dict[str, Any]:
    """The right answer."""
    data = [value * 2 if isinstance(value, (int, float)) else 0 for value in values]
    output = {"name": "y", "datatype": "FP64", "shape": [len(values)], "data": data}
    return {"model_name": MODEL, "outputs": [output], **({"parameters": parameters} if parameters else {})}


async def doubles(server: Server, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
    """Answers as it should."""
    await respond(writer, 200, doubled(request.items))


async def closes(server: Server, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
    """Ends the connection without an answer."""
    writer.transport.abort()


async def closes_early(server: Server, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
    """Ends it within the answer."""
    writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{"outputs": [')
    await writer.drain()
    writer.close()


async def never_answers(server: Server, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
    """Until the client goes away."""
    await writer.wait_closed()


async def garbage(server: Server, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
    """An answer of HTTP that is no JSON."""
    await send(writer, 200, b"\x00\xff garbage")


async def no_http(server: Server, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
    """Something else altogether."""
    writer.write(b"SSH-2.0-x\r\n\r\n")
    await writer.drain()


async def too_few(server: Server, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
    """One answer less than was asked."""
    await respond(writer, 200, doubled(request.items[:-1]))


def says(status: int, document: Any = None, **headers: str) -> Script:
    """Answers with this status."""

    async def answer(server: Server, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        await respond(writer, status, document or {"error": f"scripted {status}"}, **headers)

    return answer


def rejects(bad: float, status: int = 422) -> Script:
    """An item of this value has an error of its own."""

    async def answer(server: Server, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        places = [str(place) for place, value in enumerate(request.items) if value == bad]
        parameters = {"errors": dict.fromkeys(places, "ValueError: bad"), "statuses": dict.fromkeys(places, status)}
        if len(places) == len(request.items):
            said = {"parameters": parameters} if len(places) > 1 else {}
            await respond(writer, status, {"error": "ValueError: bad", **said})
        else:
            await respond(writer, 200, doubled(request.items, **(parameters if places else {})))

    return answer


@asynccontextmanager
async def serving(*scripts: Script, **about: Any) -> AsyncIterator[Server]:
    """A server for the block."""
    server = Server(iter(scripts), **about)
    server.server = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    host, port = server.server.sockets[0].getsockname()
    server.address = f"{host}:{port}"
    try:
        yield server
    finally:
        server.die()
        await server.server.wait_closed()
