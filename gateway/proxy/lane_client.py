"""The client of one request that came by `lane.py`: its body as it comes, and its answer as bytes of HTTP/1.1."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Protocol

from starlette.types import Message, Scope

from .core.headers import Header
from .core.plain_request import PlainRequest
from .exchange import Client

_STATUS_LINES = {each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\n".encode("ascii") for each in HTTPStatus}
_PROXY_SAID = (b"x-forwarded-for", b"x-forwarded-proto")


class ClientConnection(Protocol):
    """The connection that a request came by: a Lane."""

    def lets_go(self) -> bool:
        """Whether the connection ends behind this answer."""
        ...

    def said_always(self) -> bytes:
        """What stands in the head of every answer."""
        ...

    def write(self, data: bytes) -> None:
        """A part of the answer."""
        ...

    async def drained(self) -> None:
        """Return once the client has taken about what was written. Raises TimeoutError."""
        ...

    def resume_reading(self) -> None:
        """There is room for what the client says."""
        ...


class LaneClient(Client):
    """The client of one request on a lane."""

    def __init__(self, scope: Scope, lane: ClientConnection, request: PlainRequest) -> None:
        super().__init__(scope)
        self._lane = lane
        self.is_last = request.is_last
        """Whether the connection ends behind the answer."""

        self.is_ended = False
        """Whether the whole answer was written, the program's or the gateway's own."""

        self.is_forwarded = any(name in _PROXY_SAID for name, _ in request.headers)
        self.lacks_bytes = request.body_bytes
        """How much of the request's body has not come."""

        self.unread_bytes = 0
        self._pieces: list[bytes] = []
        self._has_more: asyncio.Future[None] | None = None
        self._head = b""
        self._is_chunked = False
        self._has_no_body = False

    # --- its request

    def take_in(self, data: bytes) -> bytes:
        """More has come; answers what is no part of the body."""
        piece = data[: self.lacks_bytes]
        self.lacks_bytes -= len(piece)
        self.unread_bytes += len(piece)
        self._pieces.append(piece)
        if self._has_more is not None and not self._has_more.done():
            self._has_more.set_result(None)
        return data[len(piece) :]

    def at_hand(self) -> tuple[bytes, bool]:
        """What has come of the body, and whether that is all."""
        if self._held is not None:
            return super().at_hand()
        piece = self._taken()
        return piece, not self.lacks_bytes

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body, as it comes."""
        while True:
            if self._pieces:
                yield self._taken()
            if self._pieces:
                continue
            if not self.lacks_bytes:
                return
            self._has_more = asyncio.get_running_loop().create_future()
            await self._has_more

    def _taken(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        self.unread_bytes = 0
        if self.lacks_bytes:
            self._lane.resume_reading()
        if pieces:
            self.is_body_used = True
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    # --- its answer

    async def send(self, message: Message) -> None:
        """What ASGI calls so. The head leaves with the first part of the body. Raises TimeoutError."""
        if message["type"] == "http.response.start":
            self._head = self._head_of(message["status"], message["headers"])
            return
        await self._lane.drained()
        data, is_end = message.get("body", b""), not message.get("more_body", False)
        if self._has_no_body:
            data = b""
        elif self._is_chunked:
            data = (b"%x\r\n%b\r\n" % (len(data), data) if data else b"") + (b"0\r\n\r\n" if is_end else b"")
        head, self._head = self._head, b""
        self.is_ended = is_end
        if head or data:
            self._lane.write(head + data)

    def _head_of(self, status: int, headers: list[Header]) -> bytes:
        names = [name for name, _ in headers]
        self._has_no_body = self.scope["method"] == "HEAD" or status in (204, 304)
        self._is_chunked = not self._has_no_body and b"content-length" not in names
        self.is_last = self.is_last or self._lane.lets_go()
        lines = [b"%b: %b\r\n" % header for header in headers]
        if self._is_chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        if self.is_last:
            lines.append(b"connection: close\r\n")
        first = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
        return b"".join([first, self._lane.said_always(), *lines, b"\r\n"])
