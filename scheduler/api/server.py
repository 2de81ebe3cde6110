"""What is served: Scheduler and NodeAgent, health, reflection; behind one interceptor."""

from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio
from gpufleet.v1 import node_agent_pb2, node_agent_pb2_grpc, scheduler_pb2, scheduler_pb2_grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.addresses import Address
from gpufleet.net.channel import bounded_server_options
from gpufleet.net.decoding import DecodingInterceptor
from gpufleet.net.integers import problem_with_integers
from gpufleet.net.listening import listen
from gpufleet.net.reflection import serve_reflection
from gpufleet.net.refusing import refuse
from gpufleet.telemetry.spans import Telemetry

from ..audit.log import AuditLog
from ..blobs.store import BlobStore
from ..engine import Engine
from ..links import Links
from ..logins.ways import Ways
from ..output_hub import OutputHub
from ..secret_box import SecretBox
from ..series.attempts import AttemptSeries
from ..series.queries import HistoryQueries
from ..series.requests import RequestLog
from ..series.visit_log import VisitLog
from ..session_links import SessionLinks
from ..state.units import Span
from ..watching import ChangeHub
from ..wire.alike_specs import KnownSpecs
from .audited_calls import AUDITED_RPCS
from .auditing import AuditInterceptor
from .fleet.agents import AgentService
from .fleet.audit import AuditCalls
from .fleet.device_board import DeviceBoard
from .fleet.device_watch import DeviceCalls
from .fleet.file_checks import FileCheckCalls
from .fleet.freshness import Freshness
from .fleet.history import HistoryCalls
from .fleet.logins import LoginCalls
from .fleet.nodes import NodeCalls
from .fleet.tracking import TrackingCalls
from .fleet.working import WorkCalls
from .inside.entering import EnteringCalls
from .inside.tunnels import Tunnels
from .jobs.ended_jobs import EndedJobCalls
from .jobs.files import FileCalls
from .jobs.groups import GroupCalls
from .jobs.ingesting import IngestCalls
from .jobs.input_sources import InputSources
from .jobs.jobs import JobCalls
from .jobs.reasons import WaitReasons
from .jobs.results import ResultCalls
from .jobs.secrets import SecretCalls
from .open_streams import OpenStreams
from .output.channels import Channels, Keyboards
from .output.program_logs import ProgramLogs
from .paging import PageTokens
from .roles import ROLES_OF, Authenticator, RoleInterceptor
from .server_facts import ServerFacts
from .sessions.joining import Joining
from .sessions.request_usage import RequestUsageCalls
from .sessions.session_usage import SessionUsageCalls
from .sessions.sessions import SessionCalls

NOT_BUILT: tuple[str, ...] = ()
"""Calls of the contract that answer UNIMPLEMENTED with a next step."""


@dataclass(eq=False)
class SchedulerService(  # type: ignore[misc]
    JobCalls,
    IngestCalls,
    WorkCalls,
    NodeCalls,
    AuditCalls,
    SessionCalls,
    TrackingCalls,
    DeviceCalls,
    HistoryCalls,
    EndedJobCalls,
    SessionUsageCalls,
    RequestUsageCalls,
    FileCalls,
    FileCheckCalls,
    ResultCalls,
    SecretCalls,
    LoginCalls,
    GroupCalls,
    EnteringCalls,
    scheduler_pb2_grpc.SchedulerServicer,
):
    """The Scheduler service."""

    engine: Engine
    changes: ChangeHub
    _outputs: OutputHub
    links: Links
    logs: ProgramLogs
    facts: ServerFacts
    telemetry: Telemetry
    channels: Channels
    tunnels: Tunnels
    session_links: SessionLinks
    series: AttemptSeries
    histories: HistoryQueries
    visits: VisitLog
    requests: RequestLog
    blobs: BlobStore
    secret_box: SecretBox
    ways: Ways
    logins_hold: Span
    audit: AuditLog

    def __post_init__(self) -> None:
        engine = self.engine
        self.pages = PageTokens()
        self.reasons = WaitReasons(engine)
        self.freshness = Freshness(engine, self.links)
        self.board = DeviceBoard(engine, self.changes, self.links)
        self.joining = Joining(engine.view, Authenticator(engine.view, engine.now))
        self.keyboards = Keyboards()
        self.known_specs = KnownSpecs()
        self.inputs = InputSources(engine, self.blobs, self.facts.output_is_shared)
        self._arrays = {}
        self._streams = 0
        self._told_entries = OrderedDict()
        self._entered = Counter()

    @contextmanager
    def one_stream(self) -> Iterator[None]:
        """Count a follower for as long as it is served. Errors: TOO_MANY_STREAMS."""
        if self._streams >= self.facts.streams_max():
            raise GpufleetError(
                Reason.TOO_MANY_STREAMS, f"{self._streams:,} followers are connected", retry_after_s=5.0
            )
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1


def _not_built(name: str) -> Any:
    async def answer(self: Any, request: Any, context: Any) -> None:
        await refuse(context, GpufleetError(Reason.NOT_BUILT, f"{name} is not built yet"), request)

    return answer


def _not_built_stream(name: str) -> Any:
    async def answer(self: Any, request: Any, context: Any) -> AsyncIterator[Any]:
        await refuse(context, GpufleetError(Reason.NOT_BUILT, f"{name} is not built yet"), request)
        yield

    return answer


def _fill_in(service: type, base: type, descriptor: Any, names: tuple[str, ...]) -> None:
    """Answer the calls that are not built; one that is neither built nor named here stops the program at once."""
    for name in names:
        streams = descriptor.methods_by_name[name].server_streaming
        setattr(service, name, _not_built_stream(name) if streams else _not_built(name))
    forgotten = [each.name for each in descriptor.methods if getattr(service, each.name) is getattr(base, each.name)]
    assert not forgotten, f"{descriptor.name} has calls that nothing answers: {forgotten}"


_SCHEDULER = scheduler_pb2.DESCRIPTOR.services_by_name["Scheduler"]
_NODE_AGENT = node_agent_pb2.DESCRIPTOR.services_by_name["NodeAgent"]
_fill_in(SchedulerService, scheduler_pb2_grpc.SchedulerServicer, _SCHEDULER, NOT_BUILT)
_fill_in(AgentService, node_agent_pb2_grpc.NodeAgentServicer, _NODE_AGENT, ())
_CONTRACT = {f"{service.name}/{method.name}" for service in (_SCHEDULER, _NODE_AGENT) for method in service.methods}
assert set(AUDITED_RPCS) == _CONTRACT, f"what is audited and the contract differ: {set(AUDITED_RPCS) ^ _CONTRACT}"
assert set(ROLES_OF) == _CONTRACT, f"the table of roles and the contract differ: {set(ROLES_OF) ^ _CONTRACT}"


class Server:
    """The gRPC server of the scheduler."""

    def __init__(
        self,
        scheduler: SchedulerService,
        agents: AgentService,
        authenticator: Authenticator,
        message_bytes_max: int,
        audit: AuditLog,
        *,
        wants_certificates: bool = False,
    ) -> None:
        self._streams = OpenStreams(authenticator.is_good)
        self._server = grpc.aio.server(
            interceptors=[
                AuditInterceptor(audit, authenticator),
                RoleInterceptor(authenticator, self._streams, wants_certificates=wants_certificates),
                DecodingInterceptor(problem_with_integers),
            ],
            options=bounded_server_options(message_bytes_max),
        )
        scheduler_pb2_grpc.add_SchedulerServicer_to_server(scheduler, self._server)
        node_agent_pb2_grpc.add_NodeAgentServicer_to_server(agents, self._server)
        self._health = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue] (its stubs lack it)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        serve_reflection(self._server, _SCHEDULER, _NODE_AGENT)
        self._names = ("", _SCHEDULER.full_name, _NODE_AGENT.full_name)

    def listen(self, address: Address, credentials: grpc.ServerCredentials | None) -> int:
        """Bind; answers the port. Errors: PORT_TAKEN with its holder, ADDRESS_INVALID."""
        return listen(self._server, address, credentials)

    async def start(self) -> None:
        """Serve, and say that all is well."""
        await self._server.start()
        await self.set_health(serving=True)

    async def look_after_streams(self) -> None:
        """End the streams of tokens that are revoked or expire, until cancelled."""
        await self._streams.end_revoked_for_ever()

    async def set_health(self, *, serving: bool) -> None:
        """What grpc.health.v1 answers."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in self._names:
            await self._health.set(name, status)

    async def stop(self, grace_seconds: float) -> None:
        """Take no new calls, and end those that are open after the grace."""
        await self._server.stop(grace_seconds)
