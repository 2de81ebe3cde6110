"""What people ask of jobs: submit, cancel, hold, move, signal, requeue."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from gpufleet.jobs.runs import StopCause

from ..policy.admission import notes_for, refusal
from ..policy.environment_tools import environment_tool_refusal
from ..policy.gap import gap_hold
from ..policy.private_folders import private_folder_refusal
from ..policy.routing import routed
from ..state.access import RememberedRequest
from ..state.attempts import Attempt, RankExit
from ..state.commands import Command, KillAttempt, SignalAttempt, StopAttempt
from ..state.events import (
    BandRequested,
    CancelRequested,
    HoldRequested,
    JobsSubmitted,
    RequeueRequested,
    SignalRequested,
    WantedJob,
)
from ..state.gap import RELEASED_SPANS_MAX
from ..state.gpu_choice import without_gpus
from ..state.groups.group import NO_GROUP, GroupId
from ..state.ids import JobId, NodeName, UserName
from ..state.indexes.equal_jobs import EqualJobs
from ..state.jobs import (
    Deferred,
    Divided,
    Finished,
    Held,
    Job,
    Queued,
    Running,
    Starting,
    Stopping,
    is_being_prepared,
    live_ranks,
)
from ..state.records import (
    AttemptStopping,
    GapReleased,
    ItemsFinished,
    ItemsHeld,
    ItemsMoved,
    ItemsReleased,
    JobBandChanged,
    JobFinished,
    JobHeld,
    JobQueued,
    JobReleased,
    KeptWaitEnded,
    Record,
    RequestRemembered,
    SignalSent,
)
from ..state.replies import JobChange, JobsChanged, Refused, Submitted
from ..state.specs import Asked, Band, Dependency, Outcome
from ..state.state import State
from ..state.units import Instant
from .attempts import ended_attempt, given_up
from .decision import Decision, refused
from .dependencies import unmet
from .gangs import abort_commands, handed_back
from .groups import band_refusal_of_jobs, in_its_group


def on_jobs_submitted(state: State, event: JobsSubmitted) -> Decision:
    """Accept all jobs of a submit, or refuse it whole. The same request again answers as the first time."""
    remembered = state.durable.requests.get((event.user, event.request_id)) if event.request_id else None
    if remembered is not None:
        return _answer_again(state, event, remembered)
    many = event.count > 1
    total = event.count if many else len(event.jobs)
    made = total if event.items is None else total + event.items.indices.count
    known = len(state.durable.jobs)
    if known + made > state.limits.queued_jobs:
        more = f", and these would be {made:,} more" if made > 1 else ""
        return refused(
            "QUEUE_FULL",
            f"{known:,} of at most {state.limits.queued_jobs:,} jobs have not ended{more}",
            next_step="wait until some have started, or cancel some with: gpuctl cancel",
        )
    found = _routed(state, event.jobs)
    if isinstance(found, Refused):
        return Decision(reply=found)
    in_groups = _in_groups(state, event.user, found)
    if isinstance(in_groups, Refused):
        return Decision(reply=in_groups)
    first_of: dict[tuple[Asked, bool], int] = {}
    for number, wanted in enumerate(found):
        first_of.setdefault((wanted.spec.asked, wanted.spec.prefers_gpus), number)
    for (asked, prefers_gpus), number in first_of.items():
        why = refusal(state, event.user, asked, f"specs[{number}]")
        if why is not None and prefers_gpus and why.reason in WITHOUT_GPUS:
            why = refusal(state, event.user, Asked(without_gpus(asked.resources), asked.run_span), f"specs[{number}]")
        if why is not None:
            return Decision(reply=why)
    why = _refused_on_every_node(state, event.user, found)
    if why is not None:
        return Decision(reply=why)
    first = state.durable.counters.next_job
    jobs: list[Job] = []
    for index, wanted in enumerate(found):
        still = unmet(state, wanted.spec.after, event.ended)
        if isinstance(still, Refused):
            return Decision(reply=replace(still, field=f"specs[{index}].after"))
        job = _new_job(event, wanted, JobId(first + index), still)
        group, band = in_groups[index] if in_groups else (NO_GROUP, job.band)
        jobs.append(replace(job, group=group, band=band) if group else job)
    if many:
        jobs[0] = replace(jobs[0], told_with=JobId(first + total - 1))
    notes = notes_for(state, event.user, found[0].spec)
    if event.is_dry_run:
        return Decision(reply=Submitted(first=JobId(0), count=total, job=jobs[0], notes=notes))
    records: list[Record] = [JobQueued(at=event.at, job=job, count=event.count) for job in jobs]
    if event.request_id:
        records.append(_memory(event, event.user, jobs[0].id, total))
    reply = Submitted(first=jobs[0].id, count=total, job=jobs[0], notes=notes)
    return Decision(records=tuple(records), reply=reply)


WITHOUT_GPUS = frozenset({"NEVER_FITS", "UNKNOWN_GPU_MODEL"})
"""What a request is refused for that would do without GPUs all the same."""


def _refused_on_every_node(state: State, user: UserName, jobs: tuple[WantedJob, ...]) -> Refused | None:
    """Why one of them could run on no node that could hold it; those that are alike in that are looked at once."""
    looked: set[tuple[object, ...]] = set()
    for index, wanted in enumerate(jobs):
        spec = wanted.spec
        alike = (spec.asked, spec.prefers_gpus, spec.cwd, spec.argv[:1], spec.environment)
        if alike in looked:
            continue
        looked.add(alike)
        for refused_by in (private_folder_refusal, environment_tool_refusal):
            if (why := refused_by(state, user, spec, f"specs[{index}]")) is not None:
                return why
    return None


def _routed(state: State, jobs: tuple[WantedJob, ...]) -> tuple[WantedJob, ...] | Refused:
    """The jobs with AUTO decided."""
    if all(wanted.spec.gpu_choice is None for wanted in jobs):
        return jobs  # as nearly all are
    found: list[WantedJob] = []
    for number, wanted in enumerate(jobs):
        spec = routed(wanted.spec, state.limits.routing, f"specs[{number}]")
        if isinstance(spec, Refused):
            return spec
        found.append(replace(wanted, spec=spec))
    return tuple(found)


def _in_groups(state: State, user: UserName, jobs: tuple[WantedJob, ...]) -> tuple[tuple[GroupId, Band], ...] | Refused:
    """The group and the band of each job; empty where none has a group."""
    if not state.durable.groups.of_user(user) and not any(wanted.group for wanted in jobs):
        return ()
    places: list[tuple[GroupId, Band]] = []
    for number, wanted in enumerate(jobs):
        place = in_its_group(state, user, wanted, f"specs[{number}]")
        if isinstance(place, Refused):
            return place
        places.append(place)
    return tuple(places)


def _new_job(event: JobsSubmitted, wanted: WantedJob, job_id: JobId, still: tuple[Dependency, ...]) -> Job:
    spec = wanted.spec
    begins_at = spec.begin_at if spec.begin_at is not None and spec.begin_at > event.at else None
    waits = Deferred() if still or begins_at is not None else Queued()
    begun = Held() if wanted.is_held else waits
    return Job(
        id=job_id,
        user=event.user,
        spec=spec,
        band=wanted.band,
        submitted_at=event.at,
        state=begun if event.items is None else Divided(rest=begun),
        unmet=still,
        begins_at=begins_at,
        items=event.items,
    )


def _answer_again(state: State, event: JobsSubmitted, remembered: RememberedRequest) -> Decision:
    if remembered.digest != event.request_digest:
        return _id_reused(event, f" (job {remembered.first_job})")
    job = state.durable.jobs.get(remembered.first_job)
    return Decision(reply=Submitted(first=remembered.first_job, count=remembered.count, job=job))


def _id_reused(event: JobsSubmitted | SignalRequested, which: str = "") -> Decision:
    return refused(
        "REQUEST_ID_REUSED",
        f"request_id {event.request_id!r} was used for another request{which}",
        field="request_id",
        next_step="use a new random request_id for each new request",
    )


def _memory(event: JobsSubmitted | SignalRequested, user: UserName, first_job: JobId, count: int) -> RequestRemembered:
    """The record that a request was carried out, with the jobs that it made."""
    memory = RememberedRequest(
        user=user,
        request_id=event.request_id,
        digest=event.request_digest,
        first_job=first_job,
        count=count,
        at=event.at,
    )
    return RequestRemembered(at=event.at, request=memory)


JobDecision = tuple[JobChange, tuple[Record, ...], tuple[Command, ...]]


ItemsDecision = tuple[str, tuple[Record, ...]]
"""What befalls the items of an array that wait and never differed, in words, and its records; none leaves them."""


def for_each(
    state: State,
    jobs: Iterable[JobId],
    change: Callable[[Job], JobDecision],
    change_alike: Callable[[Job, EqualJobs], ItemsDecision] = lambda array, alike: ("", ()),
) -> Decision:
    """One decision over several jobs; those that have ended stay as they are.

    An array is changed as a whole: what never differed by `change_alike`, at once, and each of the others by `change`.
    """
    changes: list[JobChange] = []
    records: list[Record] = []
    commands: list[Command] = []
    chosen = dict.fromkeys(jobs)
    for job_id in chosen:
        job = state.durable.jobs.get(job_id)
        if job is None:
            never = job_id >= state.durable.counters.next_job
            message = f"there is no job {job_id}" if never else f"job {job_id} has ended"
            changes.append(JobChange(job=job_id, changed=False, message=message))
            continue
        if job.array is not None and job.array in chosen:
            changes.append(JobChange(job=job_id, changed=False, message=f"job {job_id} is changed with its array"))
            continue
        if job.items is not None:
            made, more, down = _change_array(state, job, change, change_alike)
        else:
            made, more, down = change(job)
        changes.append(made)
        records.extend(more)
        commands.extend(down)
    return Decision(records=tuple(records), commands=tuple(commands), reply=JobsChanged(changes=tuple(changes)))


def _change_array(
    state: State,
    array: Job,
    change: Callable[[Job], JobDecision],
    change_alike: Callable[[Job, EqualJobs], ItemsDecision],
) -> JobDecision:
    records: list[Record] = []
    commands: list[Command] = []
    told: dict[str, int] = {}
    alike = state.durable.items_alike(array.id)
    if alike is not None:
        words, more = change_alike(array, alike)
        records.extend(more)
        told[words] = len(alike) if more else 0
    for item in sorted(state.durable.arrays[array.id].apart):
        made, more, down = change(state.durable.jobs[item])
        records.extend(more)
        commands.extend(down)
        words = made.message.removeprefix(f"job {item} ").removesuffix(f" to job {item}")
        told[words] = told.get(words, 0) + made.changed
    message = "; ".join(_many(number, words) for words, number in told.items() if number) or "none of its items changes"
    change_of_all = JobChange(job=array.id, changed=bool(records), message=f"array {array.id}: {message}")
    return change_of_all, tuple(records), tuple(commands)


def _many(number: int, words: str) -> str:
    """So many items, and what befalls each of them."""
    if not words.startswith("is "):
        return f"{words} to {number:,} {'item' if number == 1 else 'items'}"
    return f"1 item {words}" if number == 1 else f"{number:,} items are {words.removeprefix('is ')}"


def unchanged(job: Job, message: str) -> JobDecision:
    return JobChange(job=job.id, changed=False, message=message), (), ()


def changed(job: Job, message: str, *records: Record, commands: tuple[Command, ...] = ()) -> JobDecision:
    return JobChange(job=job.id, changed=True, message=message), records, commands


def on_cancel_requested(state: State, event: CancelRequested) -> Decision:
    """A waiting job ends at once; an active one is stopped by the grace rule, or abandoned."""

    def cancel_alike(array: Job, alike: EqualJobs) -> ItemsDecision:
        finished = _cancelled(event.at, event.by, event.reason)
        record = ItemsFinished(at=event.at, array=array.id, spans=alike.spans, finished=finished, by=event.by)
        return "is cancelled", (record,)

    return for_each(state, event.jobs, lambda job: _cancel(state, event, job), cancel_alike)


def _cancel(state: State, event: CancelRequested, job: Job) -> JobDecision:
    match job.state:
        case Queued() | Deferred() | Held():
            finished = _cancelled(event.at, event.by, event.reason)
            record = JobFinished(at=event.at, job=job.id, finished=finished, by=event.by)
            return changed(job, f"job {job.id} is cancelled{_of_worker(state, job)}", record)
        case Starting(attempt=attempt) | Running(attempt=attempt) | Stopping(attempt=attempt):
            if is_being_prepared(job):
                return _cancel_before_start(event, job, attempt)
            if event.is_abandoned:
                return _abandon(state, event, job, attempt)
            if isinstance(job.state, Stopping) and job.state.cause is StopCause.CANCELLED:
                return unchanged(job, f"job {job.id} is being cancelled already")
            cause = StopCause.CANCELLED
            stopping = AttemptStopping(at=event.at, job=job.id, cause=cause, reason=event.reason, by=event.by)
            away = [rank.placement.node for rank in attempt.ranks if not _is_connected(state, rank.placement.node)]
            when = f"once node {away[0]} is back (or now, with --abandon)" if away else "by the grace rule"
            message = f"job {job.id} is stopped {when}{_of_worker(state, job)}"
            return changed(job, message, stopping, commands=stop_commands(job, attempt, cause))
        case Finished() | Divided():
            return unchanged(job, f"job {job.id} has ended")


def _of_worker(state: State, job: Job) -> str:
    """What is worth knowing of the end of a worker whose model is still served."""
    model = job.spec.serves
    if model not in state.durable.models:
        return ""
    return f"; model {model} has another started if it needs one (to end the model: gpuctl serve {model} --stop)"


def _cancelled(at: Instant, by: UserName, reason: str) -> Finished:
    message = f"cancelled by {by}: {reason}" if reason else f"cancelled by {by}"
    return Finished(outcome=Outcome.CANCELLED, at=at, reason="CANCELLED", message=message)


def _cancel_before_start(event: CancelRequested, job: Job, attempt: Attempt) -> JobDecision:
    """A gang that is being prepared: nothing of it runs, and nothing will."""
    finished = _cancelled(event.at, event.by, event.reason)
    aborted = RankExit(exit=None, reason="ABORTED", message=finished.message)
    attempt = replace(attempt, ranks=tuple(replace(rank, exit=aborted) for rank in attempt.ranks))
    ended = ended_attempt(attempt, event.at, "CANCELLED", finished.message, is_complete=True)
    record = JobFinished(at=event.at, job=job.id, finished=finished, ended=ended, by=event.by)
    return changed(job, f"job {job.id} is cancelled", record, commands=abort_commands(job, attempt))


def _abandon(state: State, event: CancelRequested, job: Job, attempt: Attempt) -> JobDecision:
    known = given_up(state, job, attempt, "ABANDONED", "abandoned", is_presumed=True)
    ended = ended_attempt(known, event.at, "ABANDONED", "abandoned", is_complete=False)
    finished = _cancelled(event.at, event.by, event.reason)
    record = JobFinished(at=event.at, job=job.id, finished=finished, ended=ended, by=event.by)
    kills = tuple(KillAttempt(node=rank.placement.node, key=key) for key, rank in live_ranks(job, attempt))
    return changed(job, f"job {job.id} is abandoned", record, commands=kills)


def stop_commands(job: Job, attempt: Attempt, cause: StopCause) -> tuple[Command, ...]:
    """Stop every rank of an attempt that has not ended."""
    return tuple(
        StopAttempt(node=rank.placement.node, key=key, cause=cause, grace=job.spec.grace)
        for key, rank in live_ranks(job, attempt)
    )


def _is_connected(state: State, node: NodeName) -> bool:
    live = state.live.nodes.get(node)
    return live is not None and live.is_connected


def on_hold_requested(state: State, event: HoldRequested) -> Decision:
    """Hold jobs that wait, or release those that are held, or that wait since history was cut off."""
    gap = gap_hold(state, event.at)

    def let_start(job: Job, waiting: Job, spans: tuple[tuple[JobId, JobId], ...]) -> Record | None:
        if event.is_held or gap is None or not isinstance(waiting.state, Queued) or not gap.holds(waiting):
            return None
        is_full = len(gap.gap.released) + len(spans) > RELEASED_SPANS_MAX
        return None if is_full else GapReleased(at=event.at, job=job.id, by=event.by, spans=spans)

    def change(job: Job) -> JobDecision:
        let_go = let_start(job, job, ((job.id, JobId(job.id + 1)),))
        if let_go is not None:
            return changed(job, f"job {job.id} waits for no node any more", let_go)
        match job.state:
            case Deferred() if job.awaits_kept and not event.is_held:
                let_go = KeptWaitEnded(at=event.at, job=job.id, reason=f"{event.by} released the job")
                return changed(job, f"job {job.id} waits no longer for what its last attempt keeps", let_go)
            case Queued() | Deferred() if event.is_held:
                return changed(job, f"job {job.id} is held", JobHeld(at=event.at, job=job.id, by=event.by))
            case Held() if not event.is_held:
                return changed(job, f"job {job.id} is released", JobReleased(at=event.at, job=job.id, by=event.by))
            case Queued() | Deferred():
                return unchanged(job, f"job {job.id} is not held")
            case Held():
                return unchanged(job, f"job {job.id} is held already")
            case _:
                return unchanged(job, f"job {job.id} does not wait any more")

    def change_alike(array: Job, alike: EqualJobs) -> ItemsDecision:
        let_go = let_start(array, alike.first, alike.spans)
        if let_go is not None:
            return "waits for no node any more", (let_go,)
        if isinstance(alike.first.state, Held) == event.is_held:
            return "", ()
        if event.is_held:
            return "is held", (ItemsHeld(at=event.at, array=array.id, by=event.by),)
        return "is released", (ItemsReleased(at=event.at, array=array.id, by=event.by),)

    return for_each(state, event.jobs, change, change_alike)


def on_band_requested(state: State, event: BandRequested) -> Decision:
    """Move jobs to another band, or none of them: a group may have a highest one."""
    refusal = band_refusal_of_jobs(state, event.jobs, event.band)
    if refusal is not None:
        return Decision(reply=refusal)

    def change(job: Job) -> JobDecision:
        name = event.band.name.lower()
        if job.band == event.band:
            return unchanged(job, f"job {job.id} is in band {name} already")
        record = JobBandChanged(at=event.at, job=job.id, by=event.by, band=event.band)
        return changed(job, f"job {job.id} is in band {name}", record)

    def change_alike(array: Job, alike: EqualJobs) -> ItemsDecision:
        if alike.first.band == event.band:
            return "", ()
        words = f"is in band {event.band.name.lower()}"
        return words, (ItemsMoved(at=event.at, array=array.id, by=event.by, band=event.band),)

    return for_each(state, event.jobs, change, change_alike)


def on_signal_requested(state: State, event: SignalRequested) -> Decision:
    """Send a signal to running jobs; the same request again sends nothing.

    To all of them or to none: a signal that waited for a node to come back would arrive when nobody means it any more.
    """
    if event.request_id:
        remembered = state.durable.requests.get((event.by, event.request_id))
        if remembered is not None:
            if remembered.digest != event.request_digest:
                return _id_reused(event)
            told = tuple(
                JobChange(job=job, changed=False, message=f"job {job} was signalled before by this request")
                for job in event.jobs
            )
            return Decision(reply=JobsChanged(changes=told))

    unheard: list[tuple[JobId, NodeName]] = []

    def change(job: Job) -> JobDecision:
        match job.state:
            case Running(attempt=attempt) | Stopping(attempt=attempt):
                to_send = [] if event.is_sent else list(live_ranks(job, attempt))
                nodes = (rank.placement.node for _, rank in to_send)
                unheard.extend((job.id, node) for node in nodes if not _is_connected(state, node))
                commands = tuple(
                    SignalAttempt(node=rank.placement.node, key=key, signal=event.signal) for key, rank in to_send
                )
                record = SignalSent(at=event.at, job=job.id, by=event.by, signal=event.signal)
                return changed(job, f"signal {event.signal} is sent to job {job.id}", record, commands=commands)
            case _:
                return unchanged(job, f"job {job.id} does not run")

    decision = for_each(state, event.jobs, change)
    if unheard:
        job_id, node = unheard[0]
        return refused(
            "NODE_UNREACHABLE",
            f"job {job_id} runs on node {node}, which is not heard: the signal was sent to nobody",
            field="jobs",
            next_step="send it again when the node is back (gpuctl nodes), or to other jobs only",
        )
    if not event.request_id:
        return decision
    return replace(decision, records=(*decision.records, _memory(event, event.by, JobId(0), 0)))


_MUST_NOT_RUN_TWICE = (
    "must not run twice (--no-requeue, or a command that is typed to): it stays as it is; cancel it and submit it again"
)


def on_requeue_requested(state: State, event: RequeueRequested) -> Decision:
    """Stop active jobs by the grace rule; each is queued again, with its submit time, when it has ended.

    One that must not run twice stays as it is once it may run. Rule: docs/rules/jobs.md 2.13.
    """

    def change(job: Job) -> JobDecision:
        match job.state:
            case Starting() | Running() if not job.spec.is_requeueable and not is_being_prepared(job):
                return unchanged(job, f"job {job.id} {_MUST_NOT_RUN_TWICE}")
            case Starting(attempt=attempt) if is_being_prepared(job):
                node = attempt.ranks[0].placement.node
                void = handed_back(event.at, job, attempt, node, "REQUEUED", event.reason)
                return changed(job, f"job {job.id} is queued again", *void.records, commands=void.commands)
            case Starting(attempt=attempt) | Running(attempt=attempt):
                cause = StopCause.REQUEUED
                record = AttemptStopping(at=event.at, job=job.id, cause=cause, reason=event.reason, by=event.by)
                stops = stop_commands(job, attempt, cause)
                return changed(job, f"job {job.id} is stopped and queued again", record, commands=stops)
            case Stopping():
                return unchanged(job, f"job {job.id} is being stopped already")
            case _:
                return unchanged(job, f"job {job.id} waits already")

    return for_each(state, event.jobs, change)
