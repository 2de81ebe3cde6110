"""Everything that survives a restart, as entities. `apply` in apply.py is the only thing that changes it.

Entities are frozen values in plain dictionaries. Beside them stand indexes that follow from them (the order of the
queue, what holds which device); they are never stored: `load` builds them again. What a record touched is noted in
`touched` and `finished`, so that the engine writes exactly that and nothing is compared.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

from .access import Counters, RememberedRequest, Secret, Token, Tokens
from .attempts import Rank
from .gap import HistoryGap
from .groups.group import GroupId, UserGroup, UserGroups
from .groups.use import GroupUse, MemberUse
from .ids import JobId, NodeName, RankKey, SecretKey, SecretName, TokenId, UserName
from .indexes.equal_jobs import EqualJobs, Jobs
from .indexes.indexes import Indexes, index, index_alike, index_equals, unindex, unindex_alike
from .jobs import Job, Tally
from .nodes import Node
from .results import ResultsDue
from .sessions.session import Model, ModelName, Session, SessionId, Sessions
from .specs import Asked
from .usage import Usage

Entity = (
    Job
    | EqualJobs
    | Tally
    | Usage
    | Node
    | Token
    | RememberedRequest
    | Counters
    | Model
    | Session
    | Secret
    | HistoryGap
    | ResultsDue
    | UserGroup
    | GroupUse
    | MemberUse
)
EntityKey = tuple[str, str]


KINDS: dict[type[Entity], tuple[str, Callable[[Any], str]]] = {
    Job: ("job", lambda job: str(job.id)),
    EqualJobs: ("equal_jobs", lambda equal: str(equal.first.id)),
    Tally: ("tally", lambda tally: str(tally.array)),
    Usage: ("usage", lambda usage: str(usage.user)),
    Node: ("node", lambda node: str(node.name)),
    Token: ("token", lambda token: str(token.id)),
    RememberedRequest: ("request", lambda request: request_key(request.user, request.request_id)[1]),
    Counters: ("counters", lambda counters: "jobs"),
    Model: ("model", lambda model: str(model.name)),
    Session: ("session", lambda session: str(session.id)),
    Secret: ("secret", lambda secret: secret_key(secret.user, secret.name)[1]),
    HistoryGap: ("gap", lambda gap: "last"),
    ResultsDue: ("results_due", lambda due: results_key(due.job, due.attempt)[1]),
    UserGroup: ("group", lambda group: str(group.id)),
    GroupUse: ("group_use", lambda use: str(use.group)),
    MemberUse: ("member_use", lambda use: member_use_key(use.group, use.user)[1]),
}
"""The kind of each class of entity in the store, and what its id is there."""


def key_of(entity: Entity) -> EntityKey:
    """The (kind, id) under which an entity is stored."""
    kind, id_of = KINDS[type(entity)]
    return kind, id_of(entity)


def request_key(user: UserName, request_id: str) -> EntityKey:
    """The (kind, id) of a remembered request. User names hold no NUL, so that two never share a key."""
    return ("request", f"{user}\x00{request_id}")


def secret_key(user: UserName, name: SecretName) -> EntityKey:
    """The (kind, id) of a secret; as that of a request."""
    return ("secret", f"{user}\x00{name}")


def results_key(job: JobId, attempt: int) -> EntityKey:
    """The (kind, id) of what an attempt is still to bring."""
    return ("results_due", f"{job}.{attempt}")


def member_use_key(group: GroupId, user: UserName) -> EntityKey:
    """The (kind, id) of what a user used in a group."""
    return ("member_use", f"{group}.{user}")


@dataclass(slots=True)
class Durable(Indexes):
    """The durable state with its indexes. Only `apply` changes it, and in a view of commits `turn_over`."""

    jobs: Jobs = field(default_factory=Jobs)
    nodes: dict[NodeName, Node] = field(default_factory=dict)
    tokens: Tokens = field(default_factory=Tokens)
    requests: dict[tuple[UserName, str], RememberedRequest] = field(default_factory=dict)
    secrets: dict[SecretKey, Secret] = field(default_factory=dict)
    counters: Counters = Counters()
    gap: HistoryGap | None = None
    models: dict[ModelName, Model] = field(default_factory=dict)
    sessions: Sessions = field(default_factory=Sessions)
    tallies: dict[JobId, Tally] = field(default_factory=dict)
    usage: dict[UserName, Usage] = field(default_factory=dict)
    results_due: dict[tuple[JobId, int], ResultsDue] = field(default_factory=dict)
    groups: UserGroups = field(default_factory=UserGroups)
    group_use: dict[GroupId, GroupUse] = field(default_factory=dict)
    member_use: dict[GroupId, dict[UserName, MemberUse]] = field(default_factory=dict)
    _largest_device_bytes: int | None = None
    _owners: frozenset[UserName] | None = field(default=None, compare=False)
    could_hold: set[tuple[Asked, int]] = field(default_factory=set, compare=False)
    """Classes of request, each with the default of free memory, that the nodes could hold; known until one changes."""
    lacking_gpu_nodes: dict[tuple[Asked, int], bool] = field(default_factory=dict, compare=False)
    """The same of classes that prefer GPUs: whether no node is up that could give them any; see policy/routing.py."""
    touched: dict[EntityKey, Entity | None] = field(default_factory=dict)
    finished: dict[JobId, Job] = field(default_factory=dict)

    def entities(self) -> Iterator[Entity]:
        """Every entity, for checks and for comparing with a store."""
        yield from self.jobs.entities()
        yield from self.tallies.values()
        yield from self.usage.values()
        yield from self.nodes.values()
        yield from self.tokens.values()
        yield from self.requests.values()
        yield from self.secrets.values()
        yield from self.models.values()
        yield from self.sessions.by_id.values()
        yield from self.results_due.values()
        yield from self.groups.by_id.values()
        yield from self.group_use.values()
        for of_group in self.member_use.values():
            yield from of_group.values()
        yield self.counters
        if self.gap is not None:
            yield self.gap

    def tally(self, array: JobId) -> Tally:
        """How the items of a live array that have ended did."""
        return self.tallies.get(array) or Tally(array=array)

    def items_alike(self, array: JobId) -> EqualJobs | None:
        """The items of an array that wait and never differed, if there are any."""
        return self.jobs.equals_from(JobId(array + 1))

    def live_rank(self, key: RankKey) -> Rank | None:
        """The rank of this key, if it has been placed and has not ended; a key may come from anybody."""
        job = self.jobs.get(key.job)
        attempt = job.attempt if job is not None else None
        if attempt is None or not attempt.has(key):
            return None
        rank = attempt.ranks[key.rank]
        return rank if rank.exit is None else None

    def largest_device_bytes(self) -> int:
        """Memory of the largest device that any node has, 0 without devices; known until a node changes."""
        if self._largest_device_bytes is None:
            sizes = (device.memory_bytes for node in self.nodes.values() for device in node.info.devices)
            self._largest_device_bytes = max(sizes, default=0)
        return self._largest_device_bytes

    def owners(self) -> frozenset[UserName]:
        """Users of whom a node takes jobs, and of nobody else; known until a node changes."""
        if self._owners is None:
            told = (node.info.job_accounts for node in self.nodes.values())
            self._owners = frozenset(each.owner for each in told if each.is_alone)
        return self._owners

    def set_node(self, name: NodeName, node: Node | None) -> None:
        """Keep a node, or drop it."""
        self._largest_device_bytes = None
        self._owners = None
        self.could_hold.clear()
        self.lacking_gpu_nodes.clear()
        if node is None:
            self.nodes.pop(name, None)
        else:
            self.nodes[name] = node


def load(entities: Iterator[Entity]) -> Durable:
    """The durable state that these stored entities make."""
    durable = Durable()
    for entity in entities:
        adopt(durable, entity)
    # Oldest first, as they came: forgetting them stops at the first that is too young.
    durable.requests = dict(sorted(durable.requests.items(), key=lambda each: each[1].at))
    return durable


def turn_over(durable: Durable, upserts: Iterable[Entity], deletes: Iterable[EntityKey]) -> None:
    """Bring a view up to a commit. First all that changed lets go, for a device may pass from one job to another.

    Jobs that came to differ from their equals leave them here as they did in the state: what is left is what is stored.
    """
    kept = tuple(upserts)
    for key in (*deletes, *(key_of(entity) for entity in kept if isinstance(entity, Job))):
        discard(durable, key)
    for entity in kept:
        adopt(durable, entity)


def adopt(durable: Durable, entity: Entity) -> None:
    """Put a stored entity that is not there yet in its place, with its indexes; one without indexes is replaced."""
    match entity:
        case Job():
            index(durable, entity)
            durable.jobs.put(entity)
        case EqualJobs():
            known = durable.jobs.equals_from(entity.first.id)
            if known is not None and entity.first.array is not None:
                unindex_alike(durable, known)  # they may have changed together
            if known is None or entity.first.array is not None:
                index_equals(durable, entity)
                durable.jobs.put_equals(entity)
        case Tally():
            durable.tallies[entity.array] = entity
        case Usage():
            durable.usage[entity.user] = entity
        case Node():
            durable.set_node(entity.name, entity)
        case Token():
            durable.tokens[entity.id] = entity
        case RememberedRequest():
            durable.requests[entity.user, entity.request_id] = entity
        case Secret():
            durable.secrets[entity.key] = entity
        case Counters():
            durable.counters = entity
        case HistoryGap():
            durable.gap = entity
        case ResultsDue():
            durable.results_due[entity.job, entity.attempt] = entity
        case UserGroup():
            durable.groups.put(entity)
            if entity.is_removed:
                durable.lines.end_group(entity.id)
        case GroupUse():
            durable.group_use[entity.group] = entity
        case MemberUse():
            durable.member_use.setdefault(entity.group, {})[entity.user] = entity
        case Model():
            durable.models[entity.name] = entity
        case Session():
            durable.sessions.put(entity)
        case _:
            assert_never(entity)


def discard(durable: Durable, key: EntityKey) -> None:
    """Take an entity that is gone out of a view; the other half of `adopt`."""
    kind, name = key
    match kind:
        case "job":
            job_id = JobId(int(name))
            old = durable.jobs.get(job_id)
            if old is not None:
                take_out(durable, old)
                durable.jobs.pop(job_id)
        case "equal_jobs":
            equal = durable.jobs.equals_from(JobId(int(name)))
            if equal is not None:
                drop_equals(durable, equal)
        case "tally":
            durable.tallies.pop(JobId(int(name)), None)
        case "node":
            durable.set_node(NodeName(name), None)
        case "token":
            durable.tokens.drop(TokenId(name))
        case "request":
            user, _, request_id = name.partition("\x00")
            durable.requests.pop((UserName(user), request_id), None)
        case "secret":
            user, _, secret_name = name.partition("\x00")
            durable.secrets.pop((UserName(user), SecretName(secret_name)), None)
        case "model":
            durable.models.pop(ModelName(name), None)
        case "session":
            durable.sessions.drop(SessionId(int(name)))
        case "results_due":
            job, _, attempt = name.partition(".")
            durable.results_due.pop((JobId(int(job)), int(attempt)), None)
        case "group":
            durable.groups.drop(GroupId(int(name)))
            durable.lines.forget_group(GroupId(int(name)))
        case "group_use":
            durable.group_use.pop(GroupId(int(name)), None)
        case "member_use":
            group, _, member = name.partition(".")
            of_group = durable.member_use.get(GroupId(int(group)), {})
            of_group.pop(UserName(member), None)
            if not of_group:
                durable.member_use.pop(GroupId(int(group)), None)
        case _:
            raise AssertionError(f"no entity of kind {kind!r} is ever gone")


def drop_equals(durable: Durable, equal: EqualJobs) -> None:
    """Take equal jobs out of their places; those that left them before stay."""
    if equal.first.array is not None:
        unindex_alike(durable, equal)
    else:
        for each in equal.jobs():
            unindex(durable, each)
    durable.jobs.put_equals(replace(equal, spans=()))


def take_out(durable: Durable, job: Job) -> EqualJobs | None:
    """Take a job out of its places, and from among its equals; what is left of them, None where it stood for itself."""
    equal = durable.jobs.equals_of(job.id)
    if equal is None or equal.first.array is None:
        unindex(durable, job)
        return durable.jobs.part(job.id)
    unindex_alike(durable, equal)
    left = durable.jobs.part(job.id)
    assert left is not None
    index_alike(durable, left)
    return left
