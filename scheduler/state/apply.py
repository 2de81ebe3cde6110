"""`apply`: how each decided fact changes what survives a restart. Nothing else changes it."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import assert_never

from gpufleet.jobs.runs import StopCause

from . import jobs, records
from .attempts import Attempt, EndedAttempt
from .durable import (
    Durable,
    Entity,
    adopt,
    discard,
    drop_equals,
    key_of,
    request_key,
    results_key,
    secret_key,
    take_out,
)
from .gap import HistoryGap
from .gpu_choice import begun_anew, fallen_back, needing_gpus
from .groups.applying import apply_group, charge_group
from .groups.changes import GroupRecord
from .ids import JobId, NodeName, RankKey
from .indexes.equal_jobs import EqualJobs
from .indexes.indexes import index, index_equals, unindex_alike
from .jobs import Job, JobState
from .kept import with_copy
from .nodes import Node, approved, resumed, revoked
from .records import Record
from .results import due_with
from .sessions.records import SessionRecord, changed_by, gone_by
from .sessions.session import Session
from .shares import WHOLE_MILLI
from .specs import Dependency, KeptAway, is_longer
from .units import SECOND, Instant
from .usage import Usage, weight_of
from .warnings import with_marks_again

AttemptChange = Callable[[Attempt], Attempt]


def apply(durable: Durable, record: Record) -> None:
    """Make a decided fact true. A record that cannot be applied is a programming error and raises."""
    if isinstance(record, SessionRecord):
        _apply_session(durable, record)
        return
    if isinstance(record, GroupRecord):
        apply_group(durable, record)
        return
    match record:
        case records.JobQueued(job=job, count=count):
            end = JobId(job.id + count)
            if count == 1:
                _put_job(durable, None, job)
            else:
                _put_equals(durable, EqualJobs(first=job, spans=((job.id, end),)))
            if job.items is not None:
                first, end = jobs.items_alike(job), JobId(end + job.items.indices.count)
                _put_equals(durable, EqualJobs(first=first, spans=((first.id, end),)))
            if end > durable.counters.next_job:
                _keep(durable, replace(durable.counters, next_job=end))
        case records.RequestRemembered(request=request):
            _keep(durable, request)
        case records.RequestForgotten(user=user, request_id=request_id):
            del durable.requests[user, request_id]
            durable.touched[request_key(user, request_id)] = None
        case records.JobHeld(job=job_id) | records.ItemsHeld(array=job_id):
            _change(durable, job_id, lambda job: replace(job, state=jobs.Held(), version=job.version + 1))
        case records.JobReleased(job=job_id, at=at) | records.ItemsReleased(array=job_id, at=at):
            _change(durable, job_id, lambda job: _released(job, at))
        case records.BeginReached(job=job_id, at=at):
            _change(durable, job_id, lambda job: _with_conditions(job, at, begins_at=None, unmet=job.unmet))
        case records.DependencyMet(job=job_id, on=on, at=at):

            def met(job: Job) -> Job:
                unmet = tuple(each for each in job.unmet if each.job != on)
                return _with_conditions(job, at, begins_at=job.begins_at, unmet=unmet)

            _change(durable, job_id, met)
        case records.JobBandChanged(job=job_id, band=band) | records.ItemsMoved(array=job_id, band=band):
            _change(durable, job_id, lambda job: replace(job, band=band, version=job.version + 1))
        case records.JobUpdated(job=job_id) | records.ItemsUpdated(array=job_id):
            _change(durable, job_id, lambda job: _updated(job, record))
        case records.JobFellBack(job=job_id) | records.ItemsFellBack(array=job_id):
            _change(durable, job_id, lambda job: _fell_back(job, record))
        case (
            records.FallBackPostponed(job=job_id, until=until)
            | records.ItemsFallBackPostponed(array=job_id, until=until)
        ):
            _change(durable, job_id, lambda job: replace(job, falls_back_after=until, version=job.version + 1))
        case records.ItemsFinished(array=array, spans=spans, finished=finished):
            equal = durable.items_alike(array)
            assert equal is not None and equal.spans == spans, f"array {array}: other items wait than those that end"
            drop_equals(durable, equal)
            durable.touched[key_of(equal)] = None
            _keep(durable, durable.tally(array).adding_together(jobs.EndedTogether(spans=spans, finished=finished)))
            _set_state(durable, array, jobs.Divided(rest=None))
        case records.AttemptPlaced(job=job_id, attempt=attempt):
            job = durable.jobs[job_id]
            state, count = jobs.Starting(attempt=attempt), attempt.number
            _put_job(durable, job, replace(job, state=state, attempt_count=count, warnings=(), version=job.version + 1))
        case records.AttemptReady(job=job_id, rendezvous=rendezvous):
            _change_attempt(durable, job_id, lambda attempt: replace(attempt, rendezvous=rendezvous))
        case records.AttemptStarted(key=key, started_at=started_at, file_runs=runs):
            _set_state(durable, key.job, jobs.state_with_start(durable.jobs[key.job], key.rank, started_at, runs))
        case records.AttemptStopping():
            _stop_attempt(durable, record)
        case records.AttemptUnreachable(job=job_id, is_unreachable=is_unreachable):
            _change_attempt(durable, job_id, lambda attempt: replace(attempt, is_unreachable=is_unreachable))
        case records.AttemptAskedBack(job=job_id):
            _change_attempt(durable, job_id, lambda attempt: replace(attempt, is_asked_back=True))
        case records.RankEnded(key=key, exit=exit_, at=at):
            _change_attempt(durable, key.job, lambda attempt: attempt.with_rank(key.rank, exit=exit_))
            job = durable.jobs[key.job]
            _await_results(durable, job, jobs.active_state(job).attempt, (key.rank,), at)
        case records.AttemptEnded(ended=ended, is_retry=is_retry, begins_at=begins_at, at=at):
            job = durable.jobs[record.job]
            _charge(durable, job, ended)
            _await_results(durable, job, ended, _ended_last(job), at)
            has_timed_out = ended.reason == StopCause.TIME_LIMIT.value
            waiting = replace(
                job,
                eligible_at=at if has_timed_out else job.eligible_at,
                state=jobs.Held() if record.is_held else jobs.Queued() if begins_at is None else jobs.Deferred(),
                begins_at=begins_at,
                past=_with(job.past, ended),
                spec=(needing_gpus(job.spec) if record.needs_gpus else begun_anew(job.spec)).trying_all(),
                fell_back=None,
                falls_back_after=None,
                requeue_count=job.requeue_count + (not is_retry and not record.needs_gpus),
                retries_used=job.retries_used + is_retry,
                waits_since=at,
                node_loss_count=job.node_loss_count + (ended.is_node_loss and not ended.is_blameless),
                blameless_loss_count=job.blameless_loss_count + ended.is_blameless,
                time_out_count=job.time_out_count + has_timed_out,
                version=job.version + 1,
            )
            _put_job(durable, job, waiting)
        case records.AttemptVoided(job=job_id, node=name, kept_away=kept_away):
            job = durable.jobs[job_id]
            if record.is_excluded:
                kept_away = (KeptAway(node=name, tries=1, reason=record.reason, message=record.message),)
            spec = job.spec.keeping_away(*kept_away) if kept_away else job.spec
            _put_job(durable, job, replace(_voided(job), spec=spec))
        case records.NodesOpened(job=job_id, at=at):
            job = durable.jobs[job_id]
            _put_job(durable, job, replace(job, spec=job.spec.tried_again(at), version=job.version + 1))
        case records.WorkerDrained(job=job_id, at=at):
            job = durable.jobs[job_id]
            _put_job(durable, job, replace(job, drained_at=at, version=job.version + 1))
        case records.JobFinished(job=job_id, finished=finished, ended=last):
            job = durable.jobs[job_id]
            if last is not None:
                _charge(durable, job, last)
                _await_results(durable, job, last, _ended_last(job), last.ended_at)
            past = job.past if last is None else _with(job.past, last)
            items = job.items
            if items is not None:
                items = replace(items, ended=durable.tally(job.id))
                if durable.tallies.pop(job.id, None) is not None:
                    durable.touched["tally", str(job.id)] = None
            if job.array is not None:
                _keep(durable, durable.tally(job.array).adding(finished))
            ended_job = replace(job, state=finished, past=past, items=items, kept=(), version=job.version + 1)
            _put_job(durable, job, ended_job)
        case records.JobWarned(job=job_id, warning=warning):
            job = durable.jobs[job_id]
            _put_job(durable, job, replace(job, warnings=(*job.warnings, warning), version=job.version + 1))
        case records.SetupStateChanged() | records.SpoolStateChanged() | records.SignalSent() | records.JobEntered():
            pass
        case records.NoticeNotDelivered():
            pass
        case records.ResultsSettled(key=key):
            _settle_results(durable, key)
        case records.FilesKept(key=key, copy=copy):
            job = durable.jobs[key.job]
            _put_job(durable, job, replace(job, kept=with_copy(job.kept, copy), version=job.version + 1))
        case records.KeptWaitEnded(job=job_id, at=at):
            job = durable.jobs[job_id]
            waits = replace(job, begins_at=None, waits_since=at, version=job.version + 1)
            # Its place in the order is that of its submit, as behind every requeue.
            _put_job(durable, job, waits if isinstance(job.state, jobs.Held) else replace(waits, state=jobs.Queued()))
        case records.NodeRegistered(node=node):
            _put_node(durable, node)
        case records.NodeLost(node=name):
            _put_node(durable, replace(durable.nodes[name], is_lost=True))
        case records.NodeReturned(node=name):
            _put_node(durable, replace(durable.nodes[name], is_lost=False))
        case records.NodeDrained(node=name, reason=reason):
            _put_node(durable, replace(durable.nodes[name], is_draining=True, drain_reason=reason))
        case records.NodeResumed(node=name):
            _put_node(durable, resumed(durable.nodes[name], durable.hold(name).device_uuids()))
        case records.NodeApproved(node=name):
            _put_node(durable, approved(durable.nodes[name]))
        case records.NodeRevoked(node=name, reason=reason):
            _put_node(durable, revoked(durable.nodes[name], reason))
        case records.NodeRootChecked(node=name, root=root):
            _put_node(durable, replace(durable.nodes[name], checked_root=root))
        case records.NodeForgotten(node=name):
            durable.set_node(name, None)
            durable.touched["node", name] = None
            if durable.gap is not None and name in durable.gap.awaited:
                _keep(durable, _told_of(durable.gap, name))
        case records.DeviceMarked(node=name, device=device):
            node = durable.nodes[name]
            others = tuple(other for other in node.unhealthy if other.uuid != device.uuid)
            _put_node(durable, replace(node, unhealthy=(*others, device)))
        case records.NumbersRaised(next_job=next_job, next_session=next_session):
            next_session = max(next_session, durable.counters.next_session)
            _keep(durable, replace(durable.counters, next_job=next_job, next_session=next_session))
        case records.GapAccepted(gap=gap):
            _keep(durable, gap)
        case records.GapNodeReported(node=name):
            _keep(durable, _told_of(_gap(durable), name))
        case records.GapReleased(spans=spans):
            gap = _gap(durable)
            _keep(durable, replace(gap, released=(*gap.released, *spans)))
        case records.GapReleasedWhole():
            gap = _gap(durable)
            _keep(durable, replace(gap, released=((JobId(1), gap.jobs_below),)))
        case records.GapClosed():
            _keep(durable, replace(_gap(durable), is_closed=True, awaited=(), released=()))
        case records.GapOutlived():
            pass
        case records.AttemptFound(job=job_id, attempt=attempt, at=at):
            found: JobState = jobs.Running(attempt=attempt, started_at=attempt.placed_at)
            if record.cause is not None:
                found = jobs.Stopping(attempt=attempt, cause=record.cause, since=at, started_at=attempt.placed_at)
            job = durable.jobs[job_id]
            active = replace(job, state=found, attempt_count=attempt.number, warnings=(), unmet=(), begins_at=None)
            _put_job(durable, job, replace(active, version=job.version + 1))
        case records.AttemptGivenUp(key=key, node=name):
            gap = _gap(durable)
            _keep(durable, replace(gap, given_up=(*gap.given_up, (key.job, name))))
        case records.JobFound(job=job):
            gap = _gap(durable)
            if job.is_finished:
                durable.finished[job.id] = job
            else:
                _put_job(durable, None, job)
            _keep(durable, replace(gap, found=(*gap.found, job.id)))
        case records.TokenCreated(token=token):
            _keep(durable, token)
        case records.TokenRevoked(token=token_id, at=at):
            _keep(durable, replace(durable.tokens[token_id], revoked_at=at))
        case records.LoginEnded(token=token_id, at=at):
            _keep(durable, replace(durable.tokens[token_id], expires_at=at))
        case records.LoginForgotten(token=token_id):
            durable.tokens.drop(token_id)
            durable.touched["token", str(token_id)] = None
        case records.TokenUsed(token=token_id):
            token = durable.tokens[token_id]
            _keep(durable, replace(token, uses=token.uses + 1))
        case records.ProgramJoined(token=token):
            parent = durable.tokens[token.joined_by]
            _keep(durable, replace(parent, uses=parent.uses + 1))
            _keep(durable, token)
        case records.CredentialRenewed(token=token_id, digest=digest, at=at):
            token = durable.tokens[token_id]
            _keep(durable, replace(token, digest=digest, former_digest=token.digest, renewed_at=at))
        case records.SecretSet(secret=secret):
            _keep(durable, secret)
        case records.SecretRemoved(user=user, name=secret_name):
            del durable.secrets[user, secret_name]
            durable.touched[secret_key(user, secret_name)] = None
        case _:
            assert_never(record)


def _gap(durable: Durable) -> HistoryGap:
    assert durable.gap is not None, "there was no gap"
    return durable.gap


def _told_of(gap: HistoryGap, node: NodeName) -> HistoryGap:
    return replace(gap, awaited=tuple(name for name in gap.awaited if name != node))


def _apply_session(durable: Durable, record: SessionRecord) -> None:
    for entity in changed_by(record, durable.models, durable.sessions):
        if isinstance(entity, Session) and entity.id >= durable.counters.next_session:
            _keep(durable, replace(durable.counters, next_session=entity.id + 1))
        _keep(durable, entity)
    for key in gone_by(record):
        discard(durable, key)
        durable.touched[key] = None


def _charge(durable: Durable, job: Job, ended: EndedAttempt) -> None:
    weight = weight_of(job.spec.resources, len(ended.ranks)) / WHOLE_MILLI
    used = weight * max(0, ended.ended_at - ended.held_since) / SECOND
    known = durable.usage.get(job.user) or Usage(user=job.user, cpu_seconds=0.0, at=ended.ended_at)
    _keep(durable, known.charged(used, ended.ended_at))
    if job.group:
        charge_group(durable, job, ended)


def _await_results(
    durable: Durable, job: Job, attempt: Attempt | EndedAttempt, ended: Iterable[int], at: Instant
) -> None:
    """Await what these ranks of an attempt left, which have just ended."""
    if not job.spec.leaves:
        return
    known = durable.results_due.get((job.id, attempt.number))
    due = due_with(known, job.id, attempt, ended, at)
    if due is not None and due != known:
        _keep(durable, due)


def _ended_last(job: Job) -> tuple[int, ...]:
    """The ranks of its attempt that had not ended before all of it did."""
    ranks = () if job.attempt is None else job.attempt.ranks
    return tuple(number for number, rank in enumerate(ranks) if rank.exit is None)


def _settle_results(durable: Durable, key: RankKey) -> None:
    """Await nothing more of a rank; one that comes after it counted as lost is awaited no more already."""
    due = durable.results_due.get((key.job, key.attempt))
    if due is None or not due.awaits(key):
        return
    left = replace(due, ranks=tuple(rank for rank in due.ranks if rank != key.rank))
    if left.ranks:
        _keep(durable, left)
    else:
        del durable.results_due[key.job, key.attempt]
        durable.touched[results_key(key.job, key.attempt)] = None


def _keep(durable: Durable, entity: Entity) -> None:
    """Keep an entity without indexes, or one that is not there yet."""
    adopt(durable, entity)
    durable.touched[key_of(entity)] = entity


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
    assert isinstance(first.state, jobs.Queued | jobs.Deferred | jobs.Held)
    unindex_alike(durable, equal)
    _put_equals(durable, replace(equal, first=first))
    said = replace(
        job,
        state=jobs.Divided(rest=first.state),
        spec=first.spec,
        band=first.band,
        eligible_at=first.eligible_at,
        unmet=first.unmet,
        begins_at=first.begins_at,
        fell_back=first.fell_back,
        falls_back_after=first.falls_back_after,
        version=job.version + 1,
    )
    _put_job(durable, job, said)


def _updated(job: Job, record: records.JobUpdated | records.ItemsUpdated) -> Job:
    spec = job.spec if record.name is None else replace(job.spec, name=record.name)
    warnings = job.warnings
    if record.is_unlimited or record.time_limit is not None:
        if is_longer(record.time_limit, than=spec.time_limit):
            warnings = with_marks_again(warnings)
        spec = replace(spec, time_limit=record.time_limit)
    return replace(job, spec=spec, warnings=warnings, version=job.version + 1)


def _fell_back(job: Job, record: records.JobFellBack | records.ItemsFellBack) -> Job:
    why = jobs.FellBack(at=record.at, reason=record.reason, message=record.message)
    return replace(job, spec=fallen_back(job.spec), fell_back=why, version=job.version + 1)


def _released(job: Job, at: Instant) -> Job:
    begins_at = job.begins_at if job.begins_at is not None and job.begins_at > at else None
    return _with_conditions(replace(job, state=jobs.Deferred()), at, begins_at=begins_at, unmet=job.unmet)


def _voided(job: Job) -> Job:
    return replace(job, state=jobs.Queued(), void_count=job.void_count + 1, version=job.version + 1)


def _put_job(durable: Durable, old: Job | None, new: Job) -> None:
    if old is not None:
        left = take_out(durable, old)
        if left is not None:
            durable.touched[key_of(left)] = left if left.spans else None
            if not left.spans and new.array is not None:
                _set_state(durable, new.array, jobs.Divided(rest=None))
    durable.touched[key_of(new)] = None if new.is_finished else new
    if new.is_finished:
        durable.jobs.pop(new.id)
        durable.finished[new.id] = new
    else:
        index(durable, new)
        durable.jobs.put(new)


def _with_conditions(job: Job, at: Instant, *, begins_at: Instant | None, unmet: tuple[Dependency, ...]) -> Job:
    """A waiting job with what it still waits for. Without anything it is eligible from now on, unless it is held."""
    told = replace(job, begins_at=begins_at, unmet=unmet, version=job.version + 1)
    if isinstance(job.state, jobs.Held):
        return told
    if unmet or begins_at is not None:
        return replace(told, state=jobs.Deferred())
    return replace(told, state=jobs.Queued(), eligible_at=at)


def _set_state(durable: Durable, job_id: JobId, state: JobState) -> None:
    job = durable.jobs[job_id]
    _put_job(durable, job, replace(job, state=state, version=job.version + 1))


def _stop_attempt(durable: Durable, record: records.AttemptStopping) -> None:
    state = jobs.active_state(durable.jobs[record.job])
    stopping = jobs.Stopping(
        attempt=state.attempt,
        cause=record.cause,
        since=record.at,
        reason=record.reason,
        started_at=None if isinstance(state, jobs.Starting) else state.started_at,
        claimant=record.claimant,
        failed_rank=record.failed_rank,
    )
    _set_state(durable, record.job, stopping)


def _change_attempt(durable: Durable, job_id: JobId, change: AttemptChange) -> None:
    state = jobs.active_state(durable.jobs[job_id])
    _set_state(durable, job_id, replace(state, attempt=change(state.attempt)))


def _put_node(durable: Durable, node: Node) -> None:
    old = durable.nodes.get(node.name)
    new = replace(node, version=1 if old is None else old.version + 1)
    durable.set_node(node.name, new)
    durable.touched[key_of(new)] = new


def _with(past: tuple[EndedAttempt, ...], ended: EndedAttempt) -> tuple[EndedAttempt, ...]:
    return (*past, ended)[-jobs.ATTEMPTS_KEPT :]
