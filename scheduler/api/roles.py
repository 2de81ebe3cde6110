"""Who may call what: one interceptor, one table. What is not in the table is denied."""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import grpc
import grpc.aio

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.refusing import refuse
from gpufleet.security.tokens import hash_token

from .. import job_tokens, node_tokens, worker_secrets
from ..job_tokens import JobTokens
from ..node_tokens import NodeTokens
from ..state.access import Role, Token
from ..state.ids import NodeName, TokenId, UserName
from ..state.jobs import Job
from ..state.state import State
from ..state.units import Instant
from ..worker_secrets import WorkerSecrets
from .identities import check_identity, with_identity
from .open_streams import OpenStreams
from .own_job import JOB_NAMED_BY, OTHERS_STEP, for_own_job

ALL = frozenset(Role)
PEOPLE = frozenset({Role.ADMIN, Role.USER})
READERS = frozenset({Role.ADMIN, Role.USER, Role.VIEWER})
ADMINS = frozenset({Role.ADMIN})
AGENTS = frozenset({Role.AGENT})
JOINING = frozenset({Role.AGENT, Role.NODE})
SESSIONS = frozenset({Role.ADMIN, Role.USER, Role.GATEWAY})
GATEWAYS = frozenset({Role.ADMIN, Role.GATEWAY})
WORKERS = frozenset({Role.WORKER, Role.ADMIN})
PROGRAMS = frozenset({Role.WORKER, Role.GATEWAY})
ITSELF = frozenset({Role.JOB})
"""A running job, of itself alone: own_job.py."""

ROLES_OF: dict[str, frozenset[Role]] = {
    "Scheduler/Submit": PEOPLE,
    "Scheduler/Ingest": PEOPLE,
    "Scheduler/StreamOutput": READERS | ITSELF,
    "Scheduler/Cancel": PEOPLE | ITSELF,
    "Scheduler/Queue": READERS,
    "Scheduler/GetJob": READERS | ITSELF,
    "Scheduler/GetStory": READERS | ITSELF,
    "Scheduler/Explain": READERS | ITSELF,
    "Scheduler/ListArrayItems": READERS,
    "Scheduler/Watch": READERS,
    "Scheduler/UpdateJob": PEOPLE | ITSELF,
    "Scheduler/SignalJob": PEOPLE | ITSELF,
    "Scheduler/RequeueJob": PEOPLE | ITSELF,
    "Scheduler/AttachJob": PEOPLE,
    "Scheduler/ForwardPort": PEOPLE,
    "Scheduler/AccessFiles": READERS,
    "Scheduler/KeepFiles": PEOPLE | ITSELF,
    "Scheduler/ExecJob": PEOPLE,
    "Scheduler/ListNodes": READERS | AGENTS,
    "Scheduler/ListWorkers": READERS,
    "Scheduler/ListDevices": READERS,
    "Scheduler/UpdateNode": ADMINS,
    "Scheduler/ForgetNode": ADMINS,
    "Scheduler/ApproveNode": ADMINS,
    "Scheduler/RevokeNode": ADMINS,
    "Scheduler/CheckCapacity": READERS,
    "Scheduler/Estimate": READERS,
    "Scheduler/GetJobStats": READERS | ITSELF,
    "Scheduler/WatchDevices": READERS,
    "Scheduler/GetNodeHistory": READERS,
    "Scheduler/GetQueueHistory": READERS,
    "Scheduler/ListUsage": READERS,
    "Scheduler/ListEndedJobs": READERS,
    "Scheduler/GetServerInfo": ALL,
    "Scheduler/UpdateServer": ADMINS,
    "Scheduler/ServeModel": PEOPLE,
    "Scheduler/ListModels": READERS | SESSIONS,
    "Scheduler/StopModel": PEOPLE,
    "Scheduler/OpenSession": SESSIONS,
    "Scheduler/ListSessions": READERS,
    "Scheduler/CloseSession": PEOPLE,
    "Scheduler/ListSessionUsage": READERS,
    "Scheduler/DrainWorker": PEOPLE,
    "Scheduler/WatchWorkers": READERS | SESSIONS,
    "Scheduler/ReportRequests": GATEWAYS,
    "Scheduler/CountRequests": GATEWAYS,
    "Scheduler/ListRequestUsage": READERS,
    "Scheduler/ConnectWorker": WORKERS,
    "Scheduler/FindMissingBlobs": PEOPLE,
    "Scheduler/UploadBlob": PEOPLE,
    "Scheduler/DownloadBlob": PEOPLE,
    "Scheduler/CheckFiles": PEOPLE,
    "Scheduler/ListFiles": READERS | ITSELF,
    "Scheduler/DownloadFile": READERS | ITSELF,
    "Scheduler/CreateToken": ADMINS,
    "Scheduler/JoinProgram": PROGRAMS,
    "Scheduler/ListTokens": ADMINS,
    "Scheduler/RevokeToken": ADMINS,
    "Scheduler/DescribeLogin": ALL,
    "Scheduler/BeginLogin": ALL,
    "Scheduler/Login": ALL,
    "Scheduler/Logout": READERS,
    "Scheduler/ListAuditEntries": PEOPLE,
    "Scheduler/SetSecret": PEOPLE,
    "Scheduler/ListSecrets": PEOPLE,
    "Scheduler/RemoveSecret": PEOPLE,
    "Scheduler/ListGroups": READERS,
    "Scheduler/SetGroup": ADMINS,
    "Scheduler/RenameGroup": ADMINS,
    "Scheduler/RemoveGroup": ADMINS,
    "NodeAgent/Register": JOINING,
    "NodeAgent/Heartbeat": AGENTS,
    "NodeAgent/ReportOutput": AGENTS,
    "NodeAgent/OpenChannel": AGENTS,
    "NodeAgent/CarryPort": AGENTS,
    "NodeAgent/CarryFiles": AGENTS,
    "NodeAgent/CarryExec": AGENTS,
    "NodeAgent/FetchBlob": AGENTS,
    "NodeAgent/StoreResults": AGENTS,
}

WITHOUT_TOKEN = frozenset({"Scheduler/DescribeLogin", "Scheduler/BeginLogin", "Scheduler/Login"})
"""Calls by which people come to a token. One that is brought all the same must be good."""

OPEN_SERVICES = ("/grpc.health.v1.Health/", "/grpc.reflection.")
"""Health and reflection want no token: they tell nothing that is not public."""
PACKAGE = "/gpufleet.v1."

OF_TRADED = frozenset({"Scheduler/JoinProgram", "Scheduler/GetServerInfo"})
"""All that a token is good for that programs trade for a credential."""

_OF_ITSELF = {name for name, roles in ROLES_OF.items() if Role.JOB in roles and roles != ALL}
assert set(JOB_NAMED_BY) == _OF_ITSELF, f"what a job may ask of itself differs: {_OF_ITSELF ^ set(JOB_NAMED_BY)}"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, as the token says. `job` is that of a worker that the fleet started, or the job that calls itself.

    `node` is that of an agent with a credential of its node, whose number is `credential`. `identities` are those of
    its certificate, None where the scheduler asks for none.
    """

    user: UserName
    role: Role
    token: TokenId
    job: Job | None = None
    node: NodeName | None = None
    credential: int = 0
    identities: frozenset[str] | None = None

    @property
    def is_admin(self) -> bool:
        """Whether other people's jobs may be changed."""
        return self.role is Role.ADMIN


_caller: ContextVar[Caller | None] = ContextVar("caller")


def caller() -> Caller:
    """Who makes the call that is being served."""
    found = _caller.get()
    assert found is not None, "a call that wants no token asks for caller_if_known"
    return found


def caller_if_known() -> Caller | None:
    """The same of a call that wants no token, or may be refused: whose token it is, let in or not; None for nobody."""
    return _caller.get(None)


@dataclass(eq=False)
class Authenticator:
    """Finds the token of a secret in the committed view; digests of secrets are looked up, never secrets."""

    _view: State
    _now: Callable[[], Instant]
    _workers: WorkerSecrets | None = None
    _jobs: JobTokens | None = None
    _nodes: NodeTokens | None = None

    def caller_of(self, method: str, secret: str | None) -> Caller:
        """Who calls, or the refusal as an error."""
        found = self.known(secret)
        self.check(method, found)
        return found

    def known(self, secret: str | None) -> Caller:
        """Whose token it is, whatever it is still good for. Errors: TOKEN_MISSING, TOKEN_INVALID."""
        if secret is None:
            raise GpufleetError(Reason.TOKEN_MISSING)
        found = self._caller(secret)
        if found is None:
            raise GpufleetError(Reason.TOKEN_INVALID)
        return found

    def check(self, method: str, found: Caller) -> None:
        """Refuse who may not make this call. Errors: TOKEN_REVOKED, PERMISSION_DENIED."""
        allowed = ROLES_OF.get(method.removeprefix(PACKAGE))
        if not self.is_good(found.token):
            raise GpufleetError(Reason.TOKEN_REVOKED)
        if allowed is None or found.role not in allowed:
            whose = f"of job {found.job.id}" if found.role is Role.JOB and found.job else f"of role {found.role.value}"
            raise GpufleetError(
                Reason.PERMISSION_DENIED,
                f"a token {whose} may not call {method.removeprefix(PACKAGE)}",
                next_step=OTHERS_STEP if found.role is Role.JOB else "",
            )
        token = self._view.durable.tokens.get(found.token)
        if token is not None and token.is_traded and method.removeprefix(PACKAGE) not in OF_TRADED:
            raise GpufleetError(
                Reason.PERMISSION_DENIED,
                f"token {token.id} lets programs join, each of which trades it for a credential of its own",
                next_step="Start the program again, in this version, once it can write to its folder.",
            )

    def _caller(self, secret: str) -> Caller | None:
        if not secret.isascii():
            return None  # no token is like that, and what compares secrets takes no other text
        token = self._token(hash_token(secret))
        if token is not None:
            return Caller(token.user, token.role, token.id)
        found = None if self._nodes is None else self._nodes.found(secret, self._view.durable)
        if found is not None:
            node, number = found
            by = UserName(f"node {node.name}")
            return Caller(by, Role.AGENT, node_tokens.token_id(node.name, number), node=node.name, credential=number)
        job = None if self._jobs is None else self._jobs.job_of(secret, self._view.durable)
        if job is not None:
            return Caller(job.user, Role.JOB, job_tokens.token_id(job), job)
        job = None if self._workers is None else self._workers.job_of(secret, self._view.durable)
        return (
            None
            if job is None
            else Caller(job.user, Role.WORKER, job_tokens.token_id(job, worker_secrets.TOKEN_ID_PREFIX), job)
        )

    def check_identity(self, who: Caller, identities: frozenset[str]) -> None:
        """Whether a certificate goes with a token; the call knows of it. Errors: PERMISSION_DENIED."""
        check_identity(identities, who, self._view.durable.tokens.get(who.token))
        _caller.set(replace(who, identities=identities))

    def is_good(self, token_id: TokenId) -> bool:
        """Whether a token may still be used: it is there, not revoked, and has not expired."""
        token = self._view.durable.tokens.get(token_id)
        if token is None and token_id.startswith(node_tokens.TOKEN_ID_PREFIX):
            return node_tokens.is_good(token_id, self._view.durable)
        if token is None:
            is_of_attempt = token_id.startswith((worker_secrets.TOKEN_ID_PREFIX, job_tokens.TOKEN_ID_PREFIX))
            return is_of_attempt and job_tokens.is_good(token_id, self._view.durable)
        return token.is_live(self._now())

    def _token(self, digest: str) -> Token | None:
        # Digests are looked up, and not secrets: how long it takes tells nothing of any secret.
        token = self._view.durable.tokens.of_digest(digest)
        if token is None or token.digest == digest:
            return token
        return token if token.former_is_good(self._now()) else None


class RoleInterceptor(grpc.aio.ServerInterceptor):
    """Lets a call through only when the table allows it, and lets a stream go on only while its token is good."""

    def __init__(self, authenticator: Authenticator, streams: OpenStreams, *, wants_certificates: bool = False) -> None:
        self._wants_certificates = wants_certificates
        self._authenticator = authenticator
        self._streams = streams

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Check the bearer token before anything of the request is read."""
        method = handler_call_details.method
        handler = await continuation(handler_call_details)
        if handler is None or method.startswith(OPEN_SERVICES):
            return handler
        secret = _secret(handler_call_details)
        if secret is None and method.removeprefix(PACKAGE) in WITHOUT_TOKEN:
            _caller.set(None)
            return handler
        try:
            caller = self._authenticator.known(secret)
            _caller.set(caller)
            self._authenticator.check(method, caller)
        except GpufleetError as error:
            return _refusing(handler, error)
        guarded = self._streams.guarded(handler, caller.token)
        name = method.removeprefix(PACKAGE)
        if caller.role is Role.JOB and caller.job is not None and name in JOB_NAMED_BY:
            guarded = for_own_job(guarded, name, caller.job.id)
        if self._wants_certificates:
            return with_identity(guarded, partial(self._authenticator.check_identity, caller))
        return guarded


def _secret(details: grpc.HandlerCallDetails) -> str | None:
    for key, value in details.invocation_metadata:
        if key == "authorization":
            text = value.decode() if isinstance(value, bytes) else value
            scheme, _, secret = text.partition(" ")
            return secret.strip() if scheme.lower() == "bearer" else None
    return None


def _refusing(handler: Any, error: GpufleetError) -> Any:
    """A handler of the same shape that only refuses."""

    async def refusing(request: object, context: Any) -> None:
        await refuse(context, error, request)

    kinds = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
    methods = {kind: refusing for kind in kinds if getattr(handler, kind) is not None}
    # Nothing of what came is read.
    return handler._replace(request_deserializer=None, response_serializer=None, **methods)
