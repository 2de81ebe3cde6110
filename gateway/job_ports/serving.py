"""What is served at ports of jobs: each request and each WebSocket goes to what listens there, by a way of its own."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount
from starlette.types import Receive, Scope, Send

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.json_messages import shown
from gpufleet.telemetry.traceparent import TRACEPARENT, is_traceparent, new_traceparent

from ..dashboard.bounds import Streams
from ..dashboard.guard import NOT_KEPT, address_of, error_object
from ..dashboard.login import person_of
from ..dashboard.serving import Dashboard
from ..proxy.core.headers import Origin, has_body, to_program, value_of
from ..proxy.core.hosts import is_home
from ..proxy.exchange import AsgiClient, Client, Passed, pass_request
from ..proxy.handover import is_navigation
from ..proxy.hosts import PassOn
from ..proxy.serving import Proxy
from ..proxy.upstream import ReplicaFailed
from ..proxy.web_socket import pass_web_socket
from .names import JobPort, port_at, port_called
from .tunnel import Tunnel

PREFIX = "/jobs"

CONNECTIONS_PER_PERSON_MAX = 64
"""Requests and WebSockets to ports of jobs that one person may have under way; a browser has six requests a host."""

ADDRESS_STEP = "It is /jobs/ID/ports/PORT/, or /jobs/ID/ranks/RANK/ports/PORT/."
HTTP_STEP = "See what the job says: gpuctl logs {job}. What speaks no HTTP is reached with: gpuctl forward {job} {port}"
_TRACE = TRACEPARENT.encode()


class Ports:
    """The ports of jobs at one gateway. `homes` answers the host names below which each has one of its own."""

    def __init__(self, proxy: Proxy, dashboard: Dashboard, homes: Callable[[], Sequence[str]]) -> None:
        self._proxy = proxy
        self._dashboard = dashboard
        self._homes = homes
        self._open = Streams(
            CONNECTIONS_PER_PERSON_MAX, "connections to ports of jobs", "Close a page of a job, or try again later."
        )

    def routes(self) -> list[BaseRoute]:
        """What it answers below the gateway's own address."""
        return [Mount(PREFIX, app=self)]

    def called(self, host_name: str) -> PassOn | None:
        """Who answers at a host of this name; None where it stands for no port."""
        port = port_called(host_name)
        if port is None:
            return None

        async def pass_on(request: HTTPConnection, path: bytes, login: str, client: Client) -> Response | None:
            user, token = await self._proxy.access.person_of(request, login)
            return await self._pass(request, port, path, "", user, token, client)

        return pass_on

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or one WebSocket."""
        client = AsgiClient(scope, receive, send)
        async with client.followed():
            request = HTTPConnection(scope)
            refused = await self._proxy.refusing(request, lambda: self._answered(request, client))
            if refused is not None:
                await client.refuse(refused)

    async def _answered(self, request: HTTPConnection, client: Client) -> Response | None:
        found = port_at(request.scope["raw_path"])
        if found is None:
            raise GpufleetError(
                Reason.PATH_UNKNOWN, f"no port lies at {shown(request.url.path)!r}", next_step=ADDRESS_STEP
            )
        port, path = found
        query = f"?{request.url.query}" if request.url.query else ""
        host = request.headers.get("host", "")
        if is_navigation(request) and is_home(host, self._homes()):
            # A page has a whole origin there, where it finds its own paths and no login but the one for this port.
            where = f"{request.url.scheme}://{port.host_name}.{host}{path.decode('latin-1') or '/'}{query}"
            return RedirectResponse(where, 307, NOT_KEPT)
        user, token = await self._proxy.access.person_of(request)
        if not path:
            return RedirectResponse(f"{port.prefix}/{query}", 308, NOT_KEPT)
        return await self._pass(request, port, path, port.prefix, user, token, client)

    async def _pass(
        self,
        request: HTTPConnection,
        port: JobPort,
        path: bytes,
        prefix: str,
        user: str,
        token: str,
        client: Client,
    ) -> Response | None:
        """Have it answered by what listens at the port. Raises what the scheduler refuses."""
        headers, query = request.headers.raw, request.scope["query_string"]
        given = value_of(headers, _TRACE)
        origin = Origin(
            client=address_of(request),
            scheme=request.scope["scheme"].replace("ws", "http"),
            host=value_of(headers, b"host"),
            prefix=prefix,
            request_id=secrets.token_hex(8),
            traceparent=given if is_traceparent(given) else new_traceparent(),
            user=user,
            own_host=port.own_host,
        )
        passed = Passed(
            method=request.scope.get("method", "GET"),
            target=path + b"?" + query if query else path,
            headers=to_program(headers, origin),
            has_body=has_body(headers),
            origin=origin,
        )
        person = person_of(token)
        self._open.open(person)
        tunnel = Tunnel(self._dashboard.scheduler, port, token)
        try:
            if isinstance(client, AsgiClient) and request.scope["type"] == "websocket":
                return await pass_web_socket(tunnel, passed, client, request.scope["subprotocols"])
            await pass_request(tunnel, passed, client, is_new=True)
            return None
        except ReplicaFailed as problem:
            why = f"port {port.port} of job {port.job} gave no answer in HTTP: {problem}"
            error = GpufleetError(Reason.REPLICA_FAILED, why, next_step=HTTP_STEP.format(job=port.job, port=port.port))
            return JSONResponse(error_object(error), 502, NOT_KEPT)
        finally:
            await tunnel.close()
            self._open.closed(person)
