"""What is served under /m/NAME/: every request and every WebSocket goes to a replica of the program of that name."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

from gpufleet.v1 import sessions_pb2
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount
from starlette.types import Receive, Scope, Send

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.net.channel import Target
from gpufleet.telemetry.logs import fields
from gpufleet.telemetry.metrics import Readings
from gpufleet.telemetry.spans import OFF, Telemetry
from gpufleet.telemetry.traceparent import TRACEPARENT, is_traceparent, new_traceparent

from ..dashboard.guard import NOT_KEPT, address_of, error_object, refusal
from ..dashboard.serving import Dashboard
from ..measures import UNMEASURED, Measures
from .access import Access, caller_of
from .core.gpu_choice import (
    CONTENT_TYPE_HEADER,
    FELL_BACK_SAID,
    GPU_QUEUE_LONG,
    GPU_WAIT_OVER,
    MODE_HEADER,
    MODE_SAID,
    MODEL_DOWN,
    MODEL_SAID,
    BadMode,
    Choice,
    choose,
    mode_of,
    path_at,
)
from .core.headers import Header, Origin, as_it_is, has_body, to_program, value_of
from .core.hosts import NAME
from .core.request_sums import EndedRequest
from .core.statistics import asks_for_statistics
from .counting import Counting
from .exchange import AsgiClient, Client, Passed, pass_request
from .service import WAIT_S_MAX, Busy, Service
from .statistics import pass_statistics
from .upstream import ReplicaFailed, Upstream
from .watching import Watching
from .web_socket import pass_web_socket

log = logging.getLogger(__name__)

PREFIX = "/m"
OPEN = sessions_pb2.MODEL_ACCESS_OPEN
OF_OPENAI = b"/v1/"
"""Where a program has the paths of OpenAI's API: an answer to a POST there says how many tokens it took."""

SESSION = b"gpufleet-session"
"""The header whose value keeps requests at one replica."""

SESSION_CHARS_MAX = 256
_TRACE = TRACEPARENT.encode()


class Proxy:
    """The programs of one gateway. `running` holds its way to the scheduler."""

    def __init__(
        self,
        target: Target,
        worker_target: Callable[[sessions_pb2.WorkerInfo], Target],
        dashboard: Dashboard,
        telemetry: Telemetry = OFF,
        measures: Measures = UNMEASURED,
    ) -> None:
        self._target = target
        self._worker_target = worker_target
        self.access = Access(dashboard)
        self._telemetry = telemetry
        self._measures = measures
        self._is_running = False
        self._watching: Watching
        self._counting: Counting

    def routes(self) -> list[BaseRoute]:
        """What it answers."""
        return [Mount(PREFIX, app=self)]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Connected as long as it lasts."""
        self._watching = Watching(self._target, self._worker_target)
        self._counting = Counting(self._target)
        async with self._counting.running(), self._watching.running():
            self._is_running = True
            try:
                yield
            finally:
                self._is_running = False

    @property
    def watching(self) -> Watching:
        """What the scheduler says of programs, as long as it is running."""
        return self._watching

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or one WebSocket."""
        client = AsgiClient(scope, receive, send)
        async with client.followed():
            await self.answer(client)

    async def answer(self, client: Client) -> None:
        """Answer a client's request."""
        request = HTTPConnection(client.scope)
        refused = await self.refusing(request, lambda: self._answered(request, client))
        if refused is not None:
            await client.refuse(refused)

    async def _answered(self, request: HTTPConnection, client: Client) -> Response | None:
        name, path = _address(request)
        async with self._watching.service(name) as service:
            user = await self.access.user_of(request, service.access)
            if not path:
                query = request.url.query
                return RedirectResponse(f"{PREFIX}/{name}/" + (f"?{query}" if query else ""), 308, NOT_KEPT)
            return await self.pass_on(service, request, path, user, client)

    async def refusing(
        self, request: HTTPConnection, answer: Callable[[], Awaitable[Response | None]]
    ) -> Response | None:
        """Have a request answered, or say what to answer instead."""
        try:
            return await answer()
        except Busy as busy:
            said = error_object(busy.error) | {"place": busy.place, "estimate_s": busy.estimate_s}
            return JSONResponse(said, 503, NOT_KEPT | {"Retry-After": str(busy.retry_after_s)})
        except ReplicaFailed as problem:
            error = GpufleetError(Reason.REPLICA_FAILED, f"a replica of the program did not answer: {problem}")
            had = {"replica": problem.replica, "shared": problem.is_shared} if problem.replica else {}
            return JSONResponse(error_object(error) | had, 502, NOT_KEPT)
        except GpufleetError as error:
            return refusal(error)
        except TimeoutError:
            log.info("a client takes nothing of its answer", extra=fields(address=address_of(request)))
            return None

    async def pass_on(
        self,
        service: Service,
        request: HTTPConnection,
        path: bytes,
        user: str,
        client: Client,
        prefix: str | None = None,
    ) -> Response | None:
        """Have a replica answer a request of somebody's, at this path of the program; an answer is its refusal of a
        WebSocket. `prefix` is where the program lies at this host, /m/NAME by default.

        Where the program has a CPU model, the request may go there: docs/rules/sessions.md 3.16. Raises Busy,
        ReplicaFailed, MODEL_DOWN; TimeoutError where the client takes nothing of its answer.
        """
        headers = request.headers.raw
        said = value_of(headers, MODE_HEADER)
        if not service.cpu_model and not said:
            return await self._pass(service, request, path, user, client, prefix)
        with _modes_refused():
            asked = mode_of(said)
        prefix = f"{PREFIX}/{service.name}" if prefix is None else prefix
        async with self._cpu_model(service) as twin:
            name = twin.name if twin is not None else ""
            content_type = value_of(headers, CONTENT_TYPE_HEADER) or value_of(headers, b"content-type")
            with _modes_refused():
                choice = choose(asked, service.gpu_mode, content_type, service.line(), service.routing, cpu_model=name)
            if choice.is_gpu:
                client.said = _said(service, choice)
                try:
                    return await self._pass(service, request, path, user, client, prefix, wait_s=choice.wait_s)
                except (Busy, GpufleetError) as refused:
                    why = _why_elsewhere(refused)
                    if choice.wait_s is None or not why:
                        raise
                    choice = choice.after(why)
            assert twin is not None
            if choice.fell_back:
                self._measures.fell_back(service.name, choice.fell_back)
                self._counting.fell_back(service.name, user)
            client.said = _said(twin, choice)
            return await self._pass(twin, request, path_at(path, service.name, name), user, client, prefix)

    @asynccontextmanager
    async def _cpu_model(self, service: Service) -> AsyncIterator[Service | None]:
        """The CPU model of a program; None where it has none that is for everybody who may use the program."""
        async with AsyncExitStack() as held:
            twin: Service | None = None
            if service.cpu_model:
                try:
                    twin = await held.enter_async_context(self._watching.service(service.cpu_model))
                except GpufleetError as error:
                    if error.reason is not Reason.MODEL_NOT_FOUND:
                        raise
            yield twin if twin is not None and twin.access in (service.access, OPEN) else None

    async def _pass(
        self,
        service: Service,
        request: HTTPConnection,
        path: bytes,
        user: str,
        client: Client,
        prefix: str | None,
        *,
        wait_s: float | None = None,
    ) -> Response | None:
        """The same at this program alone. With `wait_s` it goes elsewhere once that is over, and is not turned away."""
        headers, query = request.headers.raw, request.scope["query_string"]
        given = value_of(headers, _TRACE)
        client.reads_tokens = request.scope.get("method") == "POST" and path.startswith(OF_OPENAI)
        span = self._telemetry.begin("served request", parent=given if is_traceparent(given) else "")
        origin = Origin(
            client=address_of(request),
            scheme=request.scope["scheme"].replace("ws", "http"),
            host=value_of(headers, b"host"),
            prefix=f"{PREFIX}/{service.name}" if prefix is None else prefix,
            request_id=os.urandom(8).hex(),
            traceparent=span.traceparent or new_traceparent(),
            user=user,
        )
        passed = Passed(
            method=request.scope.get("method", "GET"),
            target=path + b"?" + query if query else path,
            headers=to_program(headers, origin),
            has_body=has_body(headers),
            origin=origin,
        )
        if client.reads_tokens:
            passed = passed._replace(headers=as_it_is(passed.headers))
        session = value_of(headers, SESSION)[:SESSION_CHARS_MAX]
        came_s = time.monotonic()
        patience_s = WAIT_S_MAX if wait_s is None else min(wait_s, WAIT_S_MAX)
        deadline_s = asyncio.get_running_loop().time() + patience_s
        failed: Upstream | None = None
        begun_s: float | None = None
        is_broken = False
        try:
            while True:
                try:
                    replica = await service.replica(caller_of(request, user), session, deadline_s, failed)
                except (Busy, GpufleetError) as refused:
                    error = refused.error if isinstance(refused, Busy) else refused
                    if wait_s is None:
                        self._measures.turned_away(service.name, error.reason.name)
                    if error.reason is Reason.MODEL_DOWN and not user:
                        # Its last words name folders and the like: they are for people who are known.
                        raise GpufleetError(Reason.MODEL_DOWN, f"{service.name!r} has failed") from None
                    raise
                finally:
                    if failed is None:
                        self._measures.waited(service.name, time.monotonic() - came_s)
                begun_s = begun_s or time.monotonic()
                is_broken = False
                try:
                    if isinstance(client, AsgiClient) and request.scope["type"] == "websocket":
                        return await pass_web_socket(replica, passed, client, request.scope["subprotocols"])
                    if asks_for_statistics(passed.method, path) and not passed.has_body:
                        # There may be none any more by now but the one that this request has.
                        await pass_statistics(service.name, service.ready or [replica], passed, client)
                    else:
                        await pass_request(replica, passed, client, is_new=failed is not None)
                    return None
                except ReplicaFailed as problem:
                    is_broken = True
                    service.failed(replica, problem)
                    if failed is not None or not client.may_send_again(problem):
                        raise
                    failed = replica
                    self._measures.tried_again(service.name)
                finally:
                    service.release(replica)
        finally:
            span.end()
            if begun_s is not None:
                lasted_s = time.monotonic() - begun_s
                method = request.scope.get("method", "WEBSOCKET")
                self._count(service.name, user, method, client, lasted_s, is_broken=is_broken)

    def readings(self) -> Readings:
        """How many requests there are now, of each program that was asked for lately."""
        of_model: dict[str, tuple[int, int]] = {}
        for service in self._watching.services() if self._is_running else ():
            label = self._measures.label_of(service.name)
            under_way, waiting = of_model.get(label, (0, 0))
            of_model[label] = under_way + service.under_way, waiting + service.waiting
        return {
            "gpufleet.program.underway": [(each[0], {"model": model}) for model, each in of_model.items()],
            "gpufleet.program.waiting": [(each[1], {"model": model}) for model, each in of_model.items()],
        }

    def _count(self, model: str, user: str, method: str, client: Client, lasted_s: float, *, is_broken: bool) -> None:
        """A request has ended, however it did."""
        tokens = client.tokens()
        ended = EndedRequest(lasted_s, client.status, is_broken, says_tokens=client.reads_tokens, tokens=tokens)
        self._counting.add(model, user, ended)
        prompt, completion = (tokens.prompt, tokens.completion) if tokens is not None else (0, 0)
        self._measures.answered(model, method, client.status, lasted_s, prompt, completion)


def _said(service: Service, choice: Choice) -> list[Header]:
    """Which model an answer is of, and why."""
    said = [(MODEL_SAID, service.name.encode()), (MODE_SAID, choice.mode.encode())]
    return [*said, (FELL_BACK_SAID, choice.fell_back.encode())] if choice.fell_back else said


@contextmanager
def _modes_refused() -> Iterator[None]:
    try:
        yield
    except BadMode as bad:
        raise invalid("Gpufleet-Gpu-Mode", str(bad), next_step=bad.next_step) from None


def _why_elsewhere(refused: Busy | GpufleetError) -> str:
    """Why a request for which there was no GPU replica goes to the CPU model; empty where it does not."""
    reason = refused.error.reason if isinstance(refused, Busy) else refused.reason
    whys = {
        Reason.LINE_FULL: GPU_QUEUE_LONG,
        Reason.WORKER_NOT_READY: GPU_WAIT_OVER,
        Reason.MODEL_DOWN: MODEL_DOWN,
    }
    return whys.get(reason, "")


def _address(request: HTTPConnection) -> tuple[str, bytes]:
    """The program's name, and the path there as the client wrote it; empty for /m/NAME. Raises MODEL_NOT_FOUND."""
    parts: list[bytes] = request.scope["raw_path"].split(b"/", 3)
    name = parts[2].decode("latin-1") if len(parts) > 2 else ""
    if not NAME.fullmatch(name):
        raise GpufleetError(Reason.MODEL_NOT_FOUND, "an address of a program is /m/NAME/")
    return name, b"/" + parts[3] if len(parts) > 3 else b""
