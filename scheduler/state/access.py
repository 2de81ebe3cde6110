"""Who may do what: tokens, roles, and the memory of requests that must not be carried out twice."""

from dataclasses import dataclass
from enum import Enum

from .ids import JobId, TokenId, UserName
from .units import Instant


class Role(Enum):
    """What a token may do."""

    ADMIN = "admin"
    USER = "user"
    VIEWER = "viewer"
    AGENT = "agent"
    GATEWAY = "gateway"
    WORKER = "worker"
    NODE = "node"
    """Lets a node join, which its agent trades for a credential of that node."""
    JOB = "job"
    """A running job that calls about itself; no stored token has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A bearer token without its secret: `digest` is the SHA-256 of the secret in hexadecimal.

    One that lets nodes join does so for names like `nodes` (* for any characters; empty for all), and for `uses_max` of
    them (0: any number), of which `uses` have.
    """

    id: TokenId
    user: UserName
    role: Role
    digest: str
    created_at: Instant
    expires_at: Instant | None = None
    revoked_at: Instant | None = None
    note: str = ""
    nodes: str = ""
    uses_max: int = 0
    uses: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedRequest:
    """A request that was carried out: the same id and content answers the same again; other content is refused."""

    user: UserName
    request_id: str
    digest: str
    first_job: JobId
    count: int
    at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """The next ids of jobs and of sessions; none is ever given twice."""

    next_job: int = 1
    next_session: int = 1
