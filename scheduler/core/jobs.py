"""What people ask of jobs: submit, cancel, hold, move, signal, requeue."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from ..policy.admission import notes_for, refusal
from ..state.access import RememberedRequest
from ..state.commands import Command, KillAttempt, SignalAttempt, StopAttempt
from ..state.events import (
    BandRequested,
    CancelRequested,
    HoldRequested,
    JobsSubmitted,
    RequeueRequested,
    SignalRequested,
)
from ..state.ids import JobId, NodeName, UserName
from ..state.jobs import (
    Attempt,
    Deferred,
    Dependency,
    Finished,
    Held,
    Job,
    Outcome,
    Queued,
    Running,
    Starting,
    StopCause,
    Stopping,
    rank_keys,
)
from ..state.records import (
    AttemptStopping,
    JobBandChanged,
    JobFinished,
    JobHeld,
    JobQueued,
    JobReleased,
    Record,
    RequestRemembered,
    SignalSent,
)
from ..state.replies import JobChange, JobsChanged, Refused, Submitted
from ..state.state import State
from ..state.units import Instant
from .attempts import ended_attempt
from .decision import Decision, refused
from .dependencies import unmet


def on_jobs_submitted(state: State, event: JobsSubmitted) -> Decision:
    """Accept all jobs of a submit, or refuse it whole. The same request again answers as the first time."""
    remembered = state.durable.requests.get((event.user, event.request_id)) if event.request_id else None
    if remembered is not None:
        return _answer_again(state, event, remembered)
    many = event.count > 1
    total = event.count if many else len(event.specs)
    known = len(state.durable.jobs)
    if known + total > state.limits.queued_jobs:
        return refused(
            "QUEUE_FULL",
            f"{known:,} of at most {state.limits.queued_jobs:,} jobs have not ended",
            next_step="wait until some have started, or cancel some with: gpuctl cancel",
        )
    for number, spec in enumerate(event.specs):
        why = refusal(state, spec, f"specs[{number}]")
        if why is not None:
            return Decision(reply=why)
    first = state.durable.counters.next_job
    jobs: list[Job] = []
    for index, spec in enumerate(event.specs):
        still = unmet(state, spec.after, event.ended)
        if isinstance(still, Refused):
            return Decision(reply=replace(still, field=f"specs[{index}].after"))
        jobs.append(_new_job(event, JobId(first + index), index, still))
    if many:
        jobs[0] = replace(jobs[0], told_with=JobId(first + total - 1))
    notes = notes_for(state, event.specs[0])
    if event.is_dry_run:
        return Decision(reply=Submitted(first=JobId(0), count=total, job=jobs[0], notes=notes))
    records: list[Record] = [JobQueued(at=event.at, job=job, count=event.count) for job in jobs]
    if event.request_id:
        records.append(
            RequestRemembered(
                at=event.at,
                request=RememberedRequest(
                    user=event.user,
                    request_id=event.request_id,
                    digest=event.request_digest,
                    first_job=jobs[0].id,
                    count=total,
                    at=event.at,
                ),
            )
        )
    reply = Submitted(first=jobs[0].id, count=total, job=jobs[0], notes=notes)
    return Decision(records=tuple(records), reply=reply)


def _new_job(event: JobsSubmitted, job_id: JobId, index: int, still: tuple[Dependency, ...]) -> Job:
    spec = event.specs[index]
    begins_at = spec.begin_at if spec.begin_at is not None and spec.begin_at > event.at else None
    waits = Deferred() if still or begins_at is not None else Queued()
    return Job(
        id=job_id,
        user=event.user,
        spec=spec,
        band=event.band[index],
        submitted_at=event.at,
        state=Held() if event.is_held[index] else waits,
        unmet=still,
        begins_at=begins_at,
    )


def _answer_again(state: State, event: JobsSubmitted, remembered: RememberedRequest) -> Decision:
    if remembered.digest != event.request_digest:
        return refused(
            "REQUEST_ID_REUSED",
            f"request_id {event.request_id!r} was used for another request (job {remembered.first_job})",
            field="request_id",
            next_step="use a new random request_id for each new request",
        )
    job = state.durable.jobs.get(remembered.first_job)
    return Decision(reply=Submitted(first=remembered.first_job, count=remembered.count, job=job))


JobDecision = tuple[JobChange, tuple[Record, ...], tuple[Command, ...]]


def _for_each(state: State, jobs: Iterable[JobId], change: Callable[[Job], JobDecision]) -> Decision:
    """One decision over several jobs; those that have ended stay as they are."""
    changes: list[JobChange] = []
    records: list[Record] = []
    commands: list[Command] = []
    for job_id in dict.fromkeys(jobs):
        job = state.durable.jobs.get(job_id)
        if job is None:
            never = job_id >= state.durable.counters.next_job
            message = f"there is no job {job_id}" if never else f"job {job_id} has ended"
            changes.append(JobChange(job=job_id, changed=False, message=message))
            continue
        made, more, down = change(job)
        changes.append(made)
        records.extend(more)
        commands.extend(down)
    return Decision(records=tuple(records), commands=tuple(commands), reply=JobsChanged(changes=tuple(changes)))


def _unchanged(job: Job, message: str) -> JobDecision:
    return JobChange(job=job.id, changed=False, message=message), (), ()


def on_cancel_requested(state: State, event: CancelRequested) -> Decision:
    """A waiting job ends at once; an active one is stopped by the grace rule, or abandoned."""
    return _for_each(state, event.jobs, lambda job: _cancel(state, event, job))


def _cancel(state: State, event: CancelRequested, job: Job) -> JobDecision:
    match job.state:
        case Queued() | Deferred() | Held():
            record = JobFinished(
                at=event.at, job=job.id, finished=_cancelled(event.at, event.by, event.reason), by=event.by
            )
            return JobChange(job=job.id, changed=True, message=f"job {job.id} is cancelled"), (record,), ()
        case Starting(attempt=attempt) | Running(attempt=attempt) | Stopping(attempt=attempt):
            if event.is_abandoned:
                return _abandon(event, job, attempt)
            if isinstance(job.state, Stopping) and job.state.cause is StopCause.CANCELLED:
                return _unchanged(job, f"job {job.id} is being cancelled already")
            stopping = AttemptStopping(
                at=event.at, job=job.id, cause=StopCause.CANCELLED, reason=event.reason, by=event.by
            )
            away = [rank.placement.node for rank in attempt.ranks if not _is_connected(state, rank.placement.node)]
            when = f"once node {away[0]} is back (or now, with --abandon)" if away else "by the grace rule"
            return (
                JobChange(job=job.id, changed=True, message=f"job {job.id} is stopped {when}"),
                (stopping,),
                stop_commands(job, attempt, StopCause.CANCELLED),
            )
        case Finished():
            return _unchanged(job, f"job {job.id} has ended")


def _cancelled(at: Instant, by: UserName, reason: str) -> Finished:
    message = f"cancelled by {by}: {reason}" if reason else f"cancelled by {by}"
    return Finished(outcome=Outcome.CANCELLED, at=at, reason="CANCELLED", message=message)


def _abandon(event: CancelRequested, job: Job, attempt: Attempt) -> JobDecision:
    ended = ended_attempt(attempt, event.at, reason="ABANDONED", message="abandoned", output_is_complete=False)
    record = JobFinished(
        at=event.at,
        job=job.id,
        finished=_cancelled(event.at, event.by, event.reason),
        ended=ended,
        by=event.by,
    )
    kills = tuple(
        KillAttempt(node=rank.placement.node, key=key)
        for key, rank in zip(rank_keys(job, attempt), attempt.ranks, strict=True)
        if rank.exit is None
    )
    return JobChange(job=job.id, changed=True, message=f"job {job.id} is abandoned"), (record,), kills


def stop_commands(job: Job, attempt: Attempt, cause: StopCause) -> tuple[Command, ...]:
    """Stop every rank of an attempt that has not ended."""
    return tuple(
        StopAttempt(node=rank.placement.node, key=key, cause=cause, grace=job.spec.grace)
        for key, rank in zip(rank_keys(job, attempt), attempt.ranks, strict=True)
        if rank.exit is None
    )


def _is_connected(state: State, node: NodeName) -> bool:
    live = state.live.nodes.get(node)
    return live is not None and live.is_connected


def on_hold_requested(state: State, event: HoldRequested) -> Decision:
    """Hold jobs that wait, or release those that are held."""

    def change(job: Job) -> JobDecision:
        match job.state:
            case Queued() | Deferred() if event.is_held:
                record: Record = JobHeld(at=event.at, job=job.id, by=event.by)
                return JobChange(job=job.id, changed=True, message=f"job {job.id} is held"), (record,), ()
            case Held() if not event.is_held:
                record = JobReleased(at=event.at, job=job.id, by=event.by)
                return JobChange(job=job.id, changed=True, message=f"job {job.id} is released"), (record,), ()
            case Queued() | Deferred():
                return _unchanged(job, f"job {job.id} is not held")
            case Held():
                return _unchanged(job, f"job {job.id} is held already")
            case _:
                return _unchanged(job, f"job {job.id} does not wait any more")

    return _for_each(state, event.jobs, change)


def on_band_requested(state: State, event: BandRequested) -> Decision:
    """Move jobs to another band."""

    def change(job: Job) -> JobDecision:
        name = event.band.name.lower()
        if job.band == event.band:
            return _unchanged(job, f"job {job.id} is in band {name} already")
        record = JobBandChanged(at=event.at, job=job.id, by=event.by, band=event.band)
        return JobChange(job=job.id, changed=True, message=f"job {job.id} is in band {name}"), (record,), ()

    return _for_each(state, event.jobs, change)


def on_signal_requested(state: State, event: SignalRequested) -> Decision:
    """Send a signal to running jobs; the same request again sends nothing."""
    if event.request_id:
        remembered = state.durable.requests.get((event.by, event.request_id))
        if remembered is not None:
            if remembered.digest != event.request_digest:
                return refused(
                    "REQUEST_ID_REUSED",
                    f"request_id {event.request_id!r} was used for another request",
                    field="request_id",
                    next_step="use a new random request_id for each new request",
                )
            told = tuple(
                JobChange(job=job, changed=False, message=f"job {job} was signalled before by this request")
                for job in event.jobs
            )
            return Decision(reply=JobsChanged(changes=told))

    def change(job: Job) -> JobDecision:
        match job.state:
            case Running(attempt=attempt) | Stopping(attempt=attempt):
                commands = tuple(
                    SignalAttempt(node=rank.placement.node, key=key, signal=event.signal)
                    for key, rank in zip(rank_keys(job, attempt), attempt.ranks, strict=True)
                    if rank.exit is None
                )
                record = SignalSent(at=event.at, job=job.id, by=event.by, signal=event.signal)
                told = JobChange(job=job.id, changed=True, message=f"signal {event.signal} is sent to job {job.id}")
                return told, (record,), commands
            case _:
                return _unchanged(job, f"job {job.id} does not run")

    decision = _for_each(state, event.jobs, change)
    if not event.request_id:
        return decision
    memory = RememberedRequest(
        user=event.by,
        request_id=event.request_id,
        digest=event.request_digest,
        first_job=JobId(0),
        count=0,
        at=event.at,
    )
    return Decision(
        records=(*decision.records, RequestRemembered(at=event.at, request=memory)),
        commands=decision.commands,
        reply=decision.reply,
    )


def on_requeue_requested(state: State, event: RequeueRequested) -> Decision:
    """Stop active jobs by the grace rule; each is queued again, with its submit time, when it has ended."""

    def change(job: Job) -> JobDecision:
        match job.state:
            case Starting(attempt=attempt) | Running(attempt=attempt):
                record = AttemptStopping(
                    at=event.at, job=job.id, cause=StopCause.REQUEUED, reason=event.reason, by=event.by
                )
                told = JobChange(job=job.id, changed=True, message=f"job {job.id} is stopped and queued again")
                return told, (record,), stop_commands(job, attempt, StopCause.REQUEUED)
            case Stopping():
                return _unchanged(job, f"job {job.id} is being stopped already")
            case _:
                return _unchanged(job, f"job {job.id} waits already")

    return _for_each(state, event.jobs, change)
