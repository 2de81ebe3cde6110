"""One request and its answer, between a client of this gateway and a replica: streamed both ways, ended with either."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from .core.headers import Header, Origin, to_browser, value_of
from .core.token_counts import TokenReader, Tokens
from .held_bodies import HeldBody
from .upstream import Connection, Reached, ReplicaFailed

STALLED_S_MAX = 600.0
"""A program that takes nothing of a request's body for so long is given up, and so is a client that takes nothing of
the answer. How long a program thinks has no bound but the client's patience."""

MESSAGES_MAX = 2
"""Pieces of a request's body, or messages of a WebSocket, that are read ahead; a piece is as much as has come, a few
hundred kB at most."""

IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
"""Methods whose request may be sent again, if nothing of its body has left and nothing of an answer has come."""


class Passed(NamedTuple):
    """A request as a program gets it. `target` is the path with its query."""

    method: str
    target: bytes
    headers: list[Header]
    has_body: bool
    origin: Origin


class Client:
    """The client's side of one request or WebSocket."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.is_gone = False
        self.is_body_used = False
        """Whether something of the request's body was taken."""

        self.is_answered = False
        """Whether the answer has begun."""

        self.ends_by_itself = False
        """Whether a client that goes away is told by a message, and not by an end."""

        self.status = 0
        """That of the program's answer, once it has begun."""

        self.is_whole = False
        """Whether the program's answer was passed on to its end."""

        self.said: list[Header] = []
        """What the gateway itself says in the answer's head."""

        self.reads_tokens = False
        """Whether the answer is read for how many tokens the request took."""

        self._reader: TokenReader | None = None
        self._held: HeldBody | None = None

    async def send(self, message: Message) -> None:
        """Answer with a message of ASGI."""
        raise NotImplementedError

    def may_send_again(self, problem: ReplicaFailed) -> bool:
        """Whether a request that a replica did not answer can go to another one."""
        is_harmless = not problem.was_sent or self.scope.get("method") in IDEMPOTENT
        return is_harmless and not self.is_body_used and not self.is_answered

    async def refuse(self, response: Response) -> None:
        """Answer with what the gateway itself says, unless the program's answer has begun: that one then breaks off."""
        if not self.is_answered:
            self.is_answered = self.ends_by_itself = True
            await response(self.scope, _nothing_comes, self.send)

    def tokens(self) -> Tokens | None:
        """What the answer has said of the tokens that the request took; None where nothing is known."""
        return None if self._reader is None else self._reader.tokens()

    async def hold(self, body: HeldBody) -> bytes:
        """Read the whole body, which `body` then gives again. Raises what there is no room for."""
        async for chunk in self.body():
            body.add(chunk)
        self._held, self.is_body_used = body, False
        return body.whole()

    def at_hand(self) -> tuple[bytes, bool]:
        """What is there of the request's body without waiting, which is not given again, and whether that is all."""
        return b"", False

    async def body(self) -> AsyncIterator[bytes]:
        """The request's body, as it comes, or as it was held."""
        if self._held is not None:
            for piece in self._held.pieces():
                self.is_body_used = True
                yield piece
            return
        async for chunk in self.chunks():
            self.is_body_used = True
            yield chunk

    async def chunks(self) -> AsyncIterator[bytes]:
        """The request's body, as it comes."""
        return
        yield b""

    async def begin(self, status: int, headers: list[Header]) -> None:
        """The answer begins; a part of it follows at once, if only an empty one."""
        self.is_answered, self.status = True, status
        if self.reads_tokens:
            self._reader = TokenReader(value_of(headers, b"content-type"), value_of(headers, b"content-encoding"))
        await self.send({"type": "http.response.start", "status": status, "headers": [*headers, *self.said]})

    async def pass_on(self, data: bytes) -> None:
        """A part of the answer; returns once the client has taken about as much. Raises TimeoutError."""
        if self._reader is not None:
            self._reader.read(data)
        await self.send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes) -> None:
        """The last part of the answer: it is whole."""
        if self._reader is not None:
            self._reader.read(data)
        self.ends_by_itself = self.is_whole = True
        await self.send({"type": "http.response.body", "body": data, "more_body": False})


class AsgiClient(Client):
    """A client of a request that came by uvicorn."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(scope)
        self._receive = receive
        self._send = send
        self.messages: asyncio.Queue[Message] = asyncio.Queue(MESSAGES_MAX)

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """Read what it sends as long as the block lasts, which is cancelled at once, and quietly, when it is gone."""
        task = asyncio.current_task()
        assert task is not None
        reading = asyncio.create_task(self._read(task), name="proxy-client")
        try:
            yield
        except asyncio.CancelledError:
            if not self.is_gone or task.uncancel():
                raise
        finally:
            reading.cancel()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The request's body, as it comes."""
        has_more = True
        while has_more:
            message = await self.messages.get()
            has_more = message.get("more_body", False)
            self.is_body_used = True
            if message.get("body"):
                yield message["body"]

    async def _read(self, task: asyncio.Task[object]) -> None:
        while True:
            message = await self._receive()
            is_end = message["type"].endswith(".disconnect")
            if is_end and not self.ends_by_itself:
                self.is_gone = True
                task.cancel()
                return
            if message["type"] != "websocket.connect":
                await self.messages.put(message)
            if is_end:
                return

    async def send(self, message: Message) -> None:
        """Answer with a message; it returns once about as much was taken. Raises TimeoutError."""
        async with asyncio.timeout(STALLED_S_MAX):
            await self._send(message)


async def pass_request(replica: Reached, passed: Passed, client: Client, *, is_new: bool) -> None:
    """Send a request to a replica, and its answer to the client; on a new connection, if wanted.

    Raises ReplicaFailed; TimeoutError where the client takes nothing of the answer.
    """
    connection = await replica.connection(is_new=is_new)
    is_whole = False
    try:
        await _exchange(connection, passed, client)
        is_whole = True
    except ReplicaFailed as problem:
        problem.was_kept = connection.requests > 0
        raise
    finally:
        if is_whole:
            replica.keep(connection)
        else:
            connection.abort()


async def _exchange(connection: Connection, passed: Passed, client: Client) -> None:
    """The answer may come, and end, before the body has gone."""
    body, is_all = client.at_hand() if passed.has_body else (b"", True)
    connection.begin(passed.method, passed.target, passed.headers, body, is_all=is_all)
    if is_all:
        await _answer(connection, passed, client)
        return
    sending = asyncio.create_task(_send_body(connection, client), name="proxy-body")
    try:
        await _answer(connection, passed, client)
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def _send_body(connection: Connection, client: Client) -> None:
    try:
        async for chunk in client.body():
            async with asyncio.timeout(STALLED_S_MAX):
                await connection.send(chunk, is_all=False)
        await connection.send(b"", is_all=True)
    except ReplicaFailed:
        pass  # It may have answered before it closed: what it said, or that it said nothing, is told by the answer.
    except TimeoutError:
        connection.abort()


async def _answer(connection: Connection, passed: Passed, client: Client) -> None:
    answer = await connection.answer()
    assert answer.headers is not None
    await client.begin(answer.status, to_browser(answer.headers, passed.origin))
    while not answer.is_whole:
        await client.pass_on(answer.take())
        await connection.more()
    await client.end(answer.take())


async def _nothing_comes() -> Message:
    return {"type": "http.disconnect"}
