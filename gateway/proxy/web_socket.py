"""A WebSocket between a client and a replica: messages both ways, each side as fast as the other takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.responses import Response
from websockets.asyncio.client import ClientConnection
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.http11 import Request
from websockets.http11 import Response as Answer
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from .core.headers import Header, of_web_socket, to_browser
from .exchange import STALLED_S_MAX, AsgiClient, Passed
from .upstream import Reached, ReplicaFailed

MESSAGE_BYTES_MAX = 3_000_000
"""The longest message: it stays below what may wait for a browser that does not read (gateway/sockets.py)."""

FRAMES_MAX = 2
"""Frames of a program that are read ahead."""

PING_S = 20.0
"""A quiet connection to a replica is pinged so often. It is not closed for a late answer: the program may be busy."""

CLOSE_S_MAX = 5.0
"""How long a replica may take to say goodbye."""

NORMAL, GOING_AWAY, BAD_GATEWAY, NO_STATUS, ABNORMAL = 1000, 1001, 1014, 1005, 1006
"""Close codes. The last two are never sent: they say that there was none."""


class _Handshake(ClientProtocol):
    """A client's handshake whose headers are those of somebody else's request."""

    def __init__(self, passed: Passed, subprotocols: Sequence[str]) -> None:
        path, _, query = passed.target.decode("ascii").partition("?")
        uri = WebSocketURI(secure=False, host="replica", port=80, path=path, query=query)
        offered = [Subprotocol(each) for each in subprotocols] or None
        super().__init__(uri, subprotocols=offered, max_size=MESSAGE_BYTES_MAX)
        self._passed = passed

    def connect(self) -> Request:
        request = super().connect()
        del request.headers["Host"]
        for name, value in of_web_socket(self._passed.headers):
            request.headers[name.decode("ascii")] = value.decode("latin-1")
        return request


async def pass_web_socket(
    replica: Reached, passed: Passed, client: AsgiClient, subprotocols: Sequence[str]
) -> Response | None:
    """Shake hands as the program does, and pass messages until one side closes. Answers what it refused with.

    Raises ReplicaFailed.
    """

    def made() -> ClientConnection:
        return ClientConnection(
            _Handshake(passed, subprotocols),
            ping_interval=PING_S,
            ping_timeout=None,
            close_timeout=CLOSE_S_MAX,
            max_queue=FRAMES_MAX,
        )

    upstream = await replica.dialled(made)
    try:
        upstream.transport.write(replica.first_line)
        try:
            await upstream.handshake(user_agent_header=None)
        except InvalidStatus as refused:
            answer = refused.response
            response = Response(bytes(answer.body or b""), answer.status_code)
            response.raw_headers = [each for each in _headers(answer, passed) if each[0] != b"content-length"]
            return response
        except (InvalidHandshake, EOFError, OSError) as problem:
            raise ReplicaFailed(f"it shook no hands for a WebSocket: {problem}") from None
        upstream.start_keepalive()
        assert upstream.response is not None
        client.is_answered = client.ends_by_itself = True
        headers = _headers(upstream.response, passed)
        await client.send({"type": "websocket.accept", "subprotocol": upstream.subprotocol, "headers": headers})
        await _pass_messages(client, upstream)
    finally:
        upstream.transport.abort()
    return None


def _headers(answer: Answer, passed: Passed) -> list[Header]:
    given = [(name.lower().encode(), value.encode("latin-1")) for name, value in answer.headers.raw_items()]
    return of_web_socket(to_browser(given, passed.origin))


async def _pass_messages(client: AsgiClient, upstream: ClientConnection) -> None:
    """Until one side closes; the other one is closed with its code and reason."""
    both = {
        asyncio.create_task(_up(client, upstream), name="proxy-socket-up"),
        asyncio.create_task(_down(client, upstream), name="proxy-socket-down"),
    }
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in both:
            each.cancel()
        await asyncio.gather(*both, return_exceptions=True)


async def _up(client: AsgiClient, upstream: ClientConnection) -> None:
    while (message := await client.messages.get())["type"] == "websocket.receive":
        data = message.get("bytes")
        async with asyncio.timeout(STALLED_S_MAX):
            await upstream.send(message["text"] if data is None else data)
    code = message.get("code", NO_STATUS)
    await upstream.close(GOING_AWAY if code in (NO_STATUS, ABNORMAL) else code, message.get("reason") or "")


async def _down(client: AsgiClient, upstream: ClientConnection) -> None:
    try:
        while True:
            message = await upstream.recv()
            kind = "text" if isinstance(message, str) else "bytes"
            async with asyncio.timeout(STALLED_S_MAX):
                await client.send({"type": "websocket.send", kind: message})
    except ConnectionClosed as closed:
        # What the program said, else what it was told: that its message is too long, for one.
        last = closed.rcvd or closed.sent
        code, reason = (last.code, last.reason) if last is not None else (BAD_GATEWAY, "")
        code = NORMAL if code == NO_STATUS else code
        await client.send({"type": "websocket.close", "code": code, "reason": reason})
