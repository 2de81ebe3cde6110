"""What `token` asks and shows."""

from __future__ import annotations

from datetime import datetime

from gpufleet.v1 import scheduler_pb2

from gpufleet.errors import GpufleetError, invalid
from gpufleet.spelling import did_you_mean
from gpufleet.units import parse_duration

from . import screen
from .client import connected
from .listing import print_list
from .paging import all_pages
from .render import words
from .render.as_json import print_message
from .render.table import Cell, Colour, Column, Row, draw
from .settings import Settings

ROLES = {
    "admin": scheduler_pb2.ROLE_ADMIN,
    "user": scheduler_pb2.ROLE_USER,
    "viewer": scheduler_pb2.ROLE_VIEWER,
    "agent": scheduler_pb2.ROLE_AGENT,
    "gateway": scheduler_pb2.ROLE_GATEWAY,
    "worker": scheduler_pb2.ROLE_WORKER,
}
COLUMNS = (
    Column("ID"),
    Column("USER", least=8),
    Column("ROLE"),
    Column("MADE"),
    Column("VALID UNTIL"),
    Column("NOTE", least=8),
)


def create_token(settings: Settings, user: str, role: str, valid_for: str | None, note: str) -> None:
    """Make a token and print its secret alone on stdout."""
    if role not in ROLES:
        raise invalid(
            "--role",
            f'"{role}" is no role{did_you_mean(role, ROLES)}',
            next_step="Write admin, user, viewer, agent, gateway or worker.",
        )
    request = scheduler_pb2.CreateTokenRequest(user=user, role=ROLES[role], note=note)
    if valid_for is not None:
        try:
            request.valid_for.FromTimedelta(parse_duration(valid_for))
        except GpufleetError as problem:
            raise invalid("--valid-for", problem.message, next_step=problem.next_step) from None
    with connected(settings) as client:
        answer = client.call(client.scheduler.CreateToken, request)
    if settings.format in ("json", "jsonl"):
        print_message(answer, settings.format)
        return
    print(answer.secret, flush=True)
    screen.tell(
        f"Token {answer.token.id} of {user} ({role}). It is shown only now: keep it in a file of mode 0600,\n"
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
        lines=lambda look: draw(COLUMNS, [_row(token, now) for token in whole.tokens], look),
    )


def revoke_token(settings: Settings, token_id: str) -> None:
    """Revoke a token."""
    with connected(settings) as client:
        answer = client.call_again(client.scheduler.RevokeToken, scheduler_pb2.RevokeTokenRequest(id=token_id))
    if settings.format in ("json", "jsonl"):
        print_message(answer.token, settings.format)
    else:
        screen.print_lines([f"token {answer.token.id} of {answer.token.user} is revoked"])


def _row(token: scheduler_pb2.Token, now: datetime) -> Row:
    return [
        token.id,
        token.user,
        next((word for word, role in ROLES.items() if role == token.role), str(token.role)),
        words.clock(token.create_time, now),
        _validity(token, now),
        token.note,
    ]


def _validity(token: scheduler_pb2.Token, now: datetime) -> Cell | str:
    if token.is_revoked:
        return Cell("revoked", Colour.BAD)
    if not token.HasField("expire_time"):
        return "for ever"
    if words.span_between(token.expire_time, now).total_seconds() > 0:
        return Cell("expired", Colour.BAD)
    return words.clock(token.expire_time, now)
