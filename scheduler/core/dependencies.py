"""Jobs that wait for the ends of others: an end is met, or can never be met and then ends who waited for it.

And arrays: when the end of an item means the end of those that wait, and how an array ended.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpufleet.jobs.runs import ExitCode

from ..policy.explain import WANTED_WORDS
from ..state.ids import JobId
from ..state.jobs import Deferred, EndedTogether, Finished, Held, Job, Queued, Tally
from ..state.records import AttemptEnded, AttemptVoided, DependencyMet, ItemsFinished, JobFinished, Record
from ..state.replies import Refused
from ..state.specs import Dependency, EndWanted, Outcome
from ..state.state import State
from ..state.units import Instant
from .decision import Decision


def with_consequences(state: State, decision: Decision) -> Decision:
    """The decision with what the ends in it mean: for the jobs that wait for them, and for arrays, transitively.

    The state is that before the decision. A requeue is no end: nothing follows from it but that an item is not tried
    again whose array failed too often.
    """
    if not state.durable.dependents and not state.durable.arrays:
        return decision
    following = _Following(state)
    for record in decision.records:
        following.note(record)
    more = following.all()
    return replace(decision, records=(*decision.records, *more)) if more else decision


_End = JobFinished | ItemsFinished | AttemptEnded | AttemptVoided


class _Following:
    """Follows the ends of a decision until nothing more comes of them. Its state is that before the decision."""

    def __init__(self, state: State) -> None:
        self._durable = state.durable
        self._records: list[Record] = []
        self._waiting: deque[_End] = deque()
        self._over: set[JobId] = set()
        self._alike_over: set[JobId] = set()
        self._queued_again: dict[JobId, None] = {}
        self._tallies: dict[JobId, Tally] = {}

    def note(self, record: Record) -> None:
        """Something was decided that may have consequences."""
        match record:
            case JobFinished(job=job):
                self._over.add(job)
            case ItemsFinished(array=array):
                self._alike_over.add(array)
            case AttemptEnded(job=job) | AttemptVoided(job=job):
                self._queued_again[job] = None
            case _:
                return
        self._waiting.append(record)

    def all(self) -> list[Record]:
        """What follows from all that was noted, in order."""
        while self._waiting:
            end = self._waiting.popleft()
            match end:
                case JobFinished(job=job_id, finished=finished, at=at):
                    self._meet(self._durable.dependents.get(job_id, ()), job_id, finished, at)
                    job = self._durable.jobs[job_id]
                    if job.array is not None:
                        self._tallies[job.array] = self._tally(job.array).adding(finished)
                        self._look_at_array(job.array, at)
                case ItemsFinished(array=array, spans=spans, finished=finished, at=at):
                    together = EndedTogether(spans=spans, finished=finished)
                    self._tallies[array] = self._tally(array).adding_together(together)
                    for item in [each for each in self._durable.dependents if _is_in(each, spans)]:
                        self._meet(self._durable.dependents[item], item, finished, at)
                    self._look_at_array(array, at)
                case AttemptEnded(job=job_id, at=at) | AttemptVoided(job=job_id, at=at):
                    job = self._durable.jobs[job_id]
                    if job.array is not None:
                        self._look_at_array(job.array, at)
        return self._records

    def _tally(self, array: JobId) -> Tally:
        return self._tallies.get(array) or self._durable.tally(array)

    def _end(self, end: JobFinished | ItemsFinished) -> None:
        is_over = end.job in self._over if isinstance(end, JobFinished) else end.array in self._alike_over
        if not is_over:
            self._records.append(end)
            self.note(end)

    def _meet(self, waiting: Iterable[JobId], on: JobId, finished: Finished, at: Instant) -> None:
        """A job has ended: who waited for it may run, or never will."""
        for job_id in waiting:
            if job_id in self._over:
                continue
            wanted = self._wanted(job_id, on)
            if not wanted.is_met_by(finished.outcome):
                message = f"it was to run {WANTED_WORDS[wanted]} job {on}, which ended {finished.outcome.value}"
                self._give_up(job_id, _failed(at, message))
            elif job_id not in self._alike_over:  # of an array, all of it that waited
                self._records.append(DependencyMet(at=at, job=job_id, on=on))

    def _wanted(self, job_id: JobId, on: JobId) -> EndWanted:
        return next(each.wanted for each in self._durable.jobs[job_id].unmet if each.job == on)

    def _give_up(self, job_id: JobId, finished: Finished) -> None:
        """End a job that can never run; of an array what never differed, for the others wait for themselves."""
        if self._durable.jobs[job_id].items is None:
            self._end(JobFinished(at=finished.at, job=job_id, finished=finished))
        else:
            self._end_alike(job_id, finished)

    def _look_at_array(self, array_id: JobId, at: Instant) -> None:
        """More of an array has ended: its rest may be given up, who waits for it may be, and it may have ended."""
        if array_id in self._over:
            return
        array, tally = self._durable.jobs[array_id], self._tally(array_id)
        cut = _too_many_failures(array, tally, at)
        if cut is not None:
            self._cut(array_id, cut)
        end = _end_of_array(array, tally, at)
        if end is not None:
            self._end(JobFinished(at=at, job=array_id, finished=end))
        elif tally.ended > tally.succeeded:
            of_which = f"all items of array {array_id}, of which {_unlike(tally)}"
            never = _failed(at, f"it was to run {WANTED_WORDS[EndWanted.OK]} {of_which}")
            for job_id in self._durable.dependents.get(array_id, ()):
                if job_id not in self._over and self._wanted(job_id, array_id) is EndWanted.OK:
                    self._give_up(job_id, never)

    def _end_alike(self, array_id: JobId, finished: Finished) -> None:
        """End those items of an array that never differed, but for what has come to in this very decision."""
        alike = self._durable.items_alike(array_id)
        if alike is None:
            return
        for job_id in self._over:
            if job_id in alike:
                alike = alike.without(job_id)
        if alike.spans:
            self._end(ItemsFinished(at=finished.at, array=array_id, spans=alike.spans, finished=finished))

    def _cut(self, array_id: JobId, cut: Finished) -> None:
        """End what waits of an array, and what was to be queued again in this very decision."""
        self._end_alike(array_id, cut)
        for item in sorted(self._durable.arrays[array_id].apart):
            waits = isinstance(self._durable.jobs[item].state, Queued | Deferred | Held)
            if waits or item in self._queued_again:
                self._end(JobFinished(at=cut.at, job=item, finished=cut))


def _is_in(job_id: JobId, spans: tuple[tuple[JobId, JobId], ...]) -> bool:
    return any(begin <= job_id < end for begin, end in spans)


def _failed(at: Instant, message: str) -> Finished:
    return Finished(outcome=Outcome.CANCELLED, at=at, reason="DEPENDENCY_FAILED", message=message)


def _unlike(tally: Tally) -> str:
    """How items of an array did that did not succeed: 1 failed, 2 were cancelled."""
    cancelled = f"{tally.cancelled:,} {'was' if tally.cancelled == 1 else 'were'} cancelled"
    told = [(tally.failures, f"{tally.failures:,} failed"), (tally.cancelled, cancelled)]
    return " and ".join(words for number, words in told if number)


def unmet(
    state: State, after: tuple[Dependency, ...], ended: Mapping[JobId, Outcome | None]
) -> tuple[Dependency, ...] | Refused:
    """What is still to be waited for, or why one of them never can be."""
    still: list[Dependency] = []
    for each in after:
        if each.job in state.durable.jobs:
            tally = state.durable.tallies.get(each.job)
            if each.wanted is EndWanted.OK and tally is not None and tally.ended > tally.succeeded:
                message = f"{WANTED_WORDS[EndWanted.OK]} array {each.job} it would never run: {_unlike(tally)}"
                return Refused(reason="DEPENDENCY_FAILED", message=message)
            still.append(each)
            continue
        outcome = ended.get(each.job) or state.live.ended.get(each.job)
        if outcome is None:
            return Refused(reason="JOB_NOT_FOUND", message=f"there is no job {each.job}")
        if not each.wanted.is_met_by(outcome):
            message = f"{WANTED_WORDS[each.wanted]} job {each.job} it would never run: that one ended {outcome.value}"
            return Refused(reason="DEPENDENCY_FAILED", message=message)
    return tuple(still)


def _too_many_failures(array: Job, tally: Tally, at: Instant) -> Finished | None:
    """The end of what waits of an array whose items failed too often; None for one that goes on."""
    assert array.items is not None
    most = array.items.failures_max
    if not most or tally.failures < most:
        return None
    failed = "1 item of its array" if tally.failures == 1 else f"{tally.failures:,} items of its array"
    message = f"{failed} failed, and at most {most:,} may (--max-fails)"
    return Finished(outcome=Outcome.CANCELLED, at=at, reason="MAX_FAILS", message=message)


def _end_of_array(array: Job, tally: Tally, at: Instant) -> Finished | None:
    """How an array ended; None as long as not all of its items have."""
    assert array.items is not None
    count = array.items.indices.count
    if tally.ended < count:
        return None
    if tally.succeeded == count:
        message = f"all {count:,} items succeeded" if count > 1 else "its item succeeded"
        return Finished(outcome=Outcome.SUCCEEDED, at=at, reason="ITEMS_ENDED", message=message, exit=ExitCode(code=0))
    for ended in tally.together:
        if sum(end - begin for begin, end in ended.spans) == count:
            return ended.finished
    if tally.cancelled == count:
        message = f"all {count:,} items were cancelled"
        return Finished(outcome=Outcome.CANCELLED, at=at, reason="CANCELLED", message=message)
    told = [(tally.failures, "failed"), (tally.cancelled, "cancelled"), (tally.succeeded, "succeeded")]
    message = f"of {count:,} {'item' if count == 1 else 'items'} " + ", ".join(
        f"{number:,} {how}" for number, how in told if number
    )
    if tally.failures:
        code = ExitCode(code=tally.highest_exit)
        return Finished(outcome=Outcome.FAILED, at=at, reason="ITEMS_ENDED", message=message, exit=code)
    return Finished(outcome=Outcome.CANCELLED, at=at, reason="CANCELLED", message=message)
