"""Served programs under one address, `/v1`, as clients of OpenAI's API ask: the body's `model` names the program.

A POST goes to a replica of that program with the path, the headers and the body that it came with, and its answer comes
back as it is written; what the program does not speak, it refuses itself. `GET /v1/models` tells which programs there
are for who asks. Everything else has no body that names a program, and goes by the program's own address, /m/NAME/v1/.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from gpufleet.v1 import sessions_pb2
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount
from starlette.types import Receive, Scope, Send

from gpufleet.errors import GpufleetError, Reason
from gpufleet.telemetry.logs import fields

from ..dashboard.guard import NOT_KEPT, address_of
from .access import caller_of
from .core.headers import value_of
from .core.hosts import NAME
from .core.named_model import NoName, is_form, is_json, named_in
from .exchange import AsgiClient, Client
from .held_bodies import BODY_S_MAX, HeldBodies, HeldBody, check_length
from .listing import OPEN, programs_for
from .openai_errors import Refused, response_of
from .service import Busy
from .serving import PREFIX, Proxy
from .upstream import ReplicaFailed

log = logging.getLogger(__name__)

BASE = "/v1"
MODELS = f"{BASE}/models"

AT_ONCE_BYTES_MAX = 16_384
"""A longer body is looked through on a thread, so that nobody's frames wait for it."""

NAME_SHOWN_MAX = 80
"""So many characters of a name that is none are told back."""


class OpenAi:
    """The programs of a gateway by the names in bodies. `proxy` holds the programs, and is running."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._held = HeldBodies()

    def routes(self) -> list[BaseRoute]:
        """What it answers."""
        return [Mount(BASE, app=self)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        client = AsgiClient(scope, receive, send)
        async with client.followed():
            await self.answer(client)

    async def answer(self, client: Client) -> None:
        """Answer a client's request."""
        refused = await self._answered(HTTPConnection(client.scope), client)
        if refused is not None:
            await client.refuse(refused)

    async def _answered(self, request: HTTPConnection, client: Client) -> Response | None:
        """Have it answered, or say what to answer instead."""
        try:
            path = request.scope["raw_path"].decode("latin-1")
            match request.scope.get("method"):
                case "GET" | "HEAD" if path == MODELS:
                    return JSONResponse({"object": "list", "data": await self._models(request)}, headers=NOT_KEPT)
                case "GET" | "HEAD" if path.startswith(f"{MODELS}/"):
                    return await self._model(request, path.removeprefix(f"{MODELS}/"))
                case "POST":
                    return await self._pass(request, client)
                case _:
                    raise Refused(
                        404,
                        "unknown_url",
                        f"Only a POST whose body names a model, and GET {MODELS}, are answered here. What names none "
                        f"goes by the program's own address: {PREFIX}/MODEL{BASE}/…",
                    )
        except (Refused, NoName, Busy, ReplicaFailed, GpufleetError) as problem:
            return response_of(problem)
        except TimeoutError:
            log.info("a client takes nothing of its answer", extra=fields(address=address_of(request)))
            return None

    # --- which models there are

    async def _models(self, request: HTTPConnection) -> list[dict[str, Any]]:
        """The programs that this person may use. Raises LOGIN_NEEDED for a stranger where none is open."""
        programs, user = await programs_for(self._proxy, request)
        return [_shown(each, user) for each in programs]

    async def _model(self, request: HTTPConnection, name: str) -> Response:
        for each in await self._models(request):
            if each["id"] == name:
                return JSONResponse(each, headers=NOT_KEPT)
        raise _no_model(name)

    # --- requests

    async def _pass(self, request: HTTPConnection, client: Client) -> Response | None:
        content_type = _check_head(request)
        # Who it is counts for how much is held of theirs, before it is known what they may use.
        user = await self._proxy.access.user_of(request, OPEN)
        with self._held.hold(caller_of(request, user), is_known=bool(user)) as held:
            name = await _named(client, held, content_type)
            if not NAME.fullmatch(name):
                raise _no_model(name)
            async with self._proxy.watching.service(name) as service:
                user = await self._proxy.access.user_of(request, service.access)
                return await self._proxy.pass_on(service, request, request.scope["raw_path"], user, client)


def _check_head(request: HTTPConnection) -> str:
    """What the body is, if it can be looked into. Raises Refused, MESSAGE_TOO_LARGE."""
    headers = request.headers.raw
    coding = value_of(headers, b"content-encoding").strip().lower()
    if coding not in ("", "identity"):
        text = f"The body is compressed ({coding[:NAME_SHOWN_MAX]}), and is not looked into: send it as it is."
        raise Refused(415, "unsupported_content_encoding", text)
    content_type = value_of(headers, b"content-type")
    media_type = content_type.partition(";")[0].strip().lower()
    if not is_json(media_type) and not is_form(media_type):
        text = "The body must be JSON, with Content-Type: application/json, or a form of multipart/form-data."
        raise Refused(415, "unsupported_content_type", text)
    length = value_of(headers, b"content-length")
    check_length(int(length) if length.isascii() and length.isdigit() else 0)
    return content_type


async def _named(client: Client, held: HeldBody, content_type: str) -> str:
    """The model that the body names, once all of it has come. Raises NoName, DEADLINE, what there is no room for."""
    try:
        async with asyncio.timeout(BODY_S_MAX):
            body = await client.hold(held)
    except TimeoutError:
        raise GpufleetError(Reason.DEADLINE, f"the request did not come within {BODY_S_MAX:g} s") from None
    if len(body) <= AT_ONCE_BYTES_MAX:
        return named_in(body, content_type)
    looking = asyncio.create_task(asyncio.to_thread(named_in, body, content_type), name="named-model")
    try:
        return await asyncio.shield(looking)
    except asyncio.CancelledError:
        # A thread is not stopped: as long as it has the body, that counts as held, though its client is gone.
        await asyncio.wait([looking])
        raise


def _no_model(name: str) -> Refused:
    text = f"The model {name[:NAME_SHOWN_MAX]!a} does not exist. See those that do with GET {MODELS}."
    return Refused(404, "model_not_found", text, "model")


def _shown(model: sessions_pb2.Model, user: str) -> dict[str, Any]:
    """A program as a model of OpenAI's API. Whose it is is told to people who are known; since when is not known."""
    return {"id": model.name, "object": "model", "created": 0, "owned_by": model.owner if user else "gpufleet"}
