"""How people come in and go: `GET` and `POST /api/v1/login`, `login/provider`, `login/callback`, and `logout`.

Who logs in with a password or a provider is given a token by the scheduler, which decides who they are; it is sealed
into the cookie as one that was typed is, and ended at the scheduler where they log out.
"""

from __future__ import annotations

import hmac
import logging
import time
from typing import Any, Protocol

from gpufleet.v1 import scheduler_pb2
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from gpufleet.errors import Code, GpufleetError, Reason, invalid
from gpufleet.security.code_login import begin_login, checked_code
from gpufleet.security.tokens import is_token
from gpufleet.telemetry.logs import fields

from ..client_address import CLIENT_ADDRESS
from .calls import Scheduler, Who
from .guard import NOT_KEPT, address_of, answered, json_body, not_a_token
from .login import LOGIN_SECONDS, SealedLogin, Seals, name_over
from .provider_login import (
    BEGUN_SECONDS,
    CALLBACK,
    PAGE,
    AtProvider,
    ProviderCookies,
    checked_view,
    redirect_uri_of,
)

log = logging.getLogger(__name__)

LOGOUT_S_MAX = 5.0
"""How long the scheduler may take to end a login. The browser forgets it anyway."""

ENDED_BEFORE = (Reason.TOKEN_REVOKED, Reason.TOKEN_INVALID)
"""What a login that has ended already is refused with."""


class TokenChecks(Protocol):
    """What logins need of the dashboard; `serving.py` is it."""

    @property
    def scheduler(self) -> Scheduler: ...

    async def who_logs_in(self, request: HTTPConnection, token: str) -> Who: ...

    async def who_asks(self, request: HTTPConnection, token: str) -> Who: ...

    def take_of_stranger(self, request: HTTPConnection) -> None: ...


class Logins:
    """Those of one gateway's dashboard."""

    def __init__(self, dashboard: TokenChecks, seals: Seals, gateway_token: str) -> None:
        self._dashboard = dashboard
        self._seals = seals
        self._cookies = ProviderCookies(gateway_token)

    def routes(self) -> list[BaseRoute]:
        """What it answers."""
        return [
            Route("/api/v1/login", answered(self._ways), methods=["GET"]),
            Route("/api/v1/login", answered(self._log_in), methods=["POST"]),
            Route("/api/v1/login/provider", answered(self._begin), methods=["POST"]),
            # From the provider's page, so from elsewhere: what the browser's own cookie proves is all that counts.
            Route(CALLBACK, self._come_back, methods=["GET"]),
            Route("/api/v1/logout", answered(self._log_out), methods=["POST"]),
        ]

    def renew(self, request: Request, response: Response) -> None:
        """Make the cookie of who comes back anew, where it is old."""
        sealed = self._seals.sealed_in(request)
        login = self._seals.opened(sealed)
        if sealed and login is not None and self._seals.is_old(sealed, time.time()):
            self._set_cookie(request, response, login)

    async def _ways(self, request: Request) -> Response:
        """Which ways there are beside tokens, and why the login with the provider that has just ended was none."""
        self._dashboard.take_of_stranger(request)
        ways: Any
        try:
            ways = await self._dashboard.scheduler.call_as_gateway(
                "DescribeLogin", scheduler_pb2.DescribeLoginRequest()
            )
        except GpufleetError as problem:
            # A scheduler of before has tokens alone.
            if problem.code is not Code.UNIMPLEMENTED:
                raise
            ways = scheduler_pb2.DescribeLoginResponse()
        provider = ways.provider.name or ways.provider.issuer
        told = {"has_passwords": ways.has_passwords, "provider": provider, "problem": self._cookies.problem(request)}
        response = JSONResponse(told, headers=NOT_KEPT)
        self._cookies.take_problem(request, response)
        return response

    async def _log_in(self, request: Request) -> Response:
        said = await json_body(request)
        if "user" in said or "password" in said:
            return await self._log_in_by_password(request, said)
        token = said.get("token")
        token = token.strip() if isinstance(token, str) else ""
        if not token:
            raise invalid("token", "is empty", reason=Reason.TOKEN_MISSING)
        if not is_token(token):
            raise not_a_token()
        who = await self._dashboard.who_logs_in(request, token)
        return self._entered(request, who, SealedLogin(token))

    async def _log_in_by_password(self, request: Request, said: dict[str, Any]) -> Response:
        if "token" in said:
            raise invalid("token", "is beside a user and a password", next_step="Send one or the other.")
        user, password = said.get("user"), said.get("password")
        if not isinstance(user, str) or not user.strip():
            raise invalid("user", "is empty", next_step="Enter your user name.")
        if not isinstance(password, str) or not password:
            raise invalid("password", "is empty", next_step="Enter your password.")
        self._dashboard.take_of_stranger(request)
        way = scheduler_pb2.PasswordLogin(user=user.strip(), password=password)
        token = await self._token(scheduler_pb2.LoginRequest(password=way))
        who = await self._dashboard.who_asks(request, token)
        return self._entered(request, who, SealedLogin(token, is_made_here=True))

    async def _begin(self, request: Request) -> Response:
        """The address of the provider's page, for a page of this gateway that goes there."""
        view = checked_view((await json_body(request)).get("view", ""))
        self._dashboard.take_of_stranger(request)
        login = AtProvider(begin_login(), redirect_uri_of(request), view)
        asked = scheduler_pb2.BeginLoginRequest(
            redirect_uri=login.redirect_uri,
            state=login.secrets.state,
            nonce=login.secrets.nonce,
            code_challenge=login.secrets.challenge,
        )
        begun: Any = await self._dashboard.scheduler.call_as_gateway("BeginLogin", asked)
        response = JSONResponse({"address": begun.authorization_url}, headers=NOT_KEPT)
        self._cookies.keep(request, response, login)
        return response

    async def _come_back(self, request: Request) -> Response:
        """A browser from the provider's page: it goes on to the dashboard, logged in or told why not."""
        login = self._cookies.kept(request)
        said = request.query_params
        state = said.get("state", "").encode()
        is_ours = login is not None and hmac.compare_digest(state, login.secrets.state.encode())
        if login is None or not is_ours:
            # The one that this browser has begun, if any, goes on: nobody else's link ends it.
            response = _to_page("")
            self._cookies.tell(request, response, _of_another_login())
            return response
        response = _to_page(login.view)
        try:
            self._dashboard.take_of_stranger(request)
            token = await self._token_by_code(login, checked_code(said.get("code", ""), said.get("error", "")))
        except GpufleetError as problem:
            log.warning("a login with the provider failed", extra=fields(why=problem.message))
            self._cookies.tell(request, response, problem)
        else:
            self._set_cookie(request, response, SealedLogin(token, is_made_here=True))
        self._cookies.forget(request, response)
        return response

    async def _token_by_code(self, login: AtProvider, code: str) -> str:
        way = scheduler_pb2.CodeLogin(
            code=code,
            redirect_uri=login.redirect_uri,
            code_verifier=login.secrets.verifier,
            nonce=login.secrets.nonce,
        )
        return await self._token(scheduler_pb2.LoginRequest(code=way))

    async def _token(self, asked: scheduler_pb2.LoginRequest) -> str:
        """What the scheduler trades for what somebody at this address says."""
        asked.client_address = CLIENT_ADDRESS.get()
        given: Any = await self._dashboard.scheduler.call_as_gateway("Login", asked)
        return str(given.secret)

    def _entered(self, request: Request, who: Who, login: SealedLogin) -> Response:
        log.info("logged in to the dashboard", extra=fields(user=who.user, role=who.role, address=address_of(request)))
        response = who_answer(who)
        self._set_cookie(request, response, login)
        return response

    async def _log_out(self, request: Request) -> Response:
        """Forget the cookie, and end the login that was made for it; a token that was typed is its person's own."""
        login = self._seals.opened(self._seals.sealed_in(request))
        is_ended = True
        if login is not None and login.is_made_here:
            asked = scheduler_pb2.LogoutRequest()
            try:
                await self._dashboard.scheduler.call("Logout", asked, login.token, wait_s=LOGOUT_S_MAX)
            except GpufleetError as problem:
                is_ended = problem.reason in ENDED_BEFORE
                if not is_ended:
                    log.warning("a login ends by its time alone", extra=fields(why=problem.message))
        response = JSONResponse({"is_ended": is_ended}, headers=NOT_KEPT)
        is_secure = request.url.scheme == "https"
        response.delete_cookie(
            name_over(request, self._seals.cookie), httponly=True, samesite="strict", secure=is_secure
        )
        return response

    def _set_cookie(self, request: Request, response: Response, login: SealedLogin) -> None:
        response.set_cookie(
            name_over(request, self._seals.cookie),
            self._seals.seal(login.token, is_made_here=login.is_made_here),
            max_age=LOGIN_SECONDS,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )


def _to_page(view: str) -> Response:
    return RedirectResponse(PAGE + view, 303, NOT_KEPT | {"Referrer-Policy": "no-referrer"})


def _of_another_login() -> GpufleetError:
    return GpufleetError(
        Reason.LOGIN_FAILED,
        f"this login was not begun in this browser, or more than {BEGUN_SECONDS // 60} minutes ago, or it is over",
        next_step="Begin it here again.",
    )


def who_answer(who: Who) -> JSONResponse:
    """Who is logged in, as a page is answered."""
    told = {"user": who.user, "role": who.role, "version": who.version, "bands": who.bands}
    return JSONResponse(told, headers=NOT_KEPT)
