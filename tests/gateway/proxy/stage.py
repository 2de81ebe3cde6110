"""A gateway in this process, between clients and programs that do as they are told; the scheduler is a fake."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc
import grpc.aio
import uvicorn
from gpufleet.v1 import inference_pb2, scheduler_pb2, sessions_pb2

from gateway.app import Gateway
from gateway.dashboard.login import Seals
from gateway.dashboard.serving import Dashboard
from gateway.identity import Identities
from gateway.measures import UNMEASURED, Measures
from gateway.open_inference.server import Server
from gateway.protocol import MESSAGE_BYTES_MAX
from gateway.proxy.handover import Handover
from gateway.sockets import Sockets
from gpufleet.config.gateway_settings import GatewaySettings
from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.addresses import Address, parse_address
from gpufleet.net.certificates import OwnCertificate
from gpufleet.net.channel import Target, token_of
from gpufleet.net.http_server import QuietServer
from gpufleet.net.listening import bound
from gpufleet.net.status import to_status
from gpufleet.security.tokens import make_token
from gpufleet.telemetry.metrics import Readings
from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.gateway.asking import Connection

GATEWAY_TOKEN = make_token()
HEAD_BYTES_MAX = 1_000_000


class FakeScheduler:
    """It says what `models` says, and again after `changed`; it knows the tokens of `users`."""

    def __init__(self) -> None:
        self.models: dict[str, sessions_pb2.WatchWorkersResponse] = {}
        self.users: dict[str, str] = {}
        self.page_models = 2
        self.counted: dict[tuple[str, int], sessions_pb2.CountRequestsRequest] = {}
        self.count_error: GpufleetError | None = None
        self.reports: list[sessions_pb2.ReportRequestsRequest] = []
        self.calls: Counter[str] = Counter()
        self.watched: Counter[str] = Counter()
        self._news = asyncio.Condition()
        self._version = 0

    async def changed(self) -> None:
        async with self._news:
            self._version += 1
            self._news.notify_all()

    async def WatchWorkers(
        self, request: sessions_pb2.WatchWorkersRequest, context: Any
    ) -> AsyncIterator[sessions_pb2.WatchWorkersResponse]:
        self.calls["WatchWorkers"] += 1
        assert token_of(context.invocation_metadata()) == GATEWAY_TOKEN
        self.watched[request.model] += 1
        try:
            while True:
                if request.model not in self.models:
                    error = GpufleetError(Reason.MODEL_NOT_FOUND, f"no model is called {request.model!r}")
                    await context.abort_with_status(to_status(error))
                version = self._version
                yield self.models[request.model]
                async with self._news:
                    await self._news.wait_for(lambda: self._version != version)  # noqa: B023
        finally:
            self.watched[request.model] -= 1

    async def ReportRequests(self, request_iterator: Any, context: Any) -> Any:
        async for said in request_iterator:
            self.reports.append(said)
        return sessions_pb2.ReportRequestsResponse()

    async def CountRequests(self, request: sessions_pb2.CountRequestsRequest, context: Any) -> Any:
        """Counts a batch, and says so, or not: the answer may be lost."""
        self.calls["CountRequests"] += 1
        assert token_of(context.invocation_metadata()) == GATEWAY_TOKEN
        key = request.gateway_start, request.sequence
        assert self.counted.setdefault(key, request) == request, "a batch that comes again is the same"
        if self.count_error is not None:
            await context.abort_with_status(to_status(self.count_error))
        return sessions_pb2.CountRequestsResponse()

    def count(self, model: str, user: str, field: str = "request_count") -> int:
        """What was counted of a user's requests to a program."""
        rows = (row for request in self.counted.values() for row in request.rows)
        return sum(getattr(row, field) for row in rows if (row.model, row.user) == (model, user))

    async def ListModels(self, request: sessions_pb2.ListModelsRequest, context: Any) -> Any:
        self.calls["ListModels"] += 1
        assert token_of(context.invocation_metadata()) == GATEWAY_TOKEN
        names = [name for name in sorted(self.models) if name > request.page_token]
        page = [self._listed(name) for name in names[: self.page_models]]
        more = page[-1].name if len(names) > len(page) else ""
        return sessions_pb2.ListModelsResponse(models=page, next_page_token=more)

    def _listed(self, name: str) -> sessions_pb2.Model:
        told = self.models[name]
        model = sessions_pb2.Model(name=name, owner="bob", limits=sessions_pb2.SessionLimits(access=told.access))
        if told.HasField("http"):
            model.http.CopyFrom(told.http)
        return model

    async def GetServerInfo(self, request: Any, context: Any) -> Any:
        self.calls["GetServerInfo"] += 1
        user = self.users.get(token_of(context.invocation_metadata()) or "")
        if user is None:
            return await context.abort_with_status(to_status(GpufleetError(Reason.TOKEN_INVALID)))
        # The token of a running job is kept as that of "job USER".
        role, _, owner = user.rpartition(" ")
        return scheduler_pb2.GetServerInfoResponse(user=owner, role=role or "user", version="0")

    async def OpenSession(self, request_iterator: Any, context: Any) -> Any:
        async for _ in request_iterator:
            yield sessions_pb2.OpenSessionResponse()

    def handlers(self) -> grpc.GenericRpcHandler:
        """What it answers."""
        protos: Any = scheduler_pb2, sessions_pb2
        kinds = {
            "WatchWorkers": grpc.unary_stream_rpc_method_handler,
            "ReportRequests": grpc.stream_unary_rpc_method_handler,
            "CountRequests": grpc.unary_unary_rpc_method_handler,
            "ListModels": grpc.unary_unary_rpc_method_handler,
            "GetServerInfo": grpc.unary_unary_rpc_method_handler,
            "OpenSession": grpc.stream_stream_rpc_method_handler,
        }
        made: Any = {}
        for name, handler in kinds.items():
            request, answer = (
                next(getattr(each, f"{name}{end}") for each in protos if hasattr(each, f"{name}{end}"))
                for end in ("Request", "Response")
            )
            made[name] = handler(getattr(self, name), request.FromString, answer.SerializeToString)
        return grpc.method_handlers_generic_handler("gpufleet.v1.Scheduler", made)

    def reported(self, model: str) -> tuple[int, int]:
        """Requests under way and waiting, as they were reported last."""
        last = self.reports[-1] if self.reports else sessions_pb2.ReportRequestsRequest()
        return next(((each.under_way, each.waiting) for each in last.models if each.model == model), (0, 0))


@dataclass
class Head:
    """A request as a program gets it."""

    method: str
    target: str
    lines: list[tuple[str, str]]
    text: bytes

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.lines if key.lower() == name.lower()]

    def __getitem__(self, name: str) -> str:
        return ", ".join(self.all(name))


Answer = Callable[["Call"], Awaitable[None]]


@dataclass
class Call:
    """One request at a program: what it is, and the connection to answer on."""

    head: Head
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    keeps: bool = True

    async def reply(self, body: bytes = b"", status: str = "200 OK", headers: Mapping[str, str] | None = None) -> None:
        lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in (headers or {}).items())]
        await self.raw("\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body)

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def chunk(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def body(self) -> bytes:
        """The whole body of the request."""
        if self.head["transfer-encoding"] == "chunked":
            found = b""
            while size := int(await self.reader.readline(), 16):
                found += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readline()
            return found
        return await self.reader.readexactly(int(self.head["content-length"] or 0))

    async def is_left(self) -> None:
        """Return once the gateway has closed the connection."""
        with suppress(ConnectionError):
            while await self.reader.read(65_536):
                pass


@dataclass
class Replica:
    """A program behind a replica's door: connections that begin with another key are closed."""

    name: str
    answer: Answer
    own: OwnCertificate | None = None
    port: int = 0
    connections: int = 0
    open: int = 0
    calls: list[Head] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    state: inference_pb2.WorkerState.ValueType = inference_pb2.WORKER_STATE_READY

    @property
    def key(self) -> bytes:
        return hashlib.sha256(self.name.encode()).digest()

    def info(self) -> sessions_pb2.WorkerInfo:
        return sessions_pb2.WorkerInfo(
            worker_start=self.name,
            endpoint=f"127.0.0.1:{self.port}",
            state=self.state,
            connect_key=self.key,
            certificate=self.own.certificate.decode() if self.own is not None else "",
        )

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            self.keys.append(await reader.readline())
            if self.keys[-1] != b"GPUFLEET " + self.key.hex().encode() + b"\n":
                return
            while True:
                text = await reader.readuntil(b"\r\n\r\n")
                first, *lines = text.decode("latin-1").strip().split("\r\n")
                pairs = [(name, value) for name, _, value in (line.partition(": ") for line in lines)]
                method, target, _ = first.split(" ")
                call = Call(Head(method, target, pairs, text), reader, writer)
                self.calls.append(call.head)
                await self.answer(call)
                if not call.keeps:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()


@dataclass
class Stage:
    """What a test speaks to."""

    scheduler: FakeScheduler
    address: str
    stop_scheduler: Callable[[], Awaitable[None]]
    readings: Callable[[], Readings]
    """What the gateway's metrics read of requests."""

    grpc: Server | None = None

    async def serve(
        self,
        name: str,
        *replicas: Replica,
        access: sessions_pb2.ModelAccess.ValueType = sessions_pb2.MODEL_ACCESS_OPEN,
        concurrency: int = 64,
    ) -> None:
        """Say what the scheduler knows of a program from now on."""
        self.scheduler.models[name] = sessions_pb2.WatchWorkersResponse(
            workers=[each.info() for each in replicas],
            http=sessions_pb2.HttpService(concurrency=concurrency),
            access=access,
        )
        await self.scheduler.changed()

    def person(self, user: str) -> str:
        """A token of theirs."""
        token = make_token()
        self.scheduler.users[token] = user
        return token

    def cookie(self, token: str) -> str:
        """What the browser of a person who is logged in sends."""
        seals = Seals(GATEWAY_TOKEN)
        return f"{seals.cookie}={seals.seal(token)}"

    @asynccontextmanager
    async def raw(self, data: bytes) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection on which this was sent."""
        host, _, port = self.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1_000_000)
        try:
            writer.write(data)
            yield reader, writer
        finally:
            writer.close()

    @asynccontextmanager
    async def asking(
        self, path: str, method: str = "GET", headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> AsyncIterator[Connection]:
        """A request that was sent."""
        host, _, port = self.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1_000_000)
        try:
            connection = Connection(reader, writer)
            await connection.send(method, path, self.address, headers or {}, body)
            yield connection
        finally:
            writer.close()


def _target(worker: sessions_pb2.TurnGrant | sessions_pb2.WorkerInfo) -> Target:
    return Target(address=parse_address(worker.endpoint), certificate=worker.certificate.encode())


@asynccontextmanager
async def stage(
    measures: Measures = UNMEASURED, *, has_grpc: bool = False, proxies: tuple[str, ...] = ()
) -> AsyncIterator[Stage]:
    """A gateway with its scheduler, for the length of the block; with a port for gRPC, if that is wanted."""
    scheduler = FakeScheduler()
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((scheduler.handlers(),))
    target = Target(address=Address("127.0.0.1", server.add_insecure_port("127.0.0.1:0")), token=GATEWAY_TOKEN)
    await server.start()
    settings = GatewaySettings(proxies=proxies)
    gateway = Gateway(
        target,
        Identities(GATEWAY_TOKEN),
        _target,
        Dashboard(target, GATEWAY_TOKEN),
        Handover(GATEWAY_TOKEN),
        lambda: settings,
        measures=measures,
    )
    open_inference = Server(settings, 0, gateway.programs, lambda: gateway.is_connected) if has_grpc else None
    if open_inference is not None:
        gateway.beside = partial(open_inference.running, 0)
    sockets = Sockets(lambda: settings.limits, gateway.choose, proxies)
    listening = bound(Address("127.0.0.1", 0), backlog=128)
    config = uvicorn.Config(
        gateway.app(),
        http=sockets.http,  # type: ignore[arg-type]
        ws=sockets.websocket,  # type: ignore[arg-type]
        ws_max_size=MESSAGE_BYTES_MAX,
        ws_per_message_deflate=False,
        ws_ping_interval=None,
        access_log=False,
        log_config=None,
        forwarded_allow_ips=list(proxies),
        timeout_graceful_shutdown=1,
    )
    web = QuietServer(config)
    serving = asyncio.create_task(web.serve(sockets=[listening]))
    try:
        await until("the gateway serves", lambda: web.started)
        yield Stage(
            scheduler,
            f"127.0.0.1:{listening.getsockname()[1]}",
            lambda: server.stop(None),
            gateway.requests_read,
            open_inference,
        )
    finally:
        gateway.dashboard.leave()
        web.should_exit = True
        await serving
        listening.close()
        await server.stop(None)


@asynccontextmanager
async def program(
    name: str, answer: Answer, own: OwnCertificate | None = None, context: Any = None
) -> AsyncIterator[Replica]:
    """A replica that is there for the length of the block."""
    replica = Replica(name, answer, own)
    server = await asyncio.start_server(replica.serve, "127.0.0.1", 0, limit=HEAD_BYTES_MAX, ssl=context)
    replica.port = server.sockets[0].getsockname()[1]
    try:
        yield replica
    finally:
        server.close()
        await until(f"connections to {name} end", lambda: replica.open == 0)


async def asked(
    stage: Stage, path: str, method: str = "GET", body: bytes = b"", headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """One request and its whole answer."""
    async with asyncio.timeout(DEADLINE_SECONDS), stage.asking(path, method, headers, body) as asking:
        status, told = await asking.head()
        return status, told, b"".join([chunk async for chunk in asking.chunks(told)])
