"""Who may do what: tokens, roles, users' secrets, and the memory of requests that must not be carried out twice."""

from dataclasses import dataclass
from enum import Enum

from .ids import JobId, SecretKey, SecretName, TokenId, UserName
from .units import HOUR, Instant, Span, after


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


FORMER_GOOD_FOR = Span(HOUR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A bearer token without its secret: `digest` is the SHA-256 of the secret in hexadecimal.

    One that lets nodes join does so for names like `nodes` (* for any characters; empty for all), and for `uses_max` of
    them (0: any number), of which `uses` have. One of a worker or gateway with `uses_max` is traded for the credential
    of one `program`, which is a token, too. A renewed one is still known by `former_digest` for a while: `knows`.
    `models` are those that a worker may serve, as `nodes` are written.
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
    models: str = ""
    program: str = ""
    joined_by: TokenId = TokenId("")
    former_digest: str = ""
    renewed_at: Instant | None = None

    @property
    def is_traded(self) -> bool:
        """Whether programs only trade it for a credential, and make no other call with it."""
        return self.role in (Role.WORKER, Role.GATEWAY) and self.uses_max > 0

    def former_is_good(self, now: Instant) -> bool:
        """Whether the credential of before the last renewal may still be used: its answer may be lost."""
        return self.renewed_at is not None and now < after(self.renewed_at, FORMER_GOOD_FOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A value that a user keeps for jobs: `sealed` as `secret_box.py` sealed it for this user and name alone.

    The key is never here.
    """

    user: UserName
    name: SecretName
    set_at: Instant
    set_by: UserName
    sealed: bytes = b""

    @property
    def key(self) -> SecretKey:
        """By what it is found."""
        return self.user, self.name


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
