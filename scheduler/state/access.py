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
    `models` are those that a worker may serve, as `nodes` are written. One of a `login` says who logged in, by what
    `same_person` compares: "password" and a digest, or "oidc" with issuer and subject.
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
    login: str = ""

    def is_live(self, now: Instant) -> bool:
        """Whether it may be used: not revoked, and not expired."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)

    @property
    def is_traded(self) -> bool:
        """Whether programs only trade it for a credential, and make no other call with it."""
        return self.role in (Role.WORKER, Role.GATEWAY) and self.uses_max > 0

    def former_is_good(self, now: Instant) -> bool:
        """Whether the credential of before the last renewal may still be used: its answer may be lost."""
        return self.renewed_at is not None and now < after(self.renewed_at, FORMER_GOOD_FOR)


PASSWORD_LOGIN, OIDC_LOGIN = "password", "oidc"
"""The first word of `Token.login`."""


def same_person(login: str, other: str) -> bool:
    """Whether two logins are of one person, given that they are of one user.

    A provider names its people by a subject that it gives to nobody else; of a file the user's name is that.
    """
    if login.partition(" ")[0] == other.partition(" ")[0] == PASSWORD_LOGIN:
        return True
    return login == other


class Tokens(dict[TokenId, Token]):
    """Tokens by their ids, and found by the digests that they have or had before they were renewed."""

    def __init__(self) -> None:
        super().__init__()
        self._by_digest: dict[str, TokenId] = {}

    def __setitem__(self, id: TokenId, token: Token) -> None:
        self._forget_digests(id)
        super().__setitem__(id, token)
        for digest in (token.digest, token.former_digest):
            if digest:
                self._by_digest[digest] = id

    def drop(self, id: TokenId) -> None:
        """Take a token out, if it is there."""
        self._forget_digests(id)
        super().pop(id, None)

    def of_digest(self, digest: str) -> Token | None:
        """The token with this digest, now or before it was renewed."""
        id = self._by_digest.get(digest)
        return None if id is None else self.get(id)

    def _forget_digests(self, id: TokenId) -> None:
        known = self.get(id)
        if known is not None:
            for digest in (known.digest, known.former_digest):
                if self._by_digest.get(digest) == id:
                    del self._by_digest[digest]


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
    """The next ids of jobs, of sessions and of groups; none is ever given twice."""

    next_job: int = 1
    next_session: int = 1
    next_group: int = 1
