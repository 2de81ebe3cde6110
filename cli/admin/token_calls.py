"""What `token` asks and shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from gpufleet.v1 import scheduler_pb2

from gpufleet.errors import invalid
from gpufleet.fleet.client import all_pages, connected
from gpufleet.fleet.reading import check_known, read
from gpufleet.fleet.settings import Settings
from gpufleet.text.units import parse_duration

from .. import screen
from ..printing import print_answer, print_list, print_message
from ..render import words
from ..render.table import Cell, Colour, Column, draw

NODES_USER = "nodes"
"""The user of a token with which nodes join, where none is named."""

ROLES = {
    "admin": scheduler_pb2.ROLE_ADMIN,
    "user": scheduler_pb2.ROLE_USER,
    "viewer": scheduler_pb2.ROLE_VIEWER,
    "node": scheduler_pb2.ROLE_NODE,
    "agent": scheduler_pb2.ROLE_AGENT,
    "gateway": scheduler_pb2.ROLE_GATEWAY,
    "worker": scheduler_pb2.ROLE_WORKER,
}


@dataclass(frozen=True, slots=True)
class Joining:
    """Which nodes a token lets join, or of which models workers, and how many."""

    nodes: str
    models: str
    uses_max: int


def create_token(settings: Settings, user: str, role: str, valid_for: str | None, note: str, joining: Joining) -> None:
    """Make a token and print its secret alone on stdout."""
    check_known("--role", role, ROLES, "is no role", "Write admin, user, viewer, node, agent, gateway or worker.")
    if not user and role != "node":
        raise invalid("USER", "is missing", next_step=f"Name its user: gpuctl token create ann --role {role}")
    request = scheduler_pb2.CreateTokenRequest(
        user=user or NODES_USER,
        role=ROLES[role],
        note=note,
        nodes=joining.nodes,
        models=joining.models,
        uses_max=joining.uses_max,
    )
    if valid_for is not None:
        request.valid_for.FromTimedelta(read("--valid-for", parse_duration, valid_for))
    with connected(settings) as client:
        answer = client.call(client.scheduler.CreateToken, request)
    if settings.format in ("json", "jsonl"):
        print_message(answer, settings.format)
        return
    print(answer.secret, flush=True)
    whose = f"with which {joining.nodes or 'any'} nodes join" if role == "node" else f"of {user} ({role})"
    screen.tell(
        f"Token {answer.token.id} {whose}. It is shown only now: keep it in a file of mode 0600,\n"
        f"and name the file with --token-file, or: gpuctl config context add NAME --token-file FILE"
    )


def list_tokens(settings: Settings) -> None:
    """Print all tokens."""
    whole = scheduler_pb2.ListTokensResponse()
    with connected(settings) as client:
        request = scheduler_pb2.ListTokensRequest(page_size=1000)
        for page in all_pages(client, client.scheduler.ListTokens, request):
            whole.tokens.extend(page.tokens)
    now = screen.local_now()
    print_list(
        settings.format,
        whole.tokens,
        whole=whole,
        name=lambda token: token.id,
        lines=lambda look: draw(_columns(now, whole.tokens), whole.tokens, look),
    )


def revoke_token(settings: Settings, token_id: str) -> None:
    """Revoke a token."""
    with connected(settings) as client:
        answer = client.call_again(client.scheduler.RevokeToken, scheduler_pb2.RevokeTokenRequest(id=token_id))
    line = f"token {answer.token.id} of {answer.token.user} is revoked"
    print_answer(settings.format, answer.token, line, lambda _: [line])


def _columns(now: datetime, tokens: Iterable[scheduler_pb2.Token]) -> list[Column[scheduler_pb2.Token]]:
    words_of = {role: word for word, role in ROLES.items()}
    shown = [each.role for each in tokens if _joined(each)]
    title = "NODES" if all(role == scheduler_pb2.ROLE_NODE for role in shown) else "FOR"
    joining = [Column(title, _joined, least=6)] if shown else []
    return [
        Column("ID", lambda token: token.id),
        Column("USER", lambda token: token.user, least=8),
        Column("ROLE", lambda token: words_of.get(token.role, str(token.role))),
        Column("MADE", lambda token: words.clock(token.create_time, now)),
        Column("VALID UNTIL", lambda token: _validity(token, now)),
        *joining,
        Column("NOTE", lambda token: token.note, least=8),
    ]


def _joined(token: scheduler_pb2.Token) -> str:
    """Whom it lets join, with how many it has; of a credential whose it is."""
    if token.program:
        return f"{token.program} of {token.models}" if token.models else token.program
    if token.role == scheduler_pb2.ROLE_NODE or token.uses_max:
        names = token.nodes if token.role == scheduler_pb2.ROLE_NODE else token.models
        return f"{names or '*'} {token.uses}" + (f"/{token.uses_max}" if token.uses_max else "")
    return token.models


def _validity(token: scheduler_pb2.Token, now: datetime) -> Cell | str:
    if token.is_revoked:
        return Cell("revoked", Colour.BAD)
    if not token.HasField("expire_time"):
        return "for ever"
    if words.span_between(token.expire_time, now).total_seconds() > 0:
        return Cell("expired", Colour.BAD)
    return words.clock(token.expire_time, now)
