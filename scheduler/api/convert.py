"""From the state's values to protos; the way back is `validate.py`. Here are instants, keys and tokens.

Beside it: `convert_jobs.py`, `convert_nodes.py` and `convert_commands.py`.
"""

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from gpufleet.v1 import node_agent_pb2, scheduler_pb2

from ..state.access import Role, Token
from ..state.ids import RankKey
from ..state.units import Instant, Span

ROLES = {
    Role.ADMIN: scheduler_pb2.ROLE_ADMIN,
    Role.USER: scheduler_pb2.ROLE_USER,
    Role.VIEWER: scheduler_pb2.ROLE_VIEWER,
    Role.AGENT: scheduler_pb2.ROLE_AGENT,
    Role.GATEWAY: scheduler_pb2.ROLE_GATEWAY,
    Role.WORKER: scheduler_pb2.ROLE_WORKER,
}


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
    )


def key_proto(key: RankKey) -> node_agent_pb2.AttemptKey:
    """A rank's key on the wire."""
    return node_agent_pb2.AttemptKey(job_id=key.job, attempt=key.attempt, rank=key.rank)
