"""A login with the provider, from its beginning until the browser is back: sealed into a cookie of that browser.

Nothing of it is kept here: any gateway with the same token ends what another one began. Who has no such cookie ends no
login, so that nobody is logged in as somebody else by a link; and the scheduler takes its nonce once, so that a cookie
and an address that are sent again open nothing.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from dataclasses import astuple, dataclass

from cryptography.fernet import Fernet, InvalidToken
from starlette.datastructures import URL
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from gpufleet.errors import GpufleetError, as_object, invalid
from gpufleet.security.code_login import BegunLogin

from .login import name_over

CALLBACK = "/api/v1/login/callback"
"""Where the provider sends the browser back to, at the gateway's own address."""

PAGE = "/dashboard"

BEGUN_SECONDS = 600
"""How long one may take at the provider's page. A browser has one login begun, the newest."""

PROBLEM_SECONDS = 60
"""How long the page may take to ask why a login failed."""

PROBLEM_CHARS_MAX = 600
"""Of each of its sentences; a cookie has room for 4,096 bytes."""

TOLD_OF_PROBLEM = ("reason", "message", "next_step")

VIEW_CHARS_MAX = 1_000
VIEW = re.compile(r"(#/[A-Za-z0-9._~%/=&?+,:;@!$'()*-]*)?")
"""The view of the dashboard that somebody comes back to, as its address has it."""


@dataclass(frozen=True, slots=True)
class AtProvider:
    """One login whose person is at the provider's page, and the view that they come back to."""

    secrets: BegunLogin
    redirect_uri: str
    view: str


class ProviderCookies:
    """Makes and opens the cookies of logins that were begun, and of why one failed."""

    def __init__(self, gateway_token: str) -> None:
        key = hmac.digest(gateway_token.encode(), b"gpufleet dashboard provider login", "sha256")
        self._fernet = Fernet(base64.urlsafe_b64encode(key))
        mark = hashlib.sha256(key).hexdigest()[:12]
        self._begun, self._problem = f"gpufleet_begun_{mark}", f"gpufleet_problem_{mark}"

    def keep(self, request: Request, response: Response, login: AtProvider) -> None:
        """Have the browser keep a login that has begun."""
        texts = [*astuple(login.secrets), login.redirect_uri, login.view]
        self._set(request, response, self._begun, self._sealed(texts), BEGUN_SECONDS)

    def kept(self, request: HTTPConnection) -> AtProvider | None:
        """The login that this browser has begun; None for none, an old one, and one that no gateway of ours sealed."""
        texts = self._opened(request, self._begun, BEGUN_SECONDS)
        if texts is None:
            return None
        state, nonce, verifier, redirect_uri, view = texts
        return AtProvider(BegunLogin(state, nonce, verifier), redirect_uri, view)

    def forget(self, request: Request, response: Response) -> None:
        """The login is over."""
        self._set(request, response, self._begun, "", 0)

    def tell(self, request: Request, response: Response, problem: GpufleetError) -> None:
        """Have the page that is shown next told why there is no login. Nobody else can make it tell anything."""
        told = as_object(problem)
        texts = [str(told[name])[:PROBLEM_CHARS_MAX] for name in TOLD_OF_PROBLEM]
        self._set(request, response, self._problem, self._sealed(texts), PROBLEM_SECONDS)

    def take_problem(self, request: Request, response: Response) -> None:
        """It was told, and is not told again."""
        if name_over(request, self._problem) in request.cookies:
            self._set(request, response, self._problem, "", 0)

    def problem(self, request: HTTPConnection) -> dict[str, str] | None:
        """Why the last login failed, as errors are told; None where there is nothing to tell."""
        texts = self._opened(request, self._problem, PROBLEM_SECONDS)
        return None if texts is None else dict(zip(TOLD_OF_PROBLEM, texts, strict=True))

    def _sealed(self, texts: list[str]) -> str:
        return self._fernet.encrypt(json.dumps(texts, ensure_ascii=False).encode()).decode()

    def _opened(self, request: HTTPConnection, cookie: str, seconds_max: int) -> list[str] | None:
        name = name_over(request, cookie)
        try:
            texts: list[str] = json.loads(self._fernet.decrypt(request.cookies.get(name, "").encode(), ttl=seconds_max))
        except (InvalidToken, UnicodeError):
            return None
        return texts

    def _set(self, request: Request, response: Response, cookie: str, value: str, seconds: int) -> None:
        # Lax, as the browser comes back from the provider's site.
        is_secure = request.url.scheme == "https"
        name = name_over(request, cookie)
        response.set_cookie(name, value, max_age=seconds, httponly=True, samesite="lax", secure=is_secure)


def redirect_uri_of(request: Request) -> str:
    """Where the provider sends the browser back to: what its own page is at, as it says, which the guard has compared
    with the host; so a server in between that ends TLS changes nothing."""
    origin = URL(request.headers.get("origin") or str(request.url))
    return str(URL(scheme=origin.scheme, netloc=origin.netloc, path=CALLBACK))


def checked_view(said: object) -> str:
    """The view to come back to. Raises INVALID_ARGUMENT; whatever it is, it is one of this dashboard."""
    if not isinstance(said, str) or len(said) > VIEW_CHARS_MAX or not VIEW.fullmatch(said):
        raise invalid("view", "is no view of the dashboard", next_step="Leave it out, or send one such as #/queue.")
    return said
