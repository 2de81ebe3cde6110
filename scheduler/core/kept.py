"""What attempts keep for the next one (`--keep`): which copy is the newest, and how long a job waits for one.

The next attempt would start from an older state if it began before what the last one left has come. So a job that is
queued again waits until that is stored, not wanted or known to be lost, for `kept_wait` at most; a release ends the
wait.
Rules: docs/rules/jobs.md 4.79 to 4.81.
"""

from collections.abc import Iterator
from dataclasses import replace

from ..state.events import CheckpointStored, ResultsReported
from ..state.ids import JobId, RankKey
from ..state.jobs import Job
from ..state.kept import KeptCopy, kept_by
from ..state.records import AttemptEnded, FilesKept, KeptWaitEnded, Record, ResultsSettled
from ..state.results import due_with
from ..state.state import State
from ..state.units import after
from .decision import Decision


def on_checkpoint_stored(state: State, event: CheckpointStored) -> Decision:
    """A running rank has had a whole copy stored."""
    return Decision(records=tuple(_kept(state, event, event.key, event.copy, is_checkpoint=True)))


def kept_by_end(state: State, event: ResultsReported) -> Iterator[Record]:
    """What an ended rank keeps has come whole."""
    if event.kept is not None:
        yield from _kept(state, event, event.key, event.kept, is_checkpoint=False)


def _kept(
    state: State, event: CheckpointStored | ResultsReported, key: RankKey, copy: KeptCopy, *, is_checkpoint: bool
) -> Iterator[Record]:
    job = state.durable.jobs.get(key.job)
    if job is not None and _counts(job, copy):
        yield FilesKept(at=event.at, key=key, copy=copy, is_checkpoint=is_checkpoint)


def _counts(job: Job, copy: KeptCopy) -> bool:
    """Whether a copy is to be the newest of its job: one that has ended, or keeps nothing, needs none."""
    is_known = bool(job.spec.keep) and not job.is_finished and copy.attempt <= job.attempt_count
    return is_known and copy.is_newer_than(kept_by(job.kept, copy.rank))


def with_kept_waits(state: State, decision: Decision) -> Decision:
    """The decision with the waits that begin and end by it. The state is that before the decision."""
    if not any(isinstance(record, AttemptEnded | ResultsSettled) for record in decision.records):
        return decision
    settled = {record.key for record in decision.records if isinstance(record, ResultsSettled)}
    records: list[Record] = []
    over: dict[JobId, None] = {}
    for record in decision.records:
        match record:
            case AttemptEnded() if _awaits(state, record, settled):
                until = after(record.at, state.limits.kept_wait)
                records.append(replace(record, begins_at=until, awaits_kept=True))
            case ResultsSettled(key=key):
                records.append(record)
                job = state.durable.jobs.get(key.job)
                if job is not None and job.id not in over and job.awaits_kept and _is_settled(state, job, settled):
                    over[job.id] = None
                    records.append(KeptWaitEnded(at=record.at, job=job.id))
            case _:
                records.append(record)
    return replace(decision, records=tuple(records))


def _awaits(state: State, record: AttemptEnded, settled: set[RankKey]) -> bool:
    """Whether anything of what the attempt keeps is still to come once the decision is applied."""
    job = state.durable.jobs.get(record.job)
    if job is None or not job.spec.keep or record.begins_at is not None:
        return False
    ended, attempt = record.ended, job.attempt
    is_known = attempt is not None and attempt.keys(job.id) == ended.keys(job.id)
    before = attempt.ranks if attempt is not None and is_known else ()  # else it was found in this very decision
    last = [number for number in range(len(ended.ranks)) if not before or before[number].exit is None]
    known = state.durable.results_due.get((job.id, ended.number))
    due = due_with(known, job.id, ended, last, record.at)
    return due is not None and any(key not in settled for key in ended.keys(job.id) if due.awaits(key))


def _is_settled(state: State, job: Job, settled: set[RankKey]) -> bool:
    """Whether nothing of its last attempt is awaited but what is settled now."""
    last = job.past[-1]
    due = state.durable.results_due.get((job.id, last.number))
    return due is None or all(key in settled for key in last.keys(job.id) if due.awaits(key))
