"""A login at the gateway's own pages is handed over to a program's own host, whose page never learns the token.

    at chat.gpus.example            │ ─▶ 303 to gpus.example/dashboard#/open/chat/STATE/PATH, with a cookie STATE
    at the dashboard, once logged in│ ─▶ POST /api/v1/programs/chat/enter ─▶ an address with a sealed code
    at chat.gpus.example/.gpufleet/ │ ─▶ code and cookie belong together: a cookie of this host, and 303 to PATH

Each cookie is of one host alone, so that a program's page gets neither the dashboard's nor another program's. The code
holds for a minute and in the browser that began, so that nobody can be logged in as somebody else by a link.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from typing import Any
from urllib.parse import quote, urlencode

from cryptography.fernet import Fernet, InvalidToken
from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse, Response

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.security.tokens import is_token

from ..dashboard.guard import NOT_KEPT, OWN_SITES, is_own_origin
from ..dashboard.login import name_over
from .core.hosts import ProgramHost, is_path

OWN_PATHS = "/.gpufleet/"
"""What the gateway itself answers at a program's host."""

ENTER = f"{OWN_PATHS}enter"

LOGIN_SECONDS = 12 * 3600
"""How long a login at a program's host holds; then the dashboard, where one still is logged in, hands it over anew."""

CODE_SECONDS = 60
"""How long a code of the dashboard's is taken."""

BEGUN_SECONDS = 3600
"""How long one may take to log in to the dashboard in between."""

PATH_CHARS_MAX = 2_000
"""A longer path is not come back to: the program's first page is shown."""

STATE_CHARS = 32
STATE_COOKIE = "gpufleet_entering"


class Handover:
    """Makes and opens what passes between the two hosts. Gateways that hold the same token open each other's."""

    def __init__(self, gateway_token: str) -> None:
        self._codes = _sealer(gateway_token, b"gpufleet program code")
        self._logins = _sealer(gateway_token, b"gpufleet program login")
        digest = hmac.digest(gateway_token.encode(), b"gpufleet program cookie", "sha256").hex()
        self._cookie = f"gpufleet_program_{digest[:12]}"

    def begin(self, request: HTTPConnection, host: ProgramHost) -> Response:
        """Send a browser to the dashboard, which knows who it is or asks."""
        state = secrets.token_hex(STATE_CHARS // 2)
        query: bytes = request.scope["query_string"]
        wanted = (request.scope["raw_path"] + (b"?" + query if query else b"")).decode("latin-1")
        path = wanted if is_path(wanted) and len(wanted) <= PATH_CHARS_MAX else "/"
        route = quote(f"{host.name}/{state}{path}", safe="")
        response = RedirectResponse(f"{request.url.scheme}://{host.home}/dashboard#/open/{route}", 303, NOT_KEPT)
        _set_cookie(response, request, STATE_COOKIE, state, BEGUN_SECONDS)
        return response

    def address(self, request: HTTPConnection, name: str, token: str, said: dict[str, Any]) -> str:
        """Where the dashboard sends the browser of whoever's token this is. Raises INVALID_ARGUMENT."""
        state, path = said.get("state"), said.get("path")
        if not isinstance(state, str) or len(state) != STATE_CHARS or not state.isalnum():
            raise invalid("state", "is what the program's host has put into the dashboard's address")
        if not isinstance(path, str) or not is_path(path):
            raise invalid("path", "must begin with one '/', and hold no space")
        code = self._codes.seal([token, name, hashlib.sha256(state.encode()).hexdigest(), path])
        return f"{request.url.scheme}://{name}.{request.headers['host']}{ENTER}?{urlencode({'code': code})}"

    def finish(self, request: HTTPConnection, name: str) -> Response:
        """Let the browser of a code in. Raises LOGIN_NEEDED for one of another program or browser, or an old one."""
        state = request.cookies.get(name_over(request, STATE_COOKIE), "")
        opened = self._codes.opened(request.query_params.get("code", ""), CODE_SECONDS)
        if opened is None or opened[1:3] != [name, hashlib.sha256(state.encode()).hexdigest()]:
            raise GpufleetError(
                Reason.LOGIN_NEEDED,
                "this login was begun in another browser, or too long ago, or the browser keeps no cookies here",
                next_step=f"Open the first page of {name!r} again.",
            )
        token, _, _, path = opened
        response = RedirectResponse(path, 303, NOT_KEPT | {"Referrer-Policy": "no-referrer"})
        _set_cookie(response, request, self._cookie, self._logins.seal([token, name]), LOGIN_SECONDS)
        is_secure = request.url.scheme == "https"
        response.delete_cookie(name_over(request, STATE_COOKIE), httponly=True, samesite="lax", secure=is_secure)
        return response

    def login_of(self, request: HTTPConnection, name: str) -> str:
        """The token of who is logged in at this program's host; empty for nobody, and for what other pages send."""
        opened = self._logins.opened(request.cookies.get(name_over(request, self._cookie), ""), LOGIN_SECONDS)
        if opened is None or opened[1] != name or not _is_from_here(request):
            return ""
        return opened[0] if is_token(opened[0]) else ""


class _Sealer:
    """Texts that nobody but a gateway with the same token reads or makes."""

    def __init__(self, key: bytes) -> None:
        self._fernet = Fernet(base64.urlsafe_b64encode(key))

    def seal(self, texts: list[str]) -> str:
        return self._fernet.encrypt(json.dumps(texts).encode()).decode()

    def opened(self, sealed: str, seconds_max: int) -> list[str] | None:
        try:
            texts: list[str] = json.loads(self._fernet.decrypt(sealed.encode(), ttl=seconds_max))
        except (InvalidToken, UnicodeError):
            return None
        return texts


def _sealer(gateway_token: str, purpose: bytes) -> _Sealer:
    return _Sealer(hmac.digest(gateway_token.encode(), purpose, "sha256"))


def is_navigation(request: HTTPConnection) -> bool:
    """Whether a person opens a page, and can be sent elsewhere to log in."""
    if request.scope["type"] != "http" or request.scope["method"] != "GET":
        return False
    mode = request.headers.get("sec-fetch-mode")
    return mode == "navigate" if mode is not None else "text/html" in request.headers.get("accept", "")


def _is_from_here(request: HTTPConnection) -> bool:
    """Whether a page of this very host asks, or a person who opens an address: a browser adds the cookie also to what
    pages of hosts beside this one send."""
    if not is_own_origin(request.headers.get("origin"), request.headers.get("host")):
        return False
    site = request.headers.get("sec-fetch-site")
    return site is None or site in OWN_SITES or is_navigation(request)


def _set_cookie(response: Response, request: HTTPConnection, name: str, value: str, seconds: int) -> None:
    is_secure = request.url.scheme == "https"
    name = name_over(request, name)
    response.set_cookie(name, value, max_age=seconds, httponly=True, samesite="lax", secure=is_secure)
