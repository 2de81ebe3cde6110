"""What the core answers to a request; the API turns it into a response or an error."""

from dataclasses import dataclass

from .access import Secret, Token
from .groups.group import UserGroup
from .ids import JobId
from .jobs import Job
from .nodes import Node
from .sessions.session import SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The request was refused and changed nothing. `reason` is a row of the error table."""

    reason: str
    message: str
    field: str = ""
    next_step: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """Jobs `first` … `first + count − 1` are stored; for a dry run `job` is as it would be and `first` is 0."""

    first: JobId
    count: int
    job: Job | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange:
    """What a request did to one job."""

    job: JobId
    changed: bool
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsChanged:
    """What a request did to each of its jobs."""

    changes: tuple[JobChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChanged:
    """What a request did to a node."""

    node: Node
    changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGone:
    """A node was dropped, and what became of its jobs."""

    ended: tuple[JobId, ...]
    requeued: tuple[JobId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialGiven:
    """A program has this credential."""

    token: Token


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretChanged:
    """A secret was set, or removed; `is_new`: there was none of this name."""

    secret: Secret
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChanged:
    """A group as it is now, or was until it was removed; `is_new`: there was none of this name.

    `notes` are things that are allowed and worth knowing.
    """

    group: UserGroup
    changed: bool = True
    is_new: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A person has a place or a turn; `is_new`: False for one that was there before."""

    session: SessionId
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Done, and nothing more to say."""


Reply = (
    Refused
    | Submitted
    | JobsChanged
    | NodeChanged
    | NodeGone
    | CredentialGiven
    | SecretChanged
    | GroupChanged
    | Joined
    | Done
)
