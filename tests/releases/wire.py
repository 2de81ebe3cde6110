"""A transcript of what programs said to each other: written by a server between them, which reads no message."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from gpufleet.net import channel

FILE = "wire.jsonl.gz"
OPEN, UP, DOWN, END, MARK = "open", "up", "down", "end", "mark"
"""Kinds of lines: a call begins; a message of the client, and of the server; a call's status; a name for a moment."""

NOT_PASSED_ON = ("grpc-", "user-agent", "te", "content-type")
"""Metadata that each connection has of its own."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line: `data` is a message as it was sent; of an END `text` is the code, of an OPEN the method."""

    kind: str
    call: int = 0
    text: str = ""
    data: bytes = b""
    metadata: tuple[tuple[str, str], ...] = ()


class Recorder(grpc.GenericRpcHandler):
    """`async with Recorder(upstream) as recorder`: a server at `address` that passes calls on and keeps them."""

    def __init__(self, upstream: str) -> None:
        self.lines: list[Line] = []
        self.address = ""
        self._upstream = upstream
        self._calls = 0

    async def __aenter__(self) -> Recorder:
        # A connection of its own: while it waits to dial again, nobody else in this process does.
        options = (*channel.client_options(), ("grpc.use_local_subchannel_pool", 1))
        self._channel = grpc.aio.insecure_channel(self._upstream, options=options)
        self._server = grpc.aio.server(options=channel.server_options())
        self._server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(0)
        await self._channel.close()

    def mark(self, name: str) -> None:
        """Give this moment a name."""
        self.lines.append(Line(MARK, text=name))

    def service(self, handler_call_details: Any) -> Any:
        """Every method, as a stream of bytes both ways: so are all kinds of calls on the wire."""
        return grpc.stream_stream_rpc_method_handler(partial(self._carry, handler_call_details.method))

    async def _carry(self, method: str, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        metadata = tuple(
            (key, value) for key, value in context.invocation_metadata() if not key.startswith(NOT_PASSED_ON)
        )
        self._calls += 1
        number = self._calls
        self.lines.append(Line(OPEN, number, method, metadata=metadata))
        call: Any = self._channel.stream_stream(method)(metadata=metadata)
        sending = asyncio.create_task(self._pass_up(number, requests, call))
        code = "CANCELLED"
        try:
            async for data in call:
                self.lines.append(Line(DOWN, number, data=data))
                yield data
            code = grpc.StatusCode.OK.name
        except grpc.aio.AioRpcError as error:
            code = error.code().name
            await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata() or ()))
        finally:
            self.lines.append(Line(END, number, code))
            sending.cancel()
            call.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _pass_up(self, number: int, requests: AsyncIterator[bytes], call: Any) -> None:
        async for data in requests:
            self.lines.append(Line(UP, number, data=data))
            await call.write(data)
        await call.done_writing()


def write_lines(file: Path, lines: list[Line]) -> None:
    """Write a transcript; the same lines make the same bytes."""
    rows = (
        json.dumps(
            {
                "kind": line.kind,
                "call": line.call,
                "text": line.text,
                "data": base64.b64encode(line.data).decode(),
                "metadata": line.metadata,
            }
        )
        for line in lines
    )
    file.write_bytes(gzip.compress("".join(f"{row}\n" for row in rows).encode(), mtime=0))


def read_lines(file: Path) -> Iterator[Line]:
    """The lines of a transcript."""
    for row in gzip.decompress(file.read_bytes()).decode().splitlines():
        read = json.loads(row)
        metadata = tuple((key, value) for key, value in read["metadata"])
        yield Line(read["kind"], read["call"], read["text"], base64.b64decode(read["data"]), metadata)


def calls_of(lines: list[Line]) -> dict[int, list[Line]]:
    """The lines of each call, its OPEN first."""
    found: dict[int, list[Line]] = {}
    for line in lines:
        if line.kind != MARK:
            found.setdefault(line.call, []).append(line)
    return {number: each for number, each in found.items() if each[0].kind == OPEN}
