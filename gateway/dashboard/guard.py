"""Which requests are answered at all, those of this gateway's own pages and of programs with a token, and refusals."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse, Response

from gpufleet.errors import Code, GpufleetError, Reason, as_object, invalid
from gpufleet.net.json_messages import json_object
from gpufleet.security.tokens import TOKEN_CHARACTERS, TOKEN_PREFIX
from gpufleet.telemetry.logs import fields

log = logging.getLogger(__name__)

T = TypeVar("T")

BODY_BYTES_MAX = 1_000_000
"""The longest request; a longer list of jobs goes by the scheduler's own RPCs."""

AT_ONCE_BYTES_MAX = 16_000
"""A longer message is read and written on a thread, so that nobody's frames wait for it."""

BODY_S_MAX = 10.0
"""How long a request may take to come."""

OWN_SITES = ("same-origin", "none")
"""What Sec-Fetch-Site says of a page of ours, and of an address that a person typed."""


def check_origin(request: HTTPConnection) -> None:
    """Refuse what a page from elsewhere sends: a browser adds the cookie also to requests of another port's page.

    Programs send neither header. Raises PERMISSION_DENIED.
    """
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site")
    if not is_own_origin(origin, request.headers.get("host")) or (site is not None and site not in OWN_SITES):
        raise GpufleetError(
            Reason.PERMISSION_DENIED,
            f"a page of {origin or 'another site'} may not use this gateway",
            next_step="Open the dashboard at this gateway's own address; a program leaves out Origin.",
        )


def is_own_origin(origin: str | None, host: str | None) -> bool:
    """Whether a page of this host asks, or a program, which sends no origin."""
    if origin is None:
        return True
    try:
        return urlsplit(origin).netloc == host
    except ValueError:  # such as http://[x, which no browser sends
        return False


def bearer_in(request: HTTPConnection) -> str | None:
    """The token that a program brings."""
    given = next((value for name, value in request.headers.raw if name == b"authorization"), None)
    if given is None:
        return None
    scheme, _, token = given.decode("latin-1").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def address_of(request: HTTPConnection) -> str:
    """Where it comes from."""
    client: tuple[str, int] | None = request.scope.get("client")
    return client[0] if client else ""


async def json_body(request: Request) -> dict[str, Any]:
    """The object that a request carries. Raises INVALID_ARGUMENT, MESSAGE_TOO_LARGE, DEADLINE, CANCELLED."""
    # A form of another site can send text, but not this type, without this gateway's leave.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise invalid("content-type", "must be application/json", reason=Reason.CONTENT_TYPE_UNKNOWN)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S_MAX):
            async for chunk in request.stream():
                body += chunk
                if len(body) > BODY_BYTES_MAX:
                    raise GpufleetError(Reason.MESSAGE_TOO_LARGE, f"a request is at most {BODY_BYTES_MAX:,} bytes long")
    except TimeoutError:
        message = f"the request did not come within {BODY_S_MAX:g} s"
        raise GpufleetError(
            Reason.DEADLINE, message, next_step="Send all of it at once, and as much as is said."
        ) from None
    except ClientDisconnect:
        raise GpufleetError(Reason.CANCELLED) from None
    return await on_a_thread_if_long(len(body), lambda: json_object("body", bytes(body)))


def length_of(request: Request) -> int:
    """How many bytes of a body may come, before any did."""
    if "transfer-encoding" in request.headers:
        return BODY_BYTES_MAX
    return int(request.headers.get("content-length", "0"))


async def on_a_thread_if_long(length: int, work: Callable[[], T]) -> T:
    """What `work` makes of a message of so many bytes; of a long one on a thread, so that the loop goes on."""
    return await asyncio.to_thread(work) if length > AT_ONCE_BYTES_MAX else work()


def not_a_token() -> GpufleetError:
    """The refusal of a text that cannot be a token; nothing of it is told."""
    form = f"A token is {TOKEN_PREFIX} and {TOKEN_CHARACTERS} characters, without spaces."
    return GpufleetError(Reason.TOKEN_INVALID, "this is no gpufleet token", next_step=form)


STATUS_OF: Mapping[Code, int] = {
    Code.INVALID_ARGUMENT: 400,
    Code.OUT_OF_RANGE: 400,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.NOT_FOUND: 404,
    Code.FAILED_PRECONDITION: 409,
    Code.ALREADY_EXISTS: 409,
    Code.ABORTED: 409,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.CANCELLED: 499,
    Code.INTERNAL: 500,
    Code.DATA_LOSS: 500,
    Code.UNIMPLEMENTED: 501,
    Code.UNKNOWN: 502,
    Code.UNAVAILABLE: 503,
    Code.DEADLINE_EXCEEDED: 504,
}

STATUS_OF_REASON: Mapping[Reason, int] = {
    Reason.VERB_UNKNOWN: 405,
    Reason.MESSAGE_TOO_LARGE: 413,
    Reason.CONTENT_TYPE_UNKNOWN: 415,
}
"""Reasons for which HTTP has a word of its own."""

CHALLENGE = 'Bearer realm="gpufleet"'
"""What whoever is not known is told to bring."""

NOT_KEPT = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
"""What is told to one person is kept by nobody on the way."""


NO_HEADERS: Mapping[str, str] = MappingProxyType({})


def error_object(error: GpufleetError) -> dict[str, Any]:
    """The error as an answer says it."""
    return {"error": as_object(error)}


def as_json(error: GpufleetError) -> bytes:
    """The error within that, as text."""
    return json.dumps(as_object(error), ensure_ascii=False).encode(errors="replace")


def status_of(error: GpufleetError) -> int:
    """The status of its answer."""
    return STATUS_OF_REASON.get(error.reason, STATUS_OF[error.code])


def refusal(error: GpufleetError, more_headers: Mapping[str, str] = NO_HEADERS) -> Response:
    """The error as an answer: a status code that fits, and an object with what is wrong and what to do."""
    headers = {**NOT_KEPT, **more_headers}
    status = status_of(error)
    if status == 401:
        headers["WWW-Authenticate"] = CHALLENGE
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(math.ceil(error.retry_after_s))
    return JSONResponse(error_object(error), status_code=status, headers=headers)


def answered(handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """The handler, for requests of this gateway's own pages and of programs alone, with its errors told."""

    async def answer(request: Request) -> Response:
        try:
            check_origin(request)
            return await handler(request)
        except GpufleetError as error:
            if error.code is Code.INTERNAL:
                log.error("a call of the dashboard failed", extra=fields(why=error.message))
            return refusal(error)

    return answer
