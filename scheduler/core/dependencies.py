"""Jobs that wait for the ends of others: an end is met, or can never be met and then ends who waited for it."""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from ..policy.explain import WANTED_WORDS
from ..state.ids import JobId
from ..state.jobs import Dependency, EndWanted, Finished, Outcome
from ..state.records import DependencyMet, JobFinished, Record
from ..state.replies import Refused
from ..state.state import State
from ..state.units import Instant
from .decision import Decision


def with_consequences(state: State, decision: Decision) -> Decision:
    """The decision with what the ends in it mean for the jobs that wait for them, transitively.

    The state is that before the decision. A requeue is no end: nothing follows from it.
    """
    if not state.durable.dependents:
        return decision
    finished = [record for record in decision.records if isinstance(record, JobFinished)]
    more = _follow(state, finished) if finished else ()
    return replace(decision, records=(*decision.records, *more)) if more else decision


def _follow(state: State, finished: list[JobFinished]) -> tuple[Record, ...]:
    records: list[Record] = []
    over = {record.job for record in finished}
    waiting = deque(finished)
    while waiting:
        end = waiting.popleft()
        for job_id in state.durable.dependents.get(end.job, ()):
            if job_id in over:
                continue
            wanted = next(each.wanted for each in state.durable.jobs[job_id].unmet if each.job == end.job)
            if wanted.is_met_by(end.finished.outcome):
                records.append(DependencyMet(at=end.at, job=job_id, on=end.job))
                continue
            cancelled = JobFinished(at=end.at, job=job_id, finished=_impossible(end.at, end.job, end.finished, wanted))
            over.add(job_id)
            records.append(cancelled)
            waiting.append(cancelled)
    return tuple(records)


def _impossible(at: Instant, on: JobId, end: Finished, wanted: EndWanted) -> Finished:
    message = f"it was to run {WANTED_WORDS[wanted]} job {on}, which ended {end.outcome.value}"
    return Finished(outcome=Outcome.CANCELLED, at=at, reason="DEPENDENCY_FAILED", message=message)


def unmet(
    state: State, after: tuple[Dependency, ...], ended: Mapping[JobId, Outcome | None]
) -> tuple[Dependency, ...] | Refused:
    """What is still to be waited for, or why one of them never can be."""
    still: list[Dependency] = []
    for each in after:
        if each.job in state.durable.jobs:
            still.append(each)
            continue
        outcome = ended.get(each.job) or state.live.ended.get(each.job)
        if outcome is None:
            return Refused(reason="JOB_NOT_FOUND", message=f"there is no job {each.job}")
        if not each.wanted.is_met_by(outcome):
            message = f"{WANTED_WORDS[each.wanted]} job {each.job} it would never run: that one ended {outcome.value}"
            return Refused(reason="DEPENDENCY_FAILED", message=message)
    return tuple(still)
