"""What a store that was put back may cost: whose history it touches, and what must hold of those all the same.

A submit is touched by a cut when it was asked for before the store was put back, and had not ended for sure before
the copy was taken. Of what is untouched every rule holds as ever. Of what is touched:
    - what was acknowledged before the copy is there, has one outcome, and is its user's;
    - what was acknowledged in the gap may be gone; where it is there, it is its user's, and has an outcome;
    - no number is ever given twice, and all that is stored is what the job of that number prints;
    - no two processes of a job live at once, and no device is had twice: what ran in the gap has ended before.
It may have run twice, one after the other: the outcome of the first was in the gap.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from tests.drills.history import Cut, History, Run, Submit

LATE_NS = 45_000_000_000
"""An end may be stored so long after its last process: its node was silent, or the scheduler away."""


def touched(history: History) -> frozenset[int]:
    """The jobs whose history a cut may have changed."""
    runs: dict[int, list[Run]] = defaultdict(list)
    for run in history.runs:
        runs[run.attempt.job].append(run)
    found: set[int] = set()
    for submit in history.submits:
        if any(_touches(cut, submit, runs) for cut in history.cuts):
            found.update(submit.jobs)
            found.update(job for first in submit.answers for job in range(first, first + submit.count + submit.items))
    if history.cuts:
        # Made by a request in the gap that was not answered, and asked for again behind it.
        asked = {job for submit in history.submits for job in submit.jobs}
        last = max(cut.until_ns for cut in history.cuts)
        found |= {job for job, of in runs.items() if job not in asked and min(run.began_ns for run in of) < last}
        found |= {job for job in history.jobs if job not in asked}
    grown = True
    while grown:  # who waits for one of them may have been answered by either history
        more = {
            job
            for submit in history.submits
            if found.intersection(on for on, _ in submit.after)
            for job in submit.jobs
            if job not in found
        }
        found |= more
        grown = bool(more)
    return frozenset(found)


def _touches(cut: Cut, submit: Submit, runs: dict[int, list[Run]]) -> bool:
    if submit.asked_ns > cut.until_ns:
        return False
    seen = [run.seen_ns for job in submit.jobs for run in runs[job]]
    return not seen or max(seen) > cut.since_ns - LATE_NS


def untouched(history: History) -> History:
    """The history without what a cut may have changed."""
    if not history.cuts:
        return history
    gone = touched(history)
    return replace(
        history,
        submits=tuple(
            each for each in history.submits if not gone.intersection(each.jobs) and not _is_lost(each, history)
        ),
        jobs={number: job for number, job in history.jobs.items() if number not in gone},
        holds=tuple(each for each in history.holds if each.attempt.job not in gone),
        runs=tuple(each for each in history.runs if each.attempt.job not in gone),
        outputs={key: output for key, output in history.outputs.items() if key.job not in gone},
        followed=tuple(each for each in history.followed if each.job not in gone),
        accounts={},
        records={},
    )


def _is_lost(submit: Submit, history: History) -> bool:
    return not submit.jobs and any(submit.asked_ns <= cut.until_ns for cut in history.cuts)


def lost(history: History) -> list[int]:
    """Jobs that were acknowledged in a gap and are not stored."""
    return [
        job
        for submit in history.submits
        if any(cut.since_ns <= submit.answered_ns <= cut.until_ns for cut in history.cuts)
        for job in submit.jobs
        if job not in history.jobs
    ]


def ran_again(history: History) -> list[int]:
    """Jobs that had come to an end of their own in a gap, and were started again behind it."""
    found = []
    gone = touched(history)
    leaders: dict[int, list[Run]] = defaultdict(list)
    for run in history.runs:
        if run.is_leader and run.attempt.job in gone:
            leaders[run.attempt.job].append(run)
    for job, runs in leaders.items():
        if any(_is_again(cut, runs) for cut in history.cuts):
            found.append(job)
    return found


def _is_again(cut: Cut, runs: Iterable[Run]) -> bool:
    ended = [run for run in runs if run.code == 0 and run.seen_ns <= cut.until_ns]
    return bool(ended) and any(run.began_ns > cut.until_ns for run in runs)
