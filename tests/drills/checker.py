"""What must be true of a drill that is over: a pure function of its history. Each rule is one function."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from tests.drills.gaps import touched, untouched
from tests.drills.history import (
    Account,
    AttemptKey,
    Followed,
    History,
    Hold,
    Output,
    Run,
    StoredAttempt,
    StreamKey,
    Submit,
)

WHOLE_MILLI = 1000
"""A device, in thousandths."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that was broken, in a sentence; `job` is whose story to tell."""

    rule: str
    text: str
    job: int | None = None

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


Found = Iterator[tuple[str, int | None]]
Rule = Callable[[History], Found]


def check(history: History) -> list[Violation]:
    """Everything that is wrong; empty when every rule held."""
    judged = untouched(history)
    found = [Violation(name, text, job) for name, rule in RULES.items() for text, job in rule(judged)]
    return found + [Violation("put back", text, job) for text, job in put_back(history)]


# --- submits


def one_outcome(history: History) -> Found:
    """Every acknowledged submit has exactly one outcome, and nothing runs that nobody asked for.

    Items that had not begun when their array was ended are a part of its outcome, and have none of their own.
    """
    owners: dict[int, str] = {}
    began = {run.attempt.job for run in history.runs}
    for submit in history.submits:
        if len(set(submit.answers)) > 1:
            yield f"request {submit.request_id} was acknowledged as jobs {sorted(set(submit.answers))}", None
        if not submit.answers and not submit.refusal:
            yield f"request {submit.request_id} of {submit.user} was never answered", None
        for job in submit.jobs:
            if job in owners:
                yield f"job {job} belongs to requests {owners[job]} and {submit.request_id}", job
            owners[job] = submit.request_id
            stored = history.jobs.get(job)
            if stored is None and job not in began and _was_cut_short(history, submit):
                continue
            if stored is None:
                yield f"job {job} was acknowledged and is not stored", job
            elif not stored.outcome:
                yield f"job {job} ({submit.kind}) has no outcome", job
            elif stored.ends_recorded != 1:
                yield f"job {job} ended {stored.ends_recorded} times", job
            elif stored.user != submit.user:
                yield f"job {job} of {submit.user} is stored as one of {stored.user}", job
    for job in sorted(history.jobs.keys() - owners.keys()):
        yield f"job {job} is stored and nobody asked for it", job


def _was_cut_short(history: History, submit: Submit) -> bool:
    """Whether an array ended before all its items had begun."""
    array = history.jobs.get(submit.array or 0)
    return array is not None and array.outcome not in ("", "SUCCEEDED")


def true_outcome(history: History) -> Found:
    """How a job ended is how its process did, and why is something that was asked for."""
    leaders = {run.attempt: run for run in history.runs if run.is_leader}
    limited = {job for submit in history.submits if submit.has_time_limit for job in submit.jobs}
    arrays = {submit.array for submit in history.submits}
    for job in history.jobs.values():
        if job.id in arrays:
            continue
        if job.outcome == "CANCELLED" and job.id not in history.cancelled and job.reason == "CANCELLED":
            yield f"job {job.id} is cancelled and nobody asked for it", job.id
        if job.outcome == "TIMED_OUT" and job.id not in limited:
            yield f"job {job.id} ended by a time limit and has none", job.id
        last = leaders.get(AttemptKey(job.id, job.attempts[-1].number)) if job.attempts else None
        if job.outcome == "SUCCEEDED" and (last is None or last.code != 0):
            yield f"job {job.id} succeeded, and its last process {_word(last)}", job.id
        if job.code is not None and last is not None and last.code is not None and job.code != last.code:
            yield f"job {job.id} ended with {job.code}, and its process with {last.code}", job.id


def arrays(history: History) -> Found:
    """An array ends as its items did, and no more of them are active at once than may be."""
    for submit in history.submits:
        array = history.jobs.get(submit.array or 0)
        if array is None:
            continue
        items = [history.jobs[job] for job in submit.jobs[1:] if job in history.jobs]
        succeeded = sum(item.outcome == "SUCCEEDED" for item in items)
        if (array.outcome == "SUCCEEDED") != (succeeded == submit.items):
            ends = sorted({item.outcome for item in items})
            yield f"array {array.id} ended {array.outcome} and its items {', '.join(ends)}", array.id
        holds = [hold for hold in history.holds if hold.attempt.job in submit.jobs and hold.rank == 0]
        for hold, beside in _beside(holds):
            if submit.active_max and len(beside) >= submit.active_max:
                text = f"{1 + len(beside)} items of array {array.id} were active, and {submit.active_max} may be"
                yield text, hold.attempt.job
                break


def _beside(holds: Iterable[Hold]) -> Iterator[tuple[Hold, list[Hold]]]:
    """Each hold, with those that were there when it came."""
    there: list[Hold] = []
    for hold in sorted(holds, key=lambda each: each.begin):
        there = [each for each in there if each.end is None or each.end > hold.begin]
        yield hold, there
        there.append(hold)


def waits(history: History) -> Found:
    """A job that waits for another one, or for a release, has not run before."""
    runs = _by_job(history)
    for submit in history.submits:
        if submit.array is not None:
            runs[submit.array] = [run for job in submit.jobs[1:] for run in runs[job]]
    for submit in history.submits:
        for job in submit.jobs:
            first = min((run.began_ns for run in runs[job]), default=None)
            if first is None:
                continue
            if submit.is_held and first < history.released_ns.get(job, first + 1):
                yield f"job {job} was held and ran before anybody released it", job
            for on, wanted in submit.after:
                yield from _ran_after(history, runs[on], job, first, on, wanted)


def _ran_after(history: History, others: list[Run], job: int, first: int, on: int, wanted: str) -> Found:
    other = history.jobs.get(on)
    fits = other is not None and {"ANY": True, "OK": other.outcome == "SUCCEEDED"}.get(
        wanted, other.outcome in ("FAILED", "TIMED_OUT")
    )
    if not fits:
        yield f"job {job} ran after job {on} ({wanted}), which ended {other.outcome if other else 'never'}", job
    if late := [run for run in others if run.seen_ns > first]:
        yield f"job {job} ran while {late[0]}, which it waits for, still lived", job


# --- attempts


def one_attempt(history: History) -> Found:
    """No two live attempts of a job, each attempt once, each where it was placed."""
    placed = {(hold.attempt, hold.rank): hold for hold in history.holds}
    begun: dict[tuple[AttemptKey, int], Run] = {}
    for run in history.runs:
        hold = placed.get((run.attempt, run.rank))
        if hold is None or hold.node != run.node or sorted(hold.devices) != sorted(run.devices):
            where = f"{hold.node} {','.join(hold.devices)}" if hold else "no node"
            yield f"{run} has {','.join(run.devices)} and was placed on {where}", run.attempt.job
        elif hold.is_void:
            yield f"{run} ran, and the attempt is void", run.attempt.job
        if run.is_leader:
            if other := begun.get((run.attempt, run.rank)):
                yield f"{run} is a second start: {other.pid} was the first", run.attempt.job
            begun[run.attempt, run.rank] = run
    for runs in _by_job(history).values():
        yield from _overlaps(runs, lambda one, other: one.attempt != other.attempt, "live at once")


def limited_attempts(history: History) -> Found:
    """What must not be run again was not."""
    runs = _by_job(history)
    for submit in history.submits:
        if submit.is_requeueable or submit.retries:
            continue
        for job in submit.jobs:
            if len(numbers := sorted({run.attempt.number for run in runs[job]})) > 1:
                yield f"job {job} must not be requeued and ran as attempts {numbers}", job


def one_device(history: History) -> Found:
    """No more of a device is given than there is: by what was decided, and by what the processes had."""
    yield from _devices_of_processes(history)
    held: dict[tuple[str, str], list[Hold]] = defaultdict(list)
    for hold in history.holds:
        for device in hold.devices:
            held[hold.node, device].append(hold)
    for (node, device), holds in held.items():
        for hold, beside in _beside(holds):
            slots = {each.slot or each.attempt: each.milli for each in beside}
            others = sum(milli for slot, milli in slots.items() if slot != (hold.slot or hold.attempt))
            if hold.milli + others > WHOLE_MILLI:
                names = ", ".join(str(each.attempt) for each in beside)
                yield f"{device} of {node} was given to {hold.attempt} while {names} had it", hold.attempt.job
        for hold in holds:
            if hold.end is None:
                yield f"{device} of {node} is still held by {hold.attempt}", hold.attempt.job


def _devices_of_processes(history: History) -> Found:
    milli = {(hold.attempt, hold.rank): hold.milli for hold in history.holds}
    # Of a job that was lost with the history of a gap no hold is stored: what it had is what was asked for.
    asked = {job: submit.share_milli for submit in history.submits if submit.share_milli for job in submit.jobs}
    by_device: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in history.runs:
        for device in run.devices:
            by_device[run.node, device].append(run)
    for (_, device), runs in by_device.items():
        for run in runs:
            milli.setdefault((run.attempt, run.rank), asked.get(run.attempt.job, WHOLE_MILLI))
        yield from _too_much(device, runs, milli)


def _too_much(device: str, runs: Iterable[Run], milli: Mapping[tuple[AttemptKey, int], int]) -> Found:
    """The first moment at which the living attempts have more of a device than there is."""
    living: list[Run] = []
    for run in sorted(runs, key=lambda each: each.began_ns):
        living = [*(each for each in living if each.seen_ns > run.began_ns), run]
        has = {(each.attempt, each.rank): milli[each.attempt, each.rank] for each in living}
        if sum(has.values()) > WHOLE_MILLI:
            yield f"{' and '.join(map(str, living))} lived at once on {device}", run.attempt.job
            return


def _overlaps(runs: Iterable[Run], matters: Callable[[Run, Run], bool], what: str) -> Found:
    """Pairs of processes that lived at the same time; the first pair is enough."""
    living: list[Run] = []
    for run in sorted(runs, key=lambda each: each.began_ns):
        living = [each for each in living if each.seen_ns > run.began_ns]
        for other in living:
            if matters(other, run):
                together = (min(other.seen_ns, run.seen_ns) - run.began_ns) / 1e9
                yield f"{other} and {run} {what} for {together:.3f} s", run.attempt.job
                return
        living.append(run)


# --- output


def equal_streams(history: History) -> Found:
    """Every stream is, byte for byte, what its job printed; a complete one is all of it, and a follower got it all."""
    for key, output in history.outputs.items():
        if output.wrong_at is not None:
            yield f"stored {key} is wrong from byte {output.wrong_at:,} on", key.job
    for job in history.jobs.values():
        for attempt in job.attempts:
            yield from _is_stored(history, AttemptKey(job.id, attempt.number), attempt)
    complete = {
        AttemptKey(job.id, attempt.number)
        for job in history.jobs.values()
        for attempt in job.attempts
        if attempt.is_complete
    }
    for run in history.runs:
        if run.is_leader and run.attempt in complete:
            yield from _is_all(history, run)
    for followed in history.followed:
        yield from _got(history, followed)


def _is_stored(history: History, key: AttemptKey, attempt: StoredAttempt) -> Found:
    for (rank, stream), end in attempt.ends.items():
        each = StreamKey(key.job, key.number, rank, stream)
        have = history.outputs.get(each, Output(length=0)).length
        if attempt.is_complete and have != end:
            yield f"{each} ended at {end:,} and {have:,} bytes are stored, and it is called complete", key.job


def _is_all(history: History, run: Run) -> Found:
    key = run.attempt
    for stream, written in run.written.items():
        each = StreamKey(key.job, key.number, run.rank, stream)
        have = history.outputs.get(each, Output(length=0)).length
        if have < written or (run.code is not None and have != written):
            yield f"{each}: {written:,} bytes were written, {have:,} are stored, and it is called complete", key.job


def _got(history: History, followed: Followed) -> Found:
    job = history.jobs.get(followed.job)
    complete = {attempt.number for attempt in job.attempts if attempt.is_complete} if job else set()
    for problem in followed.problems:
        yield f"follower {followed.name}: {problem}", followed.job
    if not followed.is_whole:
        yield f"follower {followed.name} never came to the end of job {followed.job}", followed.job
    for key, output in followed.streams.items():
        if output.wrong_at is not None:
            yield f"follower {followed.name} got {key} wrong from byte {output.wrong_at:,} on", followed.job
        stored = history.outputs.get(key, Output(length=0)).length
        if key.number in complete and (output.length > stored or (followed.is_whole and output.length != stored)):
            yield f"follower {followed.name} got {output.length:,} of {stored:,} bytes of {key}", followed.job
    if followed.is_whole and job is not None and job.attempts:
        last = job.attempts[-1].number
        missing = [
            key
            for key, output in history.outputs.items()
            if key.attempt == (followed.job, last) and output.length and key not in followed.streams
        ]
        if missing and last in complete:
            yield f"follower {followed.name} got nothing of {missing[0]}", followed.job


# --- a store that was put back


def put_back(history: History) -> Found:
    """What must hold over a cut of the history of those whom it touched (gaps.py)."""
    if not history.cuts:
        return
    gone = touched(history)
    owners: dict[int, str] = {}
    for submit in history.submits:
        for job in {first + number for first in submit.answers for number in range(submit.count + submit.items)}:
            if owners.setdefault(job, submit.request_id) != submit.request_id:
                yield f"number {job} was given to requests {owners[job]} and {submit.request_id}", job
        for job in gone.intersection(submit.jobs):
            stored = history.jobs.get(job)
            if stored is None:
                in_gap = any(cut.since_ns <= submit.answered_ns <= cut.until_ns for cut in history.cuts)
                if not in_gap and not submit.items:
                    yield f"job {job} was acknowledged outside of every gap and is not stored", job
            elif stored.user != submit.user:
                yield f"job {job} of {submit.user} is stored as one of {stored.user}", job
            elif not stored.outcome:
                yield f"job {job} ({submit.kind}) was touched by a gap and has no outcome", job
    for key, output in history.outputs.items():
        if key.job in gone and output.wrong_at is not None:
            yield f"stored {key} is wrong from byte {output.wrong_at:,} on", key.job
    by_job = _by_job(history)
    for job in sorted(gone):
        yield from _overlaps(by_job[job], _are_two_starts, "live at once")
    yield from _devices_of_processes(history)


def _are_two_starts(one: Run, other: Run) -> bool:
    """Ranks of an attempt and children of a process belong to one start."""
    are_leaders_of_one = one.is_leader and other.is_leader and one.rank == other.rank
    return one.attempt != other.attempt or (are_leaders_of_one and one.pid != other.pid)


# --- the rest


def counted_once(history: History) -> Found:
    """The account of who used how much is what the records come to, to the microsecond, over all kills."""
    for user in sorted(history.accounts.keys() | history.records.keys()):
        told, true = history.accounts.get(user, Account()), history.records.get(user, Account())
        if told != true:
            yield f"{user} is accounted for {told}, and had {true}", None


def nothing_taken(history: History) -> Found:
    """A job that means harm gets nothing that is not its own, and harms nobody."""
    for text in history.loot:
        yield text, None


def nothing_strange(history: History) -> Found:
    """No program failed, nobody got an error that means a bug, and nothing is left over."""
    for text in (*history.surprises, *history.leftovers):
        yield text, None


RULES: dict[str, Rule] = {
    "one outcome": one_outcome,
    "true outcome": true_outcome,
    "arrays": arrays,
    "waits": waits,
    "one live attempt": one_attempt,
    "not run again": limited_attempts,
    "one job a device": one_device,
    "equal streams": equal_streams,
    "counted once": counted_once,
    "nothing taken": nothing_taken,
    "nothing strange": nothing_strange,
}


def _by_job(history: History) -> dict[int, list[Run]]:
    found: dict[int, list[Run]] = defaultdict(list)
    for run in history.runs:
        found[run.attempt.job].append(run)
    return found


def _word(run: Run | None) -> str:
    if run is None:
        return "never ran"
    return "was ended" if run.code is None else f"ended with {run.code}"
