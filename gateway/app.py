"""What is served over HTTP: the page, the sessions, the models to choose from, the state of the workers, and health.

Of a model is shown, before one joins, what stands in its line and whether a seat is free.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import Any

import grpc.aio
from gpufleet.v1 import inference_pb2, scheduler_pb2_grpc, sessions_pb2
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from gpufleet.config.gateway_settings import GatewaySettings
from gpufleet.model import media_type_of
from gpufleet.net.channel import Target, connect_async
from gpufleet.net.status import from_rpc_error
from gpufleet.telemetry.metrics import Readings
from gpufleet.telemetry.spans import OFF, Telemetry

from . import page
from .api.serving import Api
from .api.uploads import Uploads
from .client_address import NotesClientAddress
from .dashboard.guard import is_own_origin, refusal
from .dashboard.serving import Dashboard
from .framing import RefusesAmbiguous
from .identity import COOKIE, COOKIE_SECONDS, Identities, identity_of
from .job_ports.serving import Ports
from .lines import Lines
from .measures import UNMEASURED, Measures
from .options import gateway_name
from .person import Person
from .proxy.handover import Handover
from .proxy.hosts import ProgramHosts
from .proxy.lane import Answers
from .proxy.openai import BASE, OpenAi
from .proxy.serving import PREFIX, Proxy
from .workers import Workers

log = logging.getLogger(__name__)

ASK_S_MAX = 5.0
"""How long the scheduler may take to answer what a page asks."""

FLUSH_S_MAX = 1.0
"""How long the last words to the scheduler may take."""

OF_PROGRAMS, OF_OPENAI = f"{PREFIX}/".encode("ascii"), f"{BASE}/".encode("ascii")

REFUSED_FULL, REFUSED_ADDRESS = 4503, 4430
"""Close codes: this gateway has no room, or has none for one more of the same address."""


class Gateway:
    """One gateway: its lines, and how workers are reached. `settings` answers those that hold now."""

    def __init__(
        self,
        target: Target,
        identities: Identities,
        worker_target: Callable[[sessions_pb2.TurnGrant | sessions_pb2.WorkerInfo], Target],
        dashboard: Dashboard,
        handover: Handover,
        settings: Callable[[], GatewaySettings] = GatewaySettings,
        telemetry: Telemetry = OFF,
        measures: Measures = UNMEASURED,
    ) -> None:
        self.dashboard = dashboard
        self._target = target
        self._identities = identities
        self._worker_channels = Workers(worker_target)
        self._proxy = Proxy(target, worker_target, dashboard, telemetry, measures)
        self._ports = Ports(self._proxy, dashboard, self._program_hosts)
        self._hosts = ProgramHosts(self._proxy, dashboard, handover, self._program_hosts, self._ports.called)
        self._openai = OpenAi(self._proxy)
        self._settings = settings
        self._telemetry = telemetry
        self._measures = measures
        self._addresses: Counter[str] = Counter()
        self.people = 0
        self.beside: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
        """What else is served as long as programs are: the port for gRPC, where there is one."""

    @property
    def programs(self) -> Proxy:
        """The served programs."""
        return self._proxy

    def requests_read(self) -> Readings:
        """How many requests to programs there are now, for the metrics."""
        return self._proxy.readings()

    def app(self) -> Starlette:
        """The ASGI application."""
        of_the_page = [
            *self._hosts.routes(),
            Route("/api/v1/lobby", self._models),
            Route("/api/v1/lobby/{name}/picture", self._picture),
            *self.dashboard.routes(),
        ]
        return Starlette(
            routes=[
                *of_the_page,
                *Api(self.dashboard, self._uploads(), self._proxy).routes(of_the_page),
                Route("/healthz", self._healthz),
                WebSocketRoute("/ws", self._session),
                *self._proxy.routes(),
                *self._ports.routes(),
                *self._openai.routes(),
                *page.routes(),
            ],
            middleware=[Middleware(NotesClientAddress), Middleware(RefusesAmbiguous)],
            lifespan=self._lifespan,
        )

    def choose(self, host: str, path: bytes, method: str) -> Answers | None:
        """Who answers a request for a program, without the application's routes; None for any other request."""
        at = self._hosts.at(host)
        if at is not None:
            return partial(self._hosts.answer, at)
        if path.startswith(OF_PROGRAMS):
            return self._proxy.answer
        return self._openai.answer if path.startswith(OF_OPENAI) and method == "POST" else None

    def _uploads(self) -> Uploads:
        settings = self._settings
        return Uploads(self.dashboard, lambda: settings().data, lambda: settings().limits.upload_bytes_max)

    @property
    def is_connected(self) -> bool:
        """Whether the scheduler is heard."""
        lines: Lines | None = getattr(self, "_lines", None)  # made when it begins to serve
        return lines is not None and lines.is_connected

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._lines = Lines(self._target, gateway_name(self._settings()))
        self._channel = connect_async(self._target)
        holding = asyncio.create_task(self._lines.run(), name="lines")
        try:
            async with self.dashboard.running(), self._proxy.running(), self.beside():
                yield
        finally:
            # Who has just left is told to the scheduler, so that nobody's line is counted as away.
            await self._lines.flush(FLUSH_S_MAX)
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)
            await self._worker_channels.close()
            await self._channel.close()

    async def _healthz(self, request: Request) -> Response:
        is_well = self._lines.is_connected
        body = {"ok": is_well, "scheduler": "connected" if is_well else "not heard", "people": self.people}
        return JSONResponse(body, status_code=200 if is_well else 503)

    async def _models(self, request: Request) -> Response:
        """The models and their lines, for everybody: what a page shows before one joins. Sets the cookie."""
        response = await self._asked(self._list_models)
        if self._identities.known(request.cookies.get(COOKIE)) is None:
            _, cookie = self._identities.new()
            response.set_cookie(
                COOKIE,
                cookie,
                max_age=COOKIE_SECONDS,
                httponly=True,
                samesite="lax",
                secure=request.url.scheme == "https",
            )
        return response

    async def _list_models(self, stub: Any) -> dict[str, Any]:
        listed = await stub.ListModels(sessions_pb2.ListModelsRequest(), timeout=ASK_S_MAX)
        # Programs are no models to choose: nobody stands in line for one.
        return {"models": [model_shown(each) for each in listed.models if not each.HasField("http")]}

    async def _picture(self, request: Request) -> Response:
        """The picture that ships with a model. Its tag is in the address, so that it never changes."""
        asked = sessions_pb2.ListModelsRequest(picture_of=request.path_params["name"])
        try:
            stub = scheduler_pb2_grpc.SchedulerStub(self._channel)
            listed = await stub.ListModels(asked, timeout=ASK_S_MAX)
        except grpc.aio.AioRpcError as problem:
            is_wrong = problem.code() is grpc.StatusCode.INVALID_ARGUMENT
            return Response(status_code=404 if is_wrong else 503, headers=page.SECURITY_HEADERS)
        picture = next((each.card.picture for each in listed.models), b"")
        media_type = media_type_of(picture)
        if media_type is None:
            return Response(status_code=404, headers=page.SECURITY_HEADERS)
        headers = page.SECURITY_HEADERS | {"Cache-Control": page.HASHED}
        return Response(picture, media_type=media_type, headers=headers)

    async def _asked(self, ask: Callable[[Any], Any]) -> Response:
        """The scheduler's answer as JSON, or why there is none."""
        return await _answered(ask, self._channel)

    async def _session(self, socket: WebSocket) -> None:
        """One person."""
        if not self._may_connect(socket):
            # Before the handshake: the browser's script is told no more than that it failed.
            await socket.close()
            return
        person = self._identities.known(socket.cookies.get(COOKIE))
        headers: list[tuple[bytes, bytes]] = []
        if person is None:
            person, cookie = self._identities.new()
            secure = "; Secure" if socket.url.scheme == "wss" else ""
            said = f"{COOKIE}={cookie}; Max-Age={COOKIE_SECONDS}; Path=/; HttpOnly; SameSite=Lax{secure}"
            headers.append((b"set-cookie", said.encode()))
        await socket.accept(headers=headers)
        address = socket.client.host if socket.client is not None else ""
        if (refused := self._no_room_for(address)) is not None:
            self._measures.refused()
            await socket.close(refused)
            return
        self.people += 1
        self._addresses[address] += 1
        try:
            messages_max = self._settings().limits.messages_per_second_max
            identity = identity_of(person)
            served = Person(
                socket,
                identity,
                self._lines,
                self._worker_channels,
                messages_max,
                self._telemetry,
                self._measures,
                address=self._identities.address_of(address),
                login_token=self.dashboard.login_of(socket),
            )
            await served.serve()
        finally:
            self.people -= 1
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]

    def _no_room_for(self, address: str) -> int | None:
        limits = self._settings().limits
        if self.people >= limits.people_max:
            return REFUSED_FULL
        return REFUSED_ADDRESS if self._addresses[address] >= limits.people_per_address_max else None

    def _program_hosts(self) -> Sequence[str]:
        settings = self._settings()
        return settings.program_hosts

    def _may_connect(self, socket: WebSocket) -> bool:
        """Pages of this host and those that were named; programs send no origin."""
        settings = self._settings()
        origin = socket.headers.get("origin")
        return origin in settings.origins or is_own_origin(origin, socket.headers.get("host"))


async def _answered(ask: Callable[[Any], Any], channel: grpc.aio.Channel) -> Response:
    try:
        return JSONResponse(await ask(scheduler_pb2_grpc.SchedulerStub(channel)))
    except grpc.aio.AioRpcError as problem:
        return refusal(from_rpc_error(problem))


STATES = (
    (inference_pb2.WORKER_STATE_READY, "ready"),
    (inference_pb2.WORKER_STATE_LOADING, "loading"),
    (inference_pb2.WORKER_STATE_STARTING, "starting"),
    (inference_pb2.WORKER_STATE_QUEUED, "queued"),
    (inference_pb2.WORKER_STATE_FAILED, "failed"),
)
"""What is said of a model with several workers: the first of these that one of them is in."""


ACCESS = {
    sessions_pb2.MODEL_ACCESS_OPEN: "open",
    sessions_pb2.MODEL_ACCESS_PASS_PHRASE: "pass-phrase",
    sessions_pb2.MODEL_ACCESS_LOGIN: "login",
}
"""Who may join."""


def model_shown(model: sessions_pb2.Model) -> dict[str, Any]:
    """One model of `GET /api/v1/lobby`; docs/web-protocol.md names the fields.

    Why a model has failed is not for everybody: it may name files of whoever serves it.
    """
    ready = [each for each in model.workers if each.state == inference_pb2.WORKER_STATE_READY]
    loading = [each for each in model.workers if each.state == inference_pb2.WORKER_STATE_LOADING]
    return {
        "name": model.name,
        "waiting": model.waiting_count,
        "turns": model.turn_count,
        "seats": sum(each.seats for each in ready),
        "free": sum(max(0, each.seats - each.taken_seats) for each in ready),
        "workers": len(model.workers),
        "state": _state(model),
        "progress": round(max((each.progress for each in loading), default=0.0), 3),
        "waits_for": _waits_for(model),
        "title": model.card.title,
        "about": model.card.about,
        "controls": model.card.controls,
        "keys": list(model.card.keys),
        "picture": model.card.picture_tag,
        "access": ACCESS.get(model.limits.access, "open"),
        "turn_s": model.limits.turn.ToMilliseconds() / 1e3,
    }


def _waits_for(model: sessions_pb2.Model) -> str:
    """Why a worker's job waits: the stable reason, which names no node; empty where none waits."""
    return next((each.wait_reason for each in model.workers if each.wait_reason), "")


def _state(model: sessions_pb2.Model) -> str:
    found = {each.state for each in model.workers}
    best = next((name for state, name in STATES if state in found), None)
    if best is not None:
        return best
    if model.HasField("failure"):
        return "failed"
    # Without a worker: the fleet starts one for who comes, or somebody has to start it by hand.
    return "asleep" if model.entry_point else "away"
