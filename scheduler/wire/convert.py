"""From the state's values to protos; the way back is `validate.py`. Here are instants, keys and tokens.

Beside it: `convert_jobs.py`, `convert_nodes.py` and `convert_commands.py`.
"""

from collections.abc import Callable, Iterable
from enum import Enum
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from gpufleet.v1 import node_agent_pb2, scheduler_pb2

from gpufleet.errors import invalid
from gpufleet.jobs.run_protos import key_from_proto

from ..state.access import Role, Token
from ..state.ids import RankKey
from ..state.units import Instant, Span

E = TypeVar("E", bound=Enum)
N = TypeVar("N", bound=int)


def timestamp(at: Instant | None) -> Timestamp | None:
    """An instant on the wire; None stays absent."""
    if at is None:
        return None
    return Timestamp(seconds=at // 1_000_000, nanos=at % 1_000_000 * 1000)


def duration(span: Span | None) -> Duration | None:
    """A span on the wire; None stays absent."""
    if span is None:
        return None
    return Duration(seconds=span // 1_000_000, nanos=span % 1_000_000 * 1000)


def numbers_of(members: Iterable[E], number_of: Callable[[str], N], prefix: str) -> dict[E, N]:
    """The number on the wire of each member of an enum, whose name is the same there behind a prefix."""
    return {member: number_of(f"{prefix}_{member.name}") for member in members}


ROLES = numbers_of(set(Role) - {Role.JOB}, scheduler_pb2.Role.Value, "ROLE")


def token_proto(token: Token) -> scheduler_pb2.Token:
    """A token without its secret."""
    return scheduler_pb2.Token(
        id=token.id,
        user=token.user,
        role=ROLES[token.role],
        create_time=timestamp(token.created_at),
        expire_time=timestamp(token.expires_at),
        is_revoked=token.revoked_at is not None,
        note=token.note,
        nodes=token.nodes,
        uses_max=token.uses_max,
        uses=token.uses,
        models=token.models,
        program=token.program,
        renew_time=timestamp(token.renewed_at),
        joined_by=token.joined_by,
        login=token.login,
    )


def rank_key(key: node_agent_pb2.AttemptKey) -> RankKey:
    """A rank's key, checked. Raises INVALID_ARGUMENT."""
    try:
        return key_from_proto(key)
    except ValueError as why:
        raise invalid("key", str(why)) from None
