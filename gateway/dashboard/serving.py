"""The dashboard's side of the gateway: `/api/v1/login`, `logout`, `me`, `rpc/METHOD`, `stream/METHOD` and `streams`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from google.protobuf.message import Message
from gpufleet.v1 import scheduler_pb2
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.net.channel import Target
from gpufleet.net.json_messages import json_object
from gpufleet.security.tokens import is_token

from .bounds import Guesses, Rates, Streams
from .calls import CALLS, STREAMS, Scheduler, Who, json_text, request_of, who_is
from .guard import (
    AT_ONCE_BYTES_MAX,
    NOT_KEPT,
    address_of,
    answered,
    as_json,
    bearer_in,
    check_origin,
    json_body,
    length_of,
    not_a_token,
    on_a_thread_if_long,
)
from .login import Seals, person_of
from .logins import Logins, who_answer
from .streamed import Streamed
from .streams import POLICY, Events, Page

log = logging.getLogger(__name__)

_Asked = TypeVar("_Asked")

BRING_STEP = "Log in to the dashboard, or send your token with the request: Authorization: Bearer gf_…"
BRING_ITSELF_STEP = "Send it with the request: Authorization: Bearer gf_…"

STREAM_REQUEST_CHARS_MAX = 8_000
"""The request of a stream comes in its address."""


class Dashboard:
    """One gateway's dashboard. `running` holds its way to the scheduler; `leave` ends its streams."""

    def __init__(self, target: Target, gateway_token: str) -> None:
        self._target = target
        self._seals = Seals(gateway_token)
        self._rates = Rates()
        self._streams = Streams()
        self._guesses = Guesses()
        self._logins = Logins(self, self._seals, gateway_token)

    def routes(self) -> list[BaseRoute]:
        """What it answers."""
        return [
            *self._logins.routes(),
            Route("/api/v1/me", answered(self._me)),
            Route("/api/v1/rpc/{method}", answered(self._rpc), methods=["POST"]),
            Route("/api/v1/stream/{method}", answered(self._stream)),
            WebSocketRoute("/api/v1/streams", self._streams_of_a_page),
        ]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Connected as long as it lasts."""
        self._leaving = asyncio.Event()
        self._scheduler = Scheduler(self._target)
        try:
            yield
        finally:
            self._leaving.set()
            await self._scheduler.close()

    @property
    def scheduler(self) -> Scheduler:
        """The way to the scheduler, as long as it is running."""
        return self._scheduler

    async def asked(self, request: HTTPConnection, ask: Callable[[], Awaitable[_Asked]]) -> _Asked:
        """What the scheduler answers to somebody's own call; guesses of tokens are answered slowly. Raises the same."""
        return await self._checked(request, ask)

    def leave(self) -> None:
        """End the streams: their pages come back to whoever answers then."""
        self._leaving.set()

    async def _me(self, request: Request) -> Response:
        token = self.token_in(request)
        response = who_answer(await self._checked(request, lambda: who_is(self._scheduler, token)))
        if bearer_in(request) is None:
            self._logins.renew(request, response)
        return response

    async def _rpc(self, request: Request) -> Response:
        token = self.token_in(request)
        name = request.path_params["method"]
        await self.know_sender_if_long(request, token)
        said = await json_body(request)
        asked = await on_a_thread_if_long(length_of(request), lambda: request_of(CALLS, name, said))
        return await self.answer(request, name, asked, token)

    async def _stream(self, request: Request) -> Response:
        token = self.token_in(request)
        name = request.path_params["method"]
        said = request.query_params.get("request", "")
        if len(said) > STREAM_REQUEST_CHARS_MAX:
            raise invalid("request", f"is longer than {STREAM_REQUEST_CHARS_MAX:,} characters")
        asked = request_of(STREAMS, name, json_object("request", said))
        return await self.stream(request, name, asked, token, "text/event-stream", Events.chunks)

    async def answer(self, request: Request, name: str, asked: Message, token: str) -> Response:
        """A call of the scheduler with this token. Raises what it is refused with."""
        answer = await self._checked(request, lambda: self._scheduler.call(name, asked, token))
        return Response(await json_text(answer), media_type="application/json", headers=NOT_KEPT)

    async def stream(
        self,
        request: Request,
        name: str,
        asked: Message,
        token: str,
        media_type: str,
        chunks: Callable[[Events], AsyncIterator[bytes]],
    ) -> Response:
        """A stream of the scheduler with this token, as `chunks` writes it. Raises what it is refused with."""
        person = person_of(token)
        events = self._opened(name, asked, token)
        try:
            await self._checked(request, events.begin)
        except BaseException:
            self._streams.closed(person)
            await events.close()
            raise
        return Streamed(events, chunks(events), media_type, lambda: self._streams.closed(person))

    def _opened(self, name: str, asked: Message, token: str) -> Events:
        """A stream that counts as one of the person's. Raises TOO_MANY_STREAMS."""
        self._streams.open(person_of(token))
        return Events(self._scheduler, name, asked, token, self._leaving)

    async def _streams_of_a_page(self, socket: WebSocket) -> None:
        """Any number of streams of one page.

        Who is not logged in is told so behind the handshake, since a browser's script learns nothing of one that was
        refused; of a foreign page it shall not.
        """
        try:
            check_origin(socket)
        except GpufleetError:
            await socket.close()
            return
        await socket.accept()
        try:
            token = self.token_in(socket)
            await self._checked(socket, lambda: who_is(self._scheduler, token))
        except GpufleetError as error:
            with suppress(WebSocketDisconnect):
                await socket.send_text(f'{{"error":{as_json(error).decode()}}}')
                await socket.close(POLICY)
            return
        person = person_of(token)
        await Page(
            socket,
            lambda name, asked: self._opened(name, asked, token),
            lambda: self._streams.closed(person),
        ).serve()

    def token_in(self, request: HTTPConnection, *, by_cookie: bool = True) -> str:
        """The person's token, of a program or in the cookie where that may do.

        Raises TOKEN_MISSING, TOKEN_INVALID, QUOTA_EXCEEDED.
        """
        token = bearer_in(request)
        if token is None and by_cookie:
            token = self._seals.token_in(self._seals.sealed_in(request))
        if token is None:
            message = "nobody is logged in" if by_cookie else "this call wants the token itself"
            raise GpufleetError(Reason.TOKEN_MISSING, message, next_step=BRING_STEP if by_cookie else BRING_ITSELF_STEP)
        if not is_token(token):
            raise not_a_token()
        self._rates.take(person_of(token), time.monotonic())
        return token

    async def know_sender_if_long(self, request: Request, token: str) -> None:
        """Ask the scheduler whether it knows the token before a long body is read: to read it takes seconds of a
        processor, which nobody unknown is given. Raises what it is refused with."""
        if length_of(request) > AT_ONCE_BYTES_MAX:
            asked = scheduler_pb2.GetServerInfoRequest()
            await self._checked(request, lambda: self._scheduler.call("GetServerInfo", asked, token))

    async def _checked(
        self, request: HTTPConnection, ask: Callable[[], Awaitable[_Asked]], *, is_login: bool = False
    ) -> _Asked:
        """What the scheduler answers; that it does not know a token is told the more slowly the more often it is.

        A cookie is no guess, since nobody else can seal one: whoever is in is not kept waiting by who is not.
        """
        if not is_login and bearer_in(request) is None:
            return await ask()
        address = address_of(request)
        self._guesses.check(address)
        try:
            return await ask()
        except GpufleetError as error:
            if error.reason is Reason.TOKEN_INVALID:
                pause_s = self._guesses.wrong(address, time.monotonic())
                try:
                    await asyncio.sleep(pause_s)
                finally:
                    self._guesses.answered(address)
            raise

    async def who_logs_in(self, request: HTTPConnection, token: str) -> Who:
        """Whose a token is that somebody types; wrong ones are answered as slowly. Raises as `who_is` does."""
        return await self._checked(request, lambda: who_is(self._scheduler, token), is_login=True)

    def take_of_stranger(self, request: HTTPConnection) -> None:
        """One more question by somebody at this address who is not logged in. Raises QUOTA_EXCEEDED."""
        self._rates.take(f"stranger at {address_of(request)}", time.monotonic())

    def login_of(self, request: HTTPConnection) -> str:
        """The token in the cookie of who is logged in; empty for nobody, and for what a page from elsewhere sends."""
        if "cookie" not in request.headers:
            return ""
        try:
            check_origin(request)
        except GpufleetError:
            return ""
        return self._seals.token_in(self._seals.sealed_in(request)) or ""

    async def token_of(self, request: HTTPConnection) -> str:
        """The token of who asks, which the scheduler knows. Raises what `me` is refused with."""
        token = self.token_in(request)
        await self.who_asks(request, token)
        return token

    async def who_asks(self, request: HTTPConnection, token: str, *, allows_job: bool = False) -> Who:
        """Whose token this is; wrong ones of an address are answered ever more slowly. Raises as `who_is` does."""
        return await self._checked(request, lambda: who_is(self._scheduler, token, allows_job=allows_job))
