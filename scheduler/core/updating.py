"""Another name, band or time limit for jobs that wait or run; the limit again for a node that missed the command."""

from collections.abc import Iterator
from dataclasses import replace

from ..state.commands import Command, SetTimeLimit
from ..state.events import UpdateRequested
from ..state.ids import NodeName, RankKey
from ..state.indexes.equal_jobs import EqualJobs
from ..state.jobs import Job, Running, Starting, Stopping, live_ranks
from ..state.records import ItemsMoved, ItemsUpdated, JobBandChanged, JobUpdated, Record
from ..state.specs import JobSpec, is_longer
from ..state.state import State
from ..state.units import Span
from .decision import Decision, refused
from .groups import band_refusal_of_jobs
from .jobs import ItemsDecision, JobDecision, changed, for_each, unchanged
from .warnings import rough_span


def on_update_requested(state: State, event: UpdateRequested) -> Decision:
    """Give all of the jobs what was asked for, or refuse it whole. What is like that already stays as it is."""
    jobs = [state.durable.jobs[job_id] for job_id in dict.fromkeys(event.jobs) if job_id in state.durable.jobs]
    of_band = band_refusal_of_jobs(state, event.jobs, event.band)
    if of_band is not None:
        return Decision(reply=of_band)
    for job in jobs:
        if event.name is not None and job.array is not None and job.array not in event.jobs:
            return refused(
                "INVALID_ARGUMENT",
                f"job {job.id} is an item, and has the name of its array",
                field="name",
                next_step=f"name the array: gpuctl update {job.array} --name NAME",
            )
        for each in _with_items(state, job):
            refusal = _refusal_of_limit(event, each)
            if refusal is not None:
                return refusal

    def change_alike(array: Job, alike: EqualJobs) -> ItemsDecision:
        words = _words(event, alike.first)
        return words, tuple(_records_of_items(event, array, alike.first))

    decided = for_each(state, event.jobs, lambda job: _update(event, job), change_alike)
    # What an array says of itself goes for items that are run again, too, where none waits that never differed.
    of_arrays = tuple(
        record
        for job in jobs
        if job.items is not None and state.durable.items_alike(job.id) is None
        for record in _records_of_items(event, job, job)
        if isinstance(record, ItemsUpdated)
    )
    return replace(decided, records=(*of_arrays, *decided.records))


def _with_items(state: State, job: Job) -> Iterator[Job]:
    yield job
    if job.items is not None:
        yield from (state.durable.jobs[item] for item in sorted(state.durable.arrays[job.id].apart))


def _limit_changes(event: UpdateRequested, spec: JobSpec) -> bool:
    return (event.is_unlimited or event.time_limit is not None) and event.time_limit != spec.time_limit


def _refusal_of_limit(event: UpdateRequested, job: Job) -> Decision | None:
    spec, limit = job.spec, event.time_limit
    if not _limit_changes(event, spec):
        return None

    def no(why: str, next_step: str, reason: str = "INVALID_ARGUMENT") -> Decision:
        return refused(reason, f"job {job.id} {why}", field="time_limit", next_step=next_step)

    if spec.serves:
        why = f"is a worker of model {spec.serves}, which runs until it is stopped"
        return no(why, f"end it with: gpuctl serve {spec.serves} --stop")
    if is_longer(limit, than=spec.time_limit) and not event.may_extend:
        assert spec.time_limit is not None
        most = rough_span(spec.time_limit)
        why = f"may run for {most}, and only an admin may let it run for longer"
        return no(why, f"choose at most {most}, or ask an admin", "TIME_LIMIT_REFUSED")
    if limit is None and (spec.limit_signal is not None or spec.is_requeued_on_timeout):
        asks = "a signal before its limit" if spec.limit_signal is not None else "to be queued again at its limit"
        return no(f"asks for {asks}, and needs one", "give a longer one")
    if limit is not None and spec.limit_signal is not None and limit <= spec.limit_signal.before:
        before = rough_span(spec.limit_signal.before)
        why = f"is sent a signal {before} before its limit, which must be longer than that"
        return no(why, f"choose one of more than {before}, or stop the job with: gpuctl cancel {job.id}")
    return None


def _update(event: UpdateRequested, job: Job) -> JobDecision:
    if isinstance(job.state, Stopping):
        return unchanged(job, f"job {job.id} is being stopped already")
    records: list[Record] = []
    given = _given(event, job)
    if given is not None:
        name, limit, is_unlimited = given
        records.append(
            JobUpdated(at=event.at, job=job.id, by=event.by, name=name, time_limit=limit, is_unlimited=is_unlimited)
        )
    if event.band is not None and event.band != job.band:
        records.append(JobBandChanged(at=event.at, job=job.id, by=event.by, band=event.band))
    if not records:
        return unchanged(job, f"job {job.id} is like that already")
    commands = limit_commands(job, event.time_limit) if _limit_changes(event, job.spec) else ()
    return changed(job, f"job {job.id} {_words(event, job)}", *records, commands=commands)


def _records_of_items(event: UpdateRequested, array: Job, like: Job) -> Iterator[Record]:
    given = _given(event, like)
    if given is not None:
        name, limit, is_unlimited = given
        yield ItemsUpdated(
            at=event.at, array=array.id, by=event.by, name=name, time_limit=limit, is_unlimited=is_unlimited
        )
    if event.band is not None and event.band != like.band:
        yield ItemsMoved(at=event.at, array=array.id, by=event.by, band=event.band)


def _given(event: UpdateRequested, job: Job) -> tuple[str | None, Span | None, bool] | None:
    """Name, limit and whether there is none any more, as far as they change; None where nothing does."""
    name = event.name if event.name != job.spec.name else None
    if not _limit_changes(event, job.spec):
        return None if name is None else (name, None, False)
    return name, event.time_limit, event.is_unlimited


def _words(event: UpdateRequested, job: Job) -> str:
    """What changes of a job, behind its id; empty for nothing."""
    words: list[str] = []
    if event.name is not None and event.name != job.spec.name:
        words.append(f"called {event.name}")
    if _limit_changes(event, job.spec):
        limited = "without a time limit" if event.time_limit is None else f"limited to {rough_span(event.time_limit)}"
        words.append(limited)
    if event.band is not None and event.band != job.band:
        words.append(f"in band {event.band.name.lower()}")
    return f"is {', '.join(words)}" if words else ""


def limit_commands(job: Job, time_limit: Span | None) -> tuple[Command, ...]:
    """Have the keepers of an attempt's ranks hold it to another time limit; of a job that waits there are none."""
    if not isinstance(job.state, Starting | Running):
        return ()
    attempt = job.state.attempt
    return tuple(
        SetTimeLimit(node=rank.placement.node, key=key, time_limit=time_limit) for key, rank in live_ranks(job, attempt)
    )


def limit_again(job: Job, node: NodeName, key: RankKey, told: Span | None) -> tuple[Command, ...]:
    """The command once more for a node whose inventory tells another limit, 0 for none; None: it tells nothing."""
    if told is None or told == (job.spec.time_limit or 0) or isinstance(job.state, Stopping):
        return ()
    return (SetTimeLimit(node=node, key=key, time_limit=job.spec.time_limit),)
