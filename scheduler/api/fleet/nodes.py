"""The Scheduler service, second half: nodes, tokens and the server itself."""

import platform
import re
import secrets

from gpufleet.v1 import job_pb2, node_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.host.event_loop import running_loop_in_words
from gpufleet.host.facts import open_files_max
from gpufleet.security.tokens import hash_token, make_token

from ...engine import Engine
from ...links import Links
from ...policy.fit import default_min_memory_bytes, node_views
from ...policy.gap import gap_hold
from ...session_links import SessionLinks
from ...state.access import Role, Token
from ...state.events import (
    DrainRequested,
    ForgetRequested,
    GapReleaseRequested,
    NodeApprovalRequested,
    NodeRevokeRequested,
    ProgramAnnounced,
    RevokeRequested,
    TokenRequested,
)
from ...state.ids import NodeName, TokenId, UserName
from ...state.nodes import Reachability
from ...state.replies import CredentialGiven, NodeChanged, NodeGone
from ...state.units import DAY, after
from ...wire.convert import ROLES, timestamp, token_proto
from ...wire.convert_gap import store_gap
from ...wire.convert_nodes import node_proto, refusal_proto
from ...wire.validate import (
    SPAN_MAX,
    USER_NAME,
    check_no_node,
    check_nodes,
    no_such_node,
    node_name,
    program_name,
    span_of,
)
from ...wire.validate_models import model_name
from ..answers import Calls, reply_of
from ..jobs.bands import bands_of_caller
from ..own_node import check_certificate
from ..paging import PageTokens, page_size
from ..roles import caller
from ..server_facts import ServerFacts
from .freshness import Freshness
from .scheduler_runs import connected_gateway, scheduler_run

PROTOCOL_VERSION = 1
ROLE_OF = {number: role for role, number in ROLES.items()}
TOKEN_ID_BYTES = 4
NOTE_CHARS_MAX = 200
NODE_PATTERN = re.compile(r"[A-Za-z0-9._*-]{1,63}")
DIGEST = re.compile("[0-9a-f]{64}")
GATEWAYS_SHOWN_MAX = 100
USES_MAX = 10_000
"""Nodes, or programs, that one token may let join, where it says how many."""


def shown_node(engine: Engine, name: NodeName) -> node_pb2.Node | None:
    """A node as people see it now; None when it is gone."""
    if name not in engine.view.durable.nodes:
        return None
    now = engine.now()
    view = node_views(engine.view, now)[name]
    live, least = engine.view.live, default_min_memory_bytes(engine.view)
    hold = engine.view.durable.hold(name)
    return node_proto(view, live.nodes.get(name), live.refused_nodes.get(name), hold, now, least)


class NodeCalls(Calls):
    """What people ask of nodes, tokens and the server. Each method is one RPC."""

    engine: Engine
    pages: PageTokens
    facts: ServerFacts
    freshness: Freshness
    links: Links
    session_links: SessionLinks

    async def ListNodes(self, request: scheduler_pb2.ListNodesRequest) -> scheduler_pb2.ListNodesResponse:
        """A page of nodes, in the order of their names."""
        size = page_size(request.page_size)
        query = f"nodes {sorted(request.names)}"
        cursor = self.pages.read(query, request.page_token)
        names = sorted(self.engine.view.durable.nodes)
        check_nodes(request.names, self.engine.view.durable.nodes, "names")
        wanted = [
            name for name in names if (not request.names or name in request.names) and (not cursor or name > cursor[0])
        ]
        if request.fresh:
            await self.freshness.of(wanted[:size])
            wanted = [name for name in wanted if name in self.engine.view.durable.nodes]
        now = self.engine.now()
        views = node_views(self.engine.view, now)
        live, refused = self.engine.view.live.nodes, self.engine.view.live.refused_nodes
        hold, least = self.engine.view.durable.hold, default_min_memory_bytes(self.engine.view)
        nodes = [
            node_proto(views[name], live.get(name), refused.get(name), hold(name), now, least) for name in wanted[:size]
        ]
        more = self.pages.sign(query, [wanted[size - 1]]) if len(wanted) > size else ""
        return scheduler_pb2.ListNodesResponse(nodes=nodes, next_page_token=more)

    async def UpdateNode(self, request: scheduler_pb2.UpdateNodeRequest) -> scheduler_pb2.UpdateNodeResponse:
        """Drain or resume a node."""
        if len(request.reason) > NOTE_CHARS_MAX:
            raise invalid("reason", f"is longer than {NOTE_CHARS_MAX} characters")
        event = DrainRequested(
            at=self.engine.now(),
            by=caller().user,
            node=node_name(request.node),
            is_draining=request.is_draining,
            reason=request.reason,
        )
        reply = await reply_of(self.engine.request(event))
        assert isinstance(reply, NodeChanged)
        return scheduler_pb2.UpdateNodeResponse(node=shown_node(self.engine, reply.node.name), changed=reply.changed)

    async def ForgetNode(self, request: scheduler_pb2.ForgetNodeRequest) -> scheduler_pb2.ForgetNodeResponse:
        """Drop a node that will not come back."""
        event = ForgetRequested(at=self.engine.now(), by=caller().user, node=node_name(request.node))
        reply = await reply_of(self.engine.request(event))
        assert isinstance(reply, NodeGone)
        return scheduler_pb2.ForgetNodeResponse(ended_job_ids=reply.ended, requeued_job_ids=reply.requeued)

    async def ApproveNode(self, request: scheduler_pb2.ApproveNodeRequest) -> scheduler_pb2.ApproveNodeResponse:
        """Let a node take part."""
        event = NodeApprovalRequested(at=self.engine.now(), by=caller().user, node=node_name(request.node))
        reply = await reply_of(self.engine.request(event))
        assert isinstance(reply, NodeChanged)
        return scheduler_pb2.ApproveNodeResponse(node=shown_node(self.engine, event.node), changed=reply.changed)

    async def RevokeNode(self, request: scheduler_pb2.RevokeNodeRequest) -> scheduler_pb2.RevokeNodeResponse:
        """Make a node's credential useless."""
        if len(request.reason) > NOTE_CHARS_MAX:
            raise invalid("reason", f"is longer than {NOTE_CHARS_MAX} characters")
        event = NodeRevokeRequested(
            at=self.engine.now(), by=caller().user, node=node_name(request.node), reason=request.reason
        )
        reply = await reply_of(self.engine.request(event))
        assert isinstance(reply, NodeChanged)
        return scheduler_pb2.RevokeNodeResponse(node=shown_node(self.engine, event.node), changed=reply.changed)

    async def GetServerInfo(self, request: scheduler_pb2.GetServerInfoRequest) -> scheduler_pb2.GetServerInfoResponse:
        """Versions, limits and health of the scheduler itself."""
        durable, live, now = self.engine.view.durable, self.engine.view.live, self.engine.now()
        ready = [
            name
            for name, node in durable.nodes.items()
            if not node.is_draining and (seen := live.nodes.get(name)) is not None and seen.reach is Reachability.READY
        ]
        return scheduler_pb2.GetServerInfoResponse(
            version=self.facts.version,
            protocol_version=PROTOCOL_VERSION,
            term=self.engine.store.term,
            start_time=timestamp(self.facts.started_at),
            server_time=timestamp(self.engine.now()),
            store_kind=self.engine.store.kind,
            store_is_healthy=not self.engine.store_error,
            store_error=self.engine.store_error or self.facts.output_error(),
            python_version=platform.python_version(),
            clock_stepped=self.facts.clock_stepped(),
            user=caller().user,
            role=caller().role.value,
            output_free_bytes=self.facts.output_free_bytes(),
            log_level=self.facts.log_level(),
            settings=[
                scheduler_pb2.Setting(name=name, value=value, origin=origin)
                for name, value, origin in self.facts.settings()
            ],
            node_count=len(durable.nodes),
            ready_node_count=len(ready),
            open_files_max=open_files_max(),
            bands=[job_pb2.Band.ValueType(band) for band in bands_of_caller(self.engine.view.limits.bands)],
            event_loop=running_loop_in_words(),
            store_gap=store_gap(durable.gap, gap_hold(self.engine.view, now), now),
            file_store=self.facts.file_store(),
            file_store_error=self.facts.file_store_error(),
            refused_nodes=[refusal_proto(each) for each in reversed(live.refused_nodes.values())],
            schedulers=[scheduler_run(each) for each in self.facts.schedulers()],
            gateways=[connected_gateway(each) for each in self.session_links.gateways()[:GATEWAYS_SHOWN_MAX]],
        )

    async def UpdateServer(self, request: scheduler_pb2.UpdateServerRequest) -> scheduler_pb2.UpdateServerResponse:
        """Change the log level of a running program, and end the wait of jobs since the store was put back."""
        if request.releases_gap:
            if request.program.program not in ("", "scheduler"):
                raise invalid("releases_gap", "is the scheduler's", next_step="Leave the program out.")
            if not request.log_level:
                check_no_node(request.program)
                await self._release_gap()
                return scheduler_pb2.UpdateServerResponse()
        if request.log_level not in ("debug", "info", "warning", "error"):
            raise invalid("log_level", f"is {request.log_level!r}; it must be debug, info, warning or error")
        match request.program.program:
            case "" | "scheduler":
                check_no_node(request.program)
                self.facts.set_log_level(request.log_level)
                if request.releases_gap:
                    await self._release_gap()
            case "agent":
                name = node_name(request.program.node, "program.node")
                if name not in self.engine.view.durable.nodes:
                    raise no_such_node("program.node", name)
                if not self.links.set_log_level(name, request.log_level):
                    raise GpufleetError(Reason.NODE_UNREACHABLE, f"the agent of node {name} is not connected")
            case other:
                raise invalid("program.program", f"is {other!r}; it must be scheduler or agent")
        return scheduler_pb2.UpdateServerResponse()

    async def _release_gap(self) -> None:
        await reply_of(self.engine.request(GapReleaseRequested(at=self.engine.now(), by=caller().user)))

    async def CreateToken(self, request: scheduler_pb2.CreateTokenRequest) -> scheduler_pb2.CreateTokenResponse:
        """Make a token; its secret is answered once."""
        if not USER_NAME.fullmatch(request.user):
            raise invalid(
                "user",
                f"{request.user!r} is not a user's name",
                next_step="use 1 to 63 letters, digits, '.', '-', '_' or '@', beginning with a letter or digit",
            )
        role = ROLE_OF.get(request.role)
        if role is None:
            raise invalid("role", "is not set", next_step="choose admin, user, viewer, node, agent, gateway or worker")
        if len(request.note) > NOTE_CHARS_MAX:
            raise invalid("note", f"is longer than {NOTE_CHARS_MAX} characters")
        now = self.engine.now()
        valid_for = span_of(request.valid_for) if request.HasField("valid_for") else None
        if valid_for is not None and not 0 < valid_for <= SPAN_MAX:
            raise invalid("valid_for", f"must be more than 0 and at most {SPAN_MAX // DAY:,} days")
        _check_joining(request)
        secret = make_token()
        token = Token(
            id=TokenId(secrets.token_hex(TOKEN_ID_BYTES)),
            user=UserName(request.user),
            role=role,
            digest=hash_token(secret),
            created_at=now,
            expires_at=None if valid_for is None else after(now, valid_for),
            note=request.note,
            nodes=request.nodes,
            uses_max=request.uses_max,
            models=request.models,
        )
        await reply_of(self.engine.request(TokenRequested(at=now, by=caller().user, token=token)))
        return scheduler_pb2.CreateTokenResponse(token=token_proto(token), secret=secret)

    async def JoinProgram(self, request: scheduler_pb2.JoinProgramRequest) -> scheduler_pb2.JoinProgramResponse:
        """Trade a token for the credential of one worker or gateway, or renew that."""
        name = program_name(request.name, "name")
        if not DIGEST.fullmatch(request.digest):
            raise invalid("digest", "is not a SHA-256 in lower-case hexadecimal")
        check_certificate(caller(), f"{caller().role.value}:{name}", "name")
        token = self.engine.view.durable.tokens.get(caller().token)
        if request.model or caller().role is Role.WORKER:
            model_name(request.model, "model")
        if request.model and caller().role is not Role.WORKER:
            raise invalid("model", "is said by workers alone", next_step="leave it out")
        if token is None or not (token.is_traded or token.program):
            return scheduler_pb2.JoinProgramResponse()
        event = ProgramAnnounced(
            at=self.engine.now(),
            by=token.id,
            name=name,
            digest=request.digest,
            fresh=TokenId(secrets.token_hex(TOKEN_ID_BYTES)),
            model=request.model,
        )
        reply = await reply_of(self.engine.request(event))
        assert isinstance(reply, CredentialGiven)
        return scheduler_pb2.JoinProgramResponse(
            credential=token_proto(self.engine.view.durable.tokens[reply.token.id])
        )

    async def ListTokens(self, request: scheduler_pb2.ListTokensRequest) -> scheduler_pb2.ListTokensResponse:
        """A page of tokens, in the order of their making."""
        size = page_size(request.page_size)
        cursor = self.pages.read("tokens", request.page_token)
        tokens = sorted(self.engine.view.durable.tokens.values(), key=lambda token: (token.created_at, token.id))
        wanted = [token for token in tokens if not cursor or [token.created_at, token.id] > cursor]
        last = wanted[size - 1] if len(wanted) > size else None
        more = self.pages.sign("tokens", [last.created_at, last.id]) if last else ""
        return scheduler_pb2.ListTokensResponse(
            tokens=[token_proto(token) for token in wanted[:size]], next_page_token=more
        )

    async def RevokeToken(self, request: scheduler_pb2.RevokeTokenRequest) -> scheduler_pb2.RevokeTokenResponse:
        """Make a token useless at once."""
        event = RevokeRequested(at=self.engine.now(), by=caller().user, token=TokenId(request.id))
        await reply_of(self.engine.request(event))
        return scheduler_pb2.RevokeTokenResponse(
            token=token_proto(self.engine.view.durable.tokens[TokenId(request.id)])
        )


LETS_JOIN = (scheduler_pb2.ROLE_NODE, scheduler_pb2.ROLE_WORKER, scheduler_pb2.ROLE_GATEWAY)


def _check_joining(request: scheduler_pb2.CreateTokenRequest) -> None:
    for path, value, roles in (
        ("nodes", request.nodes, (scheduler_pb2.ROLE_NODE,)),
        ("models", request.models, (scheduler_pb2.ROLE_WORKER,)),
        ("uses_max", request.uses_max, LETS_JOIN),
    ):
        if value and request.role not in roles:
            words = " or ".join(scheduler_pb2.Role.Name(role).removeprefix("ROLE_").lower() for role in roles)
            raise invalid(path, f"is for tokens of role {words}", next_step="choose another role, or leave it out")
    for path, value in (("nodes", request.nodes), ("models", request.models)):
        if value and not NODE_PATTERN.fullmatch(value):
            raise invalid(
                path,
                f"{value[:80]!r} is not what names of {path} are like",
                next_step="use letters, digits, '.', '-', '_', and * for any characters: gpu-*",
            )
    if not 0 <= request.uses_max <= USES_MAX:
        raise invalid("uses_max", f"is {request.uses_max:,}; it must be 1 to {USES_MAX:,}, or 0 for any number")
