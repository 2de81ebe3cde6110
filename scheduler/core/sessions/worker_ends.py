"""What follows when a worker ends: another attempt after a pause, or that its model has failed.

A worker ends like any job; `with_worker_ends` reads such ends in a decision and says what they mean. Rules:
docs/rules/sessions.md 3.2 and 3.3.
"""

from dataclasses import replace

from gpufleet.jobs.runs import ExitCode, ExitStatus

from ...policy.sessions.revisions import fallback_of, started_revision
from ...policy.sessions.serving import DEATHS_MAX, DEATHS_SPAN, deaths_since, is_steady, may_start_at
from ...state.attempts import BLAMES_ACCOUNT, BLAMES_THE_JOB, EndedAttempt
from ...state.jobs import Finished, Job
from ...state.records import AttemptEnded, JobFinished, Record
from ...state.sessions.records import ClaimMissed, ModelFailed, SessionEnded, SessionRequeued, UpdateFailed, WorkerDied
from ...state.sessions.serving import WorkerGone
from ...state.sessions.session import Model, ModelFailure, Revision, SessionId
from ...state.specs import Outcome
from ...state.state import State
from ...state.units import MINUTE, Instant, after
from ..decision import Decision, together
from .decide import without_worker

CANNOT_LOAD = ExitCode(code=1)
"""A worker ends so when its model cannot be loaded, or its settings are wrong."""


def with_worker_ends(state: State, decision: Decision) -> Decision:
    """The decision with what the ends of workers in it mean: another attempt, or that the model has failed.

    The state is that before the decision.
    """
    if not state.durable.services:
        return decision
    records: list[Record] = []
    more: list[Decision] = []
    # Whose time is up in the very moment in which their worker goes has no turn any more that could be lost.
    moved = frozenset(
        record.session
        for record in decision.records
        if isinstance(record, SessionEnded | SessionRequeued | ClaimMissed)
    )
    for record in decision.records:
        job = state.durable.jobs.get(record.job) if isinstance(record, AttemptEnded | JobFinished) else None
        if isinstance(record, AttemptEnded | JobFinished) and record.ended and job is not None and job.spec.serves:
            records.extend(_end_of_worker(state, record, job, record.ended))
            more.append(_worker_gone(state, record.at, job, moved))
        else:
            records.append(record)
    if not more:
        return decision
    return together(replace(decision, records=tuple(records)), *more, Decision(reply=decision.reply))


def _worker_gone(state: State, at: Instant, job: Job, moved: frozenset[SessionId]) -> Decision:
    worker = state.live.turns.worker_of_job(job.id)
    if worker is None:
        return Decision(notes=(WorkerGone(worker=None, job=job.id),))
    gone = Decision(notes=(WorkerGone(worker=worker.id, job=job.id),))
    return together(without_worker(state, at, worker.id, but=moved), gone)


def _end_of_worker(
    state: State, record: AttemptEnded | JobFinished, job: Job, ended: EndedAttempt
) -> tuple[Record, ...]:
    model = state.durable.models.get(job.spec.serves)
    if model is None or job.drained_at is not None or not _is_its_own(record, ended):
        return (record,)
    at, message = record.at, _why(state, record, job, ended)
    was_steady = is_steady(state.live.turns.ready_since.get(job.id), at)
    of = _revision_of(model, job)
    if of is None:
        return (record,)
    since = at if was_steady else after(at, -DEATHS_SPAN)
    deaths = (at,) if was_steady else (*of.deaths, at)
    count = deaths_since(deaths, at)
    is_hopeless = not of.has_been_ready and _says_that_it_cannot(state, record, job, ended)
    is_started = job.revision == started_revision(model).number
    if is_started and (is_hopeless or count >= DEATHS_MAX):
        if not is_hopeless:
            message = f"{count} workers ended within {DEATHS_SPAN // MINUTE} min, the last: {message}"
        finished = Finished(outcome=Outcome.FAILED, at=at, reason=ended.reason, message=message, exit=_exit(ended))
        failure = ModelFailure(at=at, message=message, job=job.id, attempt=ended.number, lineage=ended.lineage)
        has_failed = ModelFailed if fallback_of(model, job) is None else UpdateFailed
        return (
            JobFinished(at=at, job=job.id, finished=finished, ended=ended),
            has_failed(at=at, model=model.name, failure=failure),
        )
    begins_at = may_start_at(deaths, at)
    is_former = of is model.former
    return (
        AttemptEnded(at=at, job=job.id, ended=ended, begins_at=begins_at),
        WorkerDied(at=at, model=model.name, job=job.id, since=since, message=message, is_former=is_former),
    )


def _revision_of(model: Model, job: Job) -> Revision | Model | None:
    """Whose end it is: the newest revision's, the former one's, or one's that nobody comes back to."""
    if job.revision == model.revision:
        return model
    return model.former if model.former is not None and job.revision == model.former.number else None


def _is_its_own(record: AttemptEnded | JobFinished, ended: EndedAttempt) -> bool:
    """Whether nobody told it to end: it, or its node, went down. One that was lost beside others did not do it."""
    if isinstance(record, AttemptEnded):
        return ended.is_node_loss and not ended.is_blameless
    return record.finished.outcome is not Outcome.CANCELLED


def _why(state: State, record: AttemptEnded | JobFinished, job: Job, ended: EndedAttempt) -> str:
    said = state.live.turns.last_words.get(job.id, "")
    if said:
        return said
    if isinstance(record, JobFinished) and record.finished.outcome is not Outcome.SUCCEEDED:
        return record.finished.message or ended.reason
    return ended.message or ("it ended by itself" if isinstance(record, JobFinished) else "its node was lost")


def _says_that_it_cannot(state: State, record: AttemptEnded | JobFinished, job: Job, ended: EndedAttempt) -> bool:
    """Whether another attempt would end the same way: the model cannot be loaded, or the worker not be launched."""
    if not isinstance(record, JobFinished):
        return False
    never_ran = record.finished.reason in BLAMES_THE_JOB or record.finished.reason == BLAMES_ACCOUNT
    return never_ran or _exit(ended) == CANNOT_LOAD or job.id in state.live.turns.last_words


def _exit(ended: EndedAttempt) -> ExitStatus | None:
    exit_ = ended.ranks[ended.deciding_rank].exit
    return None if exit_ is None else exit_.exit
