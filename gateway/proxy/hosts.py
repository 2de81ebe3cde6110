"""A program's own host name, such as chat.localhost: its pages have an origin of their own there. So has a job's port.

Under /m/NAME/ all programs share the address of the dashboard, so that their pages are sandboxed. What was written to
stand at the root of a host (a notebook, a demo with its own paths, cookies and WebSockets) works at a host of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, NoMatchFound, Route
from starlette.types import Receive, Scope, Send

from gpufleet.errors import Code, GpufleetError, Reason

from ..dashboard.guard import NOT_KEPT, answered, json_body
from ..dashboard.serving import Dashboard
from .core.hosts import NAME, ProgramHost, is_home, program_at
from .exchange import AsgiClient, Client
from .handover import ENTER, OWN_PATHS, Handover, is_navigation
from .serving import Proxy

PassOn = Callable[[HTTPConnection, bytes, str, Client], Awaitable[Response | None]]
"""Has a request answered, at this path, for whoever is logged in there by this token."""

HOST = "gpufleet.program_host"
"""Where the route leaves what it has found for itself."""


class ProgramHosts:
    """The hosts of a gateway's programs. `homes` answers the host names below which they are, as they hold now, and
    `port_called` who answers at a name that stands for a port of a job."""

    def __init__(
        self,
        proxy: Proxy,
        dashboard: Dashboard,
        handover: Handover,
        homes: Callable[[], Sequence[str]],
        port_called: Callable[[str], PassOn | None],
    ) -> None:
        self._port_called = port_called
        self._proxy = proxy
        self._dashboard = dashboard
        self._handover = handover
        self._homes = homes

    def routes(self) -> list[BaseRoute]:
        """What it answers. Everything at a program's host is the program's, so that these come before all others."""
        return [
            _AtProgramHost(self._answer, self.at),
            Route("/api/v1/programs/{name}/enter", answered(self._enter), methods=["POST"]),
        ]

    def at(self, host: str) -> ProgramHost | None:
        """The program that a Host header names."""
        return program_at(host, self._homes())

    async def answer(self, host: ProgramHost, client: Client) -> None:
        """Answer a client's request at this host."""
        refused = await self._answered(HTTPConnection(client.scope), host, client)
        if refused is not None:
            await client.refuse(refused)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = AsgiClient(scope, receive, send)
        async with client.followed():
            await self.answer(scope[HOST], client)

    async def _answered(self, request: HTTPConnection, host: ProgramHost, client: Client) -> Response | None:
        async def pass_on() -> Response | None:
            path: bytes = request.scope["raw_path"]
            if path.startswith(OWN_PATHS.encode()):
                return self._own(request, host)
            login = self._handover.login_of(request, host.name)
            to_port = self._port_called(host.name)
            try:
                if to_port is not None:
                    return await to_port(request, path, login, client)
                return await self._to_program(host.name, request, path, login, client)
            except GpufleetError as error:
                if error.code is Code.UNAUTHENTICATED and is_navigation(request):
                    return self._handover.begin(request, host)
                raise

        return await self._proxy.refusing(request, pass_on)

    async def _to_program(
        self, name: str, request: HTTPConnection, path: bytes, login: str, client: Client
    ) -> Response | None:
        async with self._proxy.watching.service(name) as service:
            user = await self._proxy.access.user_of(request, service.access, login)
            return await self._proxy.pass_on(service, request, path, user, client, prefix="")

    def _own(self, request: HTTPConnection, host: ProgramHost) -> Response:
        if request.scope["type"] == "http" and request.url.path == ENTER and request.scope["method"] == "GET":
            return self._handover.finish(request, host.name)
        raise GpufleetError(Reason.MODEL_NOT_FOUND, f"{OWN_PATHS} is the gateway's own at each program's host")

    async def _enter(self, request: Request) -> Response:
        """The dashboard's call: the address that lets this person's browser in at the program's host."""
        name = request.path_params["name"]
        if not NAME.fullmatch(name):
            raise GpufleetError(Reason.MODEL_NOT_FOUND, f"no model is called {name[:80]!r}")
        said = await json_body(request)
        if not is_home(request.headers.get("host", ""), self._homes()):
            raise GpufleetError(
                Reason.INVALID_ARGUMENT,
                "programs have no host names below the one that the dashboard was opened by",
                next_step="Open it by a host name that program_hosts in gateway.toml has.",
            )
        token = await self._dashboard.token_of(request)
        return JSONResponse({"address": self._handover.address(request, name, token, said)}, headers=NOT_KEPT)


class _AtProgramHost(BaseRoute):
    """Takes every request at a program's host, and none at another one."""

    def __init__(self, app: Any, at: Callable[[str], ProgramHost | None]) -> None:
        self._app = app
        self._at = at

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] not in ("http", "websocket"):
            return Match.NONE, {}
        host = self._at(HTTPConnection(scope).headers.get("host", ""))
        return (Match.NONE, {}) if host is None else (Match.FULL, {HOST: host})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def url_path_for(self, name: str, /, **path_params: Any) -> Any:
        raise NoMatchFound(name, path_params)
