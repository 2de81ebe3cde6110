"""The API as it is served: a route for each path of the table, the refusal of every other one, and openapi.json."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gpufleet.errors import Code, GpufleetError, Reason, invalid
from gpufleet.net.json_messages import shown
from gpufleet.telemetry.logs import fields

from ..dashboard.guard import NO_HEADERS, bearer_in, check_origin, json_body, length_of, on_a_thread_if_long, refusal
from ..dashboard.serving import Dashboard
from ..dashboard.streamed import BrokenOff
from ..dashboard.streams import Events
from .files import Files
from .forms import is_form
from .ingesting import Ingesting
from .left_files import LEFT_PATH, LeftFiles
from .openapi import document
from .requests import KEY_HEADER, asked_of
from .table import NOT_BY_COOKIE, PREFIX, ROWS, Form, Row
from .uploads import Uploads

log = logging.getLogger(__name__)

OPENAPI_PATH = f"{PREFIX}/openapi.json"
FILE_PATH = f"{PREFIX}/files/{{digest}}"

Answer = Callable[[Request], Awaitable[Response]]

KEY_CHARS_MAX = 128
"""As long as a request_id may be."""

CUT = {"Connection": "close"}
"""What is said where a body was not read: what comes of it is no next request."""


class Api:
    """The paths of the table. Who asks, how often, and the way to the scheduler are the dashboard's matter."""

    def __init__(self, dashboard: Dashboard, uploads: Uploads, models: ASGIApp) -> None:
        """`models` answers what lies under /m: a file that comes may be for one of them."""
        self._dashboard = dashboard
        self._files = Files(dashboard, uploads)
        self._left_files = LeftFiles(dashboard)
        self._ingesting = Ingesting(dashboard, uploads, models)

    def routes(self, others: Sequence[BaseRoute] = ()) -> list[BaseRoute]:
        """What it answers: everything below PREFIX, behind `others`, which answer there, too."""
        by_path: dict[str, dict[str, Row]] = {}
        for row in ROWS:
            by_path.setdefault(row.path, {})[row.verb] = row
        # A word of a path stands before a parameter that could be the same.
        paths = sorted(by_path, key=lambda path: [part.startswith("{") for part in path.split("/")])
        described = Route(OPENAPI_PATH, _openapi)
        unknown = _Endpoint(_refusing([*others, described]))
        files = {"PUT": self._files.put, "GET": self._files.get, "HEAD": self._files.get}
        return [
            described,
            *(Route(path, _Endpoint(self._answering(by_path[path]))) for path in paths),
            Route(FILE_PATH, _Endpoint(_guarded(files))),
            Route(LEFT_PATH, _Endpoint(_guarded({"GET": self._left_files.get, "HEAD": self._left_files.get}))),
            Route(PREFIX, unknown),
            Route(PREFIX + "/{rest:path}", unknown),
        ]

    def _answering(self, rows: Mapping[str, Row]) -> Answer:
        calls: dict[str, Answer] = {verb: partial(self._call, row) for verb, row in rows.items()}
        if "GET" in rows and rows["GET"].form is Form.OBJECT:
            calls["HEAD"] = calls["GET"]
        return _guarded(calls)

    async def _call(self, row: Row, request: Request) -> Response:
        if row.rpc in ("Submit", "Ingest") and is_form(request):
            take = self._ingesting.submit if row.rpc == "Submit" else self._ingesting.ingest
            return await take(request, _key(request))
        token = self._dashboard.token_in(request, by_cookie=row.rpc not in NOT_BY_COOKIE)
        if row.has_body:
            await self._dashboard.know_sender_if_long(request, token)
        body = await _body(row, request)
        in_path, query, key = request.path_params, request.query_params.multi_items(), _key(request)
        asked = await on_a_thread_if_long(length_of(request), lambda: asked_of(row, in_path, query, body, key))
        if row.rpc == "Ingest":
            return await self._ingesting.ingest_stored(request, asked, token)
        if row.form is Form.OBJECT:
            return await self._dashboard.answer(request, row.rpc, asked, token)
        chunks = lines if row.form is Form.LINES else written
        return await self._dashboard.stream(request, row.rpc, asked, token, row.form.value, chunks)


async def lines(events: Events) -> AsyncIterator[bytes]:
    """One message a line, and an empty line in a long silence. The last line of what is refused midway is its error;
    a stream that breaks off otherwise is cut."""
    async for kind, text in events.parts():
        match kind:
            case "message" | "quiet":
                yield text + b"\n"
            case "error":
                yield b'{"error":' + text + b"}\n"
                return
            case _:
                return
    raise BrokenOff


async def written(events: Events) -> AsyncIterator[bytes]:
    """The bytes that a job or a program wrote; cut where they break off, since there is no place for a word of ours."""
    async for kind, told in events.news():
        if kind == "message":
            data: bytes = getattr(told, "data", b"")
            if data:
                yield data
        elif kind == "end":
            return
        elif isinstance(told, GpufleetError):
            log.info("an output breaks off", extra=fields(why=told.message))
            break
    raise BrokenOff


class _Endpoint:
    """An answer to whatever method: Starlette itself would refuse others, without a word."""

    def __init__(self, answer: Callable[[Request], Awaitable[Response]]) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(Request(scope, receive))
        await response(scope, receive, send)


def _guarded(calls: Mapping[str, Answer]) -> Answer:
    """The answers by method, for this gateway's own pages and programs alone, with their errors told."""

    async def answer(request: Request) -> Response:
        try:
            if request.method not in calls:
                return _not_allowed(request, set(calls))
            check_origin(request)
            return await calls[request.method](request)
        except GpufleetError as error:
            if error.code is Code.INTERNAL:
                log.error("a call of the API failed", extra=fields(path=request.url.path, why=error.message))
            return _refused(request, error)

    return answer


def _refusing(others: Sequence[BaseRoute]) -> Callable[[Request], Awaitable[Response]]:
    """The answer where there is no such path, or only another method of it."""

    async def answer(request: Request) -> Response:
        found = [each for each in others if isinstance(each, Route) and each.matches(request.scope)[0] is Match.PARTIAL]
        if found:
            return _not_allowed(request, {verb for each in found for verb in each.methods or ()})
        error = GpufleetError(Reason.PATH_UNKNOWN, f"there is no {shown(request.url.path)!r}")
        return _refused(request, error)

    return answer


def _not_allowed(request: Request, verbs: set[str]) -> Response:
    allowed = ", ".join(sorted(verbs))
    message = f"{shown(request.url.path)} takes {allowed}, and not {shown(request.method)}"
    return _refused(request, GpufleetError(Reason.VERB_UNKNOWN, message), {"Allow": allowed})


def _refused(request: Request, error: GpufleetError, headers: Mapping[str, str] = NO_HEADERS) -> Response:
    is_unread = _has_body(request) and not getattr(request, "_stream_consumed", False)
    return refusal(error, {**headers, **CUT} if is_unread else headers)


def _has_body(request: Request) -> bool:
    return "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"


async def _body(row: Row, request: Request) -> Mapping[str, Any]:
    """The fields that the body says. None at all stands for none, but not where a cookie says who asks: a form of
    another site can send that, too."""
    if not row.has_body:
        if _has_body(request):
            raise invalid("body", f"is not taken by {row.verb}; its fields stand in the query")
        return {}
    if not _has_body(request) and bearer_in(request) is not None:
        return {}
    return await json_body(request)


def _key(request: Request) -> str | None:
    keys = request.headers.getlist(KEY_HEADER)
    if len(keys) > 1 or (keys and not 0 < len(keys[0]) <= KEY_CHARS_MAX):
        raise invalid(KEY_HEADER, f"must be said once, with 1 to {KEY_CHARS_MAX} characters")
    return keys[0] if keys else None


async def _openapi(request: Request) -> Response:
    return Response(document(), media_type="application/json", headers={"Cache-Control": "no-cache"})
