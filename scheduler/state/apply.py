"""`apply`: how each decided fact changes what survives a restart. Nothing else changes it."""

from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from .access import Counters
from .attempts import NODE_LOSS_REASONS, Attempt, EndedAttempt
from .durable import Durable, adopt, discard, drop_equals, key_of, request_key, take_out
from .equal_jobs import EqualJobs
from .ids import JobId, RankKey
from .indexes import index, index_equals, unindex_alike
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
from .sessions import Session
from .shares import WHOLE_MILLI
from .specs import Dependency
from .units import SECOND, Instant
from .usage import Usage, weight_of

AttemptChange = Callable[[Attempt], Attempt]


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
            drop_equals(durable, equal)
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
        left = take_out(durable, old)
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
