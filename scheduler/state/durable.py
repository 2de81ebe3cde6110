"""Everything that survives a restart, and `apply`, the only thing that changes it.

Entities are frozen values in plain dictionaries. Beside them stand indexes that follow from them (the order of the
queue, what holds which device); they are never stored: `load` builds them again. What a record touched is noted in
`touched` and `finished`, so that the engine writes exactly that and nothing is compared.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import assert_never

from .access import Counters, RememberedRequest, Token
from .attempts import Attempt, EndedAttempt
from .equal_jobs import EqualJobs, Jobs
from .ids import JobId, NodeName, RankKey, TokenId, UserName
from .indexes import ItemsLive, NodeHold, index, index_alike, index_equals, unindex, unindex_alike
from .jobs import (
    ATTEMPTS_KEPT,
    ActiveState,
    Deferred,
    Divided,
    EndedTogether,
    Held,
    Job,
    JobState,
    Queued,
    Running,
    Starting,
    Stopping,
    Tally,
    items_alike,
)
from .lines import Lines
from .nodes import Node, resumed
from .records import (
    AttemptEnded,
    AttemptPlaced,
    AttemptReady,
    AttemptStarted,
    AttemptStopping,
    AttemptUnreachable,
    AttemptVoided,
    BeginReached,
    DependencyMet,
    DeviceMarked,
    ItemsFinished,
    ItemsHeld,
    ItemsMoved,
    ItemsReleased,
    JobBandChanged,
    JobFinished,
    JobHeld,
    JobQueued,
    JobReleased,
    JobWarned,
    NodeDrained,
    NodeForgotten,
    NodeLost,
    NodeRegistered,
    NodeResumed,
    NodeReturned,
    RankEnded,
    Record,
    RequestForgotten,
    RequestRemembered,
    SignalSent,
    SpoolStateChanged,
    TokenCreated,
    TokenRevoked,
    WorkerDrained,
)
from .session_records import SessionRecord, changed_by, gone_by
from .sessions import Model, ModelName, Session, SessionId, Sessions
from .shares import WHOLE_MILLI
from .specs import Dependency
from .units import SECOND, Instant
from .usage import Usage, UserHold, weight_of

Entity = Job | EqualJobs | Tally | Usage | Node | Token | RememberedRequest | Counters | Model | Session
EntityKey = tuple[str, str]


def key_of(entity: Entity) -> EntityKey:
    """The (kind, id) under which an entity is stored."""
    match entity:
        case Job():
            return ("job", str(entity.id))
        case EqualJobs():
            return ("equal_jobs", str(entity.first.id))
        case Tally():
            return ("tally", str(entity.array))
        case Usage():
            return ("usage", entity.user)
        case Node():
            return ("node", entity.name)
        case Token():
            return ("token", entity.id)
        case RememberedRequest():
            return request_key(entity.user, entity.request_id)
        case Counters():
            return ("counters", "jobs")
        case Model():
            return ("model", entity.name)
        case Session():
            return ("session", str(entity.id))
        case _:
            assert_never(entity)


def request_key(user: UserName, request_id: str) -> EntityKey:
    """The (kind, id) of a remembered request. User names hold no NUL, so that two never share a key."""
    return ("request", f"{user}\x00{request_id}")


@dataclass(slots=True)
class Durable:
    """The durable state with its indexes. Change it by `apply` only."""

    jobs: Jobs = field(default_factory=Jobs)
    nodes: dict[NodeName, Node] = field(default_factory=dict)
    tokens: dict[TokenId, Token] = field(default_factory=dict)
    requests: dict[tuple[UserName, str], RememberedRequest] = field(default_factory=dict)
    counters: Counters = Counters()
    models: dict[ModelName, Model] = field(default_factory=dict)
    sessions: Sessions = field(default_factory=Sessions)
    lines: Lines = field(default_factory=Lines)
    held: dict[JobId, None] = field(default_factory=dict)
    deferred: dict[JobId, None] = field(default_factory=dict)
    dependents: dict[JobId, dict[JobId, None]] = field(default_factory=dict)
    wakes: list[tuple[Instant, JobId]] = field(default_factory=list)
    active: dict[JobId, type[JobState]] = field(default_factory=dict)
    gangs: dict[JobId, None] = field(default_factory=dict)
    services: dict[ModelName, dict[JobId, None]] = field(default_factory=dict)
    preemptible: dict[JobId, None] = field(default_factory=dict)
    claims: dict[JobId, dict[JobId, None]] = field(default_factory=dict)
    tallies: dict[JobId, Tally] = field(default_factory=dict)
    arrays: dict[JobId, ItemsLive] = field(default_factory=dict)
    usage: dict[UserName, Usage] = field(default_factory=dict)
    holds: dict[NodeName, NodeHold] = field(default_factory=dict)
    hold_changes: int = 0
    holds_of_user: dict[UserName, UserHold] = field(default_factory=dict)
    _largest_device_bytes: int | None = None
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
        yield from self.models.values()
        yield from self.sessions.by_id.values()
        yield self.counters

    def tally(self, array: JobId) -> Tally:
        """How the items of a live array that have ended did."""
        return self.tallies.get(array) or Tally(array=array)

    def items_alike(self, array: JobId) -> EqualJobs | None:
        """The items of an array that wait and never differed, if there are any."""
        return self.jobs.equals_from(JobId(array + 1))

    def largest_device_bytes(self) -> int:
        """Memory of the largest device that any node has, 0 without devices; known until a node changes."""
        if self._largest_device_bytes is None:
            sizes = (device.memory_bytes for node in self.nodes.values() for device in node.info.devices)
            self._largest_device_bytes = max(sizes, default=0)
        return self._largest_device_bytes

    def set_node(self, name: NodeName, node: Node | None) -> None:
        """Keep a node, or drop it."""
        self._largest_device_bytes = None
        if node is None:
            self.nodes.pop(name, None)
        else:
            self.nodes[name] = node

    def hold(self, node: NodeName) -> NodeHold:
        """What attempts hold on a node; an empty hold for a node without any."""
        return self.holds.get(node) or NodeHold()


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
        case Counters():
            durable.counters = entity
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
                _take_out(durable, old)
                durable.jobs.pop(job_id)
        case "equal_jobs":
            equal = durable.jobs.equals_from(JobId(int(name)))
            if equal is not None:
                _drop_equals(durable, equal)
        case "tally":
            durable.tallies.pop(JobId(int(name)), None)
        case "node":
            durable.set_node(NodeName(name), None)
        case "token":
            durable.tokens.pop(TokenId(name), None)
        case "request":
            user, _, request_id = name.partition("\x00")
            durable.requests.pop((UserName(user), request_id), None)
        case "model":
            durable.models.pop(ModelName(name), None)
        case "session":
            durable.sessions.drop(SessionId(int(name)))
        case _:
            raise AssertionError(f"no entity of kind {kind!r} is ever gone")


def apply(durable: Durable, record: Record) -> None:
    """Make a decided fact true. A record that cannot be applied is a programming error and raises."""
    if isinstance(record, SessionRecord):
        _apply_session(durable, record)
        return
    match record:
        case JobQueued(job=job, count=count):
            end = JobId(job.id + count)
            if count == 1:
                _put_job(durable, None, job)
            else:
                _put_equals(durable, EqualJobs(first=job, spans=((job.id, end),)))
            if job.items is not None:
                first, end = items_alike(job), JobId(end + job.items.indices.count)
                _put_equals(durable, EqualJobs(first=first, spans=((first.id, end),)))
            if end > durable.counters.next_job:
                durable.counters = Counters(next_job=end, next_session=durable.counters.next_session)
                durable.touched[key_of(durable.counters)] = durable.counters
        case RequestRemembered(request=request):
            durable.requests[request.user, request.request_id] = request
            durable.touched[key_of(request)] = request
        case RequestForgotten(user=user, request_id=request_id):
            del durable.requests[user, request_id]
            durable.touched[request_key(user, request_id)] = None
        case JobHeld(job=job_id):
            _set_state(durable, job_id, Held())
        case JobReleased(job=job_id, at=at):
            _change(durable, job_id, lambda job: _released(job, at))
        case BeginReached(job=job_id, at=at):
            _change(durable, job_id, lambda job: _with_conditions(job, at, begins_at=None, unmet=job.unmet))
        case DependencyMet(job=job_id, on=on, at=at):

            def met(job: Job) -> Job:
                unmet = tuple(each for each in job.unmet if each.job != on)
                return _with_conditions(job, at, begins_at=job.begins_at, unmet=unmet)

            _change(durable, job_id, met)
        case JobBandChanged(job=job_id, band=band):
            _change(durable, job_id, lambda job: replace(job, band=band, version=job.version + 1))
        case ItemsHeld(array=array):
            _change(durable, array, lambda job: replace(job, state=Held(), version=job.version + 1))
        case ItemsReleased(array=array, at=at):
            _change(durable, array, lambda job: _released(job, at))
        case ItemsMoved(array=array, band=band):
            _change(durable, array, lambda job: replace(job, band=band, version=job.version + 1))
        case ItemsFinished(array=array, spans=spans, finished=finished):
            equal = durable.items_alike(array)
            assert equal is not None and equal.spans == spans, f"array {array}: other items wait than those that end"
            _drop_equals(durable, equal)
            durable.touched[key_of(equal)] = None
            _tally(durable, durable.tally(array).adding_together(EndedTogether(spans=spans, finished=finished)))
            _set_state(durable, array, Divided(rest=None))
        case AttemptPlaced(job=job_id, attempt=attempt):
            job = durable.jobs[job_id]
            placed = replace(
                job,
                state=Starting(attempt=attempt),
                attempt_count=attempt.number,
                warnings=(),
                version=job.version + 1,
            )
            _put_job(durable, job, placed)
        case AttemptReady(job=job_id, rendezvous=rendezvous):
            _change_attempt(durable, job_id, lambda attempt: replace(attempt, rendezvous=rendezvous))
        case AttemptStarted(key=key, started_at=started_at):
            _start_rank(durable, key, started_at)
        case AttemptStopping():
            _stop_attempt(durable, record)
        case AttemptUnreachable(job=job_id, is_unreachable=is_unreachable):
            _change_attempt(durable, job_id, lambda attempt: replace(attempt, is_unreachable=is_unreachable))
        case RankEnded(key=key, exit=exit_):

            def end_rank(attempt: Attempt) -> Attempt:
                ended = replace(attempt.ranks[key.rank], exit=exit_)
                return replace(attempt, ranks=(*attempt.ranks[: key.rank], ended, *attempt.ranks[key.rank + 1 :]))

            _change_attempt(durable, key.job, end_rank)
        case AttemptEnded(job=job_id, ended=ended, is_held=is_held, is_retry=is_retry, begins_at=begins_at, at=at):
            job = durable.jobs[job_id]
            _charge(durable, job, ended)
            waiting = replace(
                job,
                state=Held() if is_held else Queued() if begins_at is None else Deferred(),
                begins_at=begins_at,
                past=_with(job.past, ended),
                requeue_count=job.requeue_count + (not is_retry),
                retries_used=job.retries_used + is_retry,
                waits_since=at,
                node_loss_count=job.node_loss_count + (ended.reason in NODE_LOSS_REASONS),
                version=job.version + 1,
            )
            _put_job(durable, job, waiting)
        case AttemptVoided(job=job_id):
            _set_state(durable, job_id, Queued())
        case WorkerDrained(job=job_id, at=at):
            job = durable.jobs[job_id]
            _put_job(durable, job, replace(job, drained_at=at, version=job.version + 1))
        case JobFinished(job=job_id, finished=finished, ended=last):
            job = durable.jobs[job_id]
            if last is not None:
                _charge(durable, job, last)
            past = job.past if last is None else _with(job.past, last)
            items = job.items
            if items is not None:
                items = replace(items, ended=durable.tally(job.id))
                if durable.tallies.pop(job.id, None) is not None:
                    durable.touched["tally", str(job.id)] = None
            if job.array is not None:
                _tally(durable, durable.tally(job.array).adding(finished))
            _put_job(durable, job, replace(job, state=finished, past=past, items=items, version=job.version + 1))
        case JobWarned(job=job_id, warning=warning):
            job = durable.jobs[job_id]
            _put_job(durable, job, replace(job, warnings=(*job.warnings, warning), version=job.version + 1))
        case SpoolStateChanged() | SignalSent():
            pass
        case NodeRegistered(node=node):
            _put_node(durable, node)
        case NodeLost(node=name):
            _put_node(durable, replace(durable.nodes[name], is_lost=True))
        case NodeReturned(node=name):
            _put_node(durable, replace(durable.nodes[name], is_lost=False))
        case NodeDrained(node=name, reason=reason):
            _put_node(durable, replace(durable.nodes[name], is_draining=True, drain_reason=reason))
        case NodeResumed(node=name):
            _put_node(durable, resumed(durable.nodes[name], durable.hold(name).device_uuids()))
        case NodeForgotten(node=name):
            durable.set_node(name, None)
            durable.touched["node", name] = None
        case DeviceMarked(node=name, device=device):
            node = durable.nodes[name]
            others = tuple(other for other in node.unhealthy if other.uuid != device.uuid)
            _put_node(durable, replace(node, unhealthy=(*others, device)))
        case TokenCreated(token=token):
            durable.tokens[token.id] = token
            durable.touched[key_of(token)] = token
        case TokenRevoked(token=token_id, at=at):
            revoked = replace(durable.tokens[token_id], revoked_at=at)
            durable.tokens[token_id] = revoked
            durable.touched[key_of(revoked)] = revoked
        case _:
            assert_never(record)


NODE_LOSS_REASONS = frozenset({"NODE_LOST", "EXIT_UNKNOWN", "NOT_STARTED"})
"""Ends of an attempt for which its node is to blame, not the job."""


def _apply_session(durable: Durable, record: SessionRecord) -> None:
    for entity in changed_by(record, durable.models, durable.sessions):
        if isinstance(entity, Session) and entity.id >= durable.counters.next_session:
            durable.counters = replace(durable.counters, next_session=entity.id + 1)
            durable.touched[key_of(durable.counters)] = durable.counters
        adopt(durable, entity)
        durable.touched[key_of(entity)] = entity
    for key in gone_by(record):
        discard(durable, key)
        durable.touched[key] = None


AttemptChange = Callable[[Attempt], Attempt]


def _charge(durable: Durable, job: Job, ended: EndedAttempt) -> None:
    weight = weight_of(job.spec.resources, len(ended.ranks)) / WHOLE_MILLI
    used = weight * max(0, ended.ended_at - ended.placed_at) / SECOND
    known = durable.usage.get(job.user) or Usage(user=job.user, cpu_seconds=0.0, at=ended.ended_at)
    durable.usage[job.user] = known.charged(used, ended.ended_at)
    durable.touched[key_of(durable.usage[job.user])] = durable.usage[job.user]


def _tally(durable: Durable, tally: Tally) -> None:
    durable.tallies[tally.array] = tally
    durable.touched[key_of(tally)] = tally


def _put_equals(durable: Durable, equal: EqualJobs) -> None:
    index_equals(durable, equal)
    durable.jobs.put_equals(equal)
    durable.touched[key_of(equal)] = equal


def _drop_equals(durable: Durable, equal: EqualJobs) -> None:
    if equal.first.array is not None:
        unindex_alike(durable, equal)
    else:
        for each in equal.jobs():
            unindex(durable, each)
    durable.jobs.put_equals(replace(equal, spans=()))


def _take_out(durable: Durable, job: Job) -> EqualJobs | None:
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


def _change(durable: Durable, job_id: JobId, change: Callable[[Job], Job]) -> None:
    """Change a job that waits; of an array those items that never differed, and with them what it says of them."""
    job = durable.jobs[job_id]
    if job.items is None:
        _put_job(durable, job, change(job))
        return
    equal = durable.items_alike(job_id)
    if equal is None:
        changed = change(job)
        _put_job(durable, job, replace(changed, state=job.state))
        return
    first = change(equal.first)
    assert isinstance(first.state, Queued | Deferred | Held)
    unindex_alike(durable, equal)
    _put_equals(durable, replace(equal, first=first))
    said = replace(
        job,
        state=Divided(rest=first.state),
        band=first.band,
        eligible_at=first.eligible_at,
        unmet=first.unmet,
        begins_at=first.begins_at,
        version=job.version + 1,
    )
    _put_job(durable, job, said)


def _released(job: Job, at: Instant) -> Job:
    waits = replace(job, state=Deferred())
    return _with_conditions(waits, at, begins_at=_still_to_come(job, at), unmet=job.unmet)


def _put_job(durable: Durable, old: Job | None, new: Job) -> None:
    if old is not None:
        left = _take_out(durable, old)
        if left is not None:
            durable.touched[key_of(left)] = left if left.spans else None
            if not left.spans and new.array is not None:
                _set_state(durable, new.array, Divided(rest=None))
    durable.touched[key_of(new)] = None if new.is_finished else new
    if new.is_finished:
        durable.jobs.pop(new.id)
        durable.finished[new.id] = new
    else:
        index(durable, new)
        durable.jobs.put(new)


def _still_to_come(job: Job, at: Instant) -> Instant | None:
    return job.begins_at if job.begins_at is not None and job.begins_at > at else None


def _with_conditions(job: Job, at: Instant, *, begins_at: Instant | None, unmet: tuple[Dependency, ...]) -> Job:
    """A waiting job with what it still waits for. Without anything it is eligible from now on, unless it is held."""
    told = replace(job, begins_at=begins_at, unmet=unmet, version=job.version + 1)
    if isinstance(job.state, Held):
        return told
    if unmet or begins_at is not None:
        return replace(told, state=Deferred())
    return replace(told, state=Queued(), eligible_at=at)


def _set_state(durable: Durable, job_id: JobId, state: JobState) -> None:
    job = durable.jobs[job_id]
    _put_job(durable, job, replace(job, state=state, version=job.version + 1))


def _active(job: Job) -> ActiveState:
    assert isinstance(job.state, Starting | Running | Stopping), f"job {job.id} has no attempt"
    return job.state


def _start_rank(durable: Durable, key: RankKey, started_at: Instant) -> None:
    job = durable.jobs[key.job]
    state = _active(job)
    rank = replace(state.attempt.ranks[key.rank], started_at=started_at)
    ranks = (*state.attempt.ranks[: key.rank], rank, *state.attempt.ranks[key.rank + 1 :])
    attempt = replace(state.attempt, ranks=ranks)
    all_started = all(each.started_at is not None for each in ranks)
    new: JobState
    match state:
        case Starting() if all_started:
            new = Running(attempt=attempt, started_at=started_at)
        case Stopping():
            new = replace(state, attempt=attempt, started_at=started_at if all_started else None)
        case _:
            new = replace(state, attempt=attempt)
    _set_state(durable, key.job, new)


def _stop_attempt(durable: Durable, record: AttemptStopping) -> None:
    state = _active(durable.jobs[record.job])
    match state:
        case Running(started_at=started_at):
            start: Instant | None = started_at
        case Stopping(started_at=start):
            pass
        case Starting():
            start = None
    stopping = Stopping(
        attempt=state.attempt,
        cause=record.cause,
        since=record.at,
        reason=record.reason,
        started_at=start,
        claimant=record.claimant,
        failed_rank=record.failed_rank,
    )
    _set_state(durable, record.job, stopping)


def _change_attempt(durable: Durable, job_id: JobId, change: AttemptChange) -> None:
    state = _active(durable.jobs[job_id])
    _set_state(durable, job_id, replace(state, attempt=change(state.attempt)))


def _put_node(durable: Durable, node: Node) -> None:
    old = durable.nodes.get(node.name)
    new = replace(node, version=1 if old is None else old.version + 1)
    durable.set_node(node.name, new)
    durable.touched[key_of(new)] = new


def _with(past: tuple[EndedAttempt, ...], ended: EndedAttempt) -> tuple[EndedAttempt, ...]:
    return (*past, ended)[-ATTEMPTS_KEPT:]
