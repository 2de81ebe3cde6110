"""Each rule of the checker lets a good history pass, and finds what breaks it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.drills.checker import RULES, check
from tests.drills.history import (
    Account,
    AttemptKey,
    Followed,
    History,
    Hold,
    Output,
    Run,
    StoredAttempt,
    StoredJob,
    StreamKey,
    Submit,
)
from tests.drills.job import LINES_AT_ONCE, lines
from tests.drills.reading import compared

SECOND = 1_000_000_000
OUT = 1


def run(job: int, attempt: int, began: float, seen: float, code: int | None = 0, written: int = 30) -> Run:
    return Run(
        attempt=AttemptKey(job, attempt),
        rank=0,
        pid=1000 * job + attempt,
        who="leader",
        node="node1",
        devices=("gpu0",),
        began_ns=round(began * SECOND),
        seen_ns=round(seen * SECOND),
        code=code,
        written={OUT: written},
    )


def hold(job: int, attempt: int, begin: int, end: int | None) -> Hold:
    return Hold(attempt=AttemptKey(job, attempt), rank=0, node="node1", devices=("gpu0",), begin=begin, end=end)


def stored(job: int, *attempts: StoredAttempt, outcome: str = "SUCCEEDED", code: int | None = 0) -> StoredJob:
    return StoredJob(id=job, user="ada", outcome=outcome, reason="EXITED", code=code, attempts=attempts)


def ended(number: int, *, is_complete: bool = True, end: int = 30) -> StoredAttempt:
    return StoredAttempt(number=number, reason="EXITED", code=0, is_complete=is_complete, ends={(0, OUT): end})


HAD = Account(device_time=90_000_000_000, jobs=5, starts=6)

# Job 1 is lost with its node and runs again; job 2 waits for it; job 3 must not be requeued, was held, and is followed;
# 4 is an array of 5 and 6.
GOOD = History(
    submits=(
        Submit(request_id="a", user="ada", kind="long", answers=(1, 1)),
        Submit(request_id="b", user="ada", kind="dependent", answers=(2,), after=((1, "OK"),)),
        Submit(request_id="c", user="ada", kind="held", answers=(3,), is_requeueable=False, is_held=True),
        Submit(request_id="d", user="ada", kind="dependent", refusal="DEPENDENCY_FAILED"),
        Submit(request_id="e", user="ada", kind="array", answers=(4,), items=2, active_max=1),
    ),
    released_ns={3: 25 * SECOND},
    accounts={"ada": HAD},
    records={"ada": HAD},
    jobs={
        1: stored(1, ended(1, is_complete=False, end=12), ended(2)),
        2: stored(2, ended(1)),
        3: stored(3, ended(1)),
        4: stored(4),
        5: stored(5, ended(1)),
        6: stored(6, ended(1)),
    },
    holds=(
        hold(1, 1, 1, 4),
        hold(1, 2, 5, 7),
        hold(2, 1, 9, 11),
        hold(3, 1, 12, 14),
        hold(5, 1, 20, 22),
        hold(6, 1, 23, 25),
    ),
    runs=(
        run(1, 1, 1, 5, code=None, written=20),
        run(1, 2, 6, 9),
        run(2, 1, 10, 20),
        run(3, 1, 26, 28),
        run(5, 1, 30, 31),
        run(6, 1, 32, 33),
    ),
    outputs={
        StreamKey(1, 1, 0, OUT): Output(length=12),
        StreamKey(1, 2, 0, OUT): Output(length=30),
        StreamKey(2, 1, 0, OUT): Output(length=30),
        StreamKey(3, 1, 0, OUT): Output(length=30),
        StreamKey(5, 1, 0, OUT): Output(length=30),
        StreamKey(6, 1, 0, OUT): Output(length=30),
    },
    followed=(Followed(name="ada-3-0", job=3, is_whole=True, streams={StreamKey(3, 1, 0, OUT): Output(length=30)}),),
)


def test_a_good_history_passes() -> None:
    assert check(GOOD) == []


def test_shares_of_a_device_may_be_had_at_once() -> None:
    shared = tuple(replace(each, milli=500) for each in GOOD.holds)
    runs_at_once = (*GOOD.runs[:3], replace(GOOD.runs[3], began_ns=19 * SECOND), *GOOD.runs[4:])
    history = replace(GOOD, holds=shared, runs=runs_at_once, released_ns={3: 18 * SECOND})
    assert check(history) == []


def test_items_that_had_not_begun_when_their_array_was_ended_have_no_outcome_of_their_own() -> None:
    jobs = {job: each for job, each in GOOD.jobs.items() if job != 6}
    cut_short = replace(
        GOOD,
        jobs={**jobs, 4: replace(jobs[4], outcome="CANCELLED", reason="CANCELLED")},
        runs=tuple(each for each in GOOD.runs if each.attempt.job != 6),
        cancelled=frozenset({4, 5, 6}),
    )
    assert check(cut_short) == []
    assert check(replace(cut_short, runs=GOOD.runs)), "it ran, and nothing is known of its end"
    assert check(replace(cut_short, jobs=jobs)), "an array that succeeded has all its items"


def submits(**changes: object) -> History:
    first, *rest = GOOD.submits
    return replace(GOOD, submits=(replace(first, **changes), *rest))  # type: ignore[arg-type]


def job(number: int, **changes: object) -> History:
    return replace(GOOD, jobs={**GOOD.jobs, number: replace(GOOD.jobs[number], **changes)})  # type: ignore[arg-type]


def runs(*more: Run) -> History:
    """The good history with these runs in place of their namesakes, or beside all."""
    named = {each.attempt: each for each in more}
    kept = tuple(each for each in GOOD.runs if each.attempt not in named)
    return replace(GOOD, runs=(*kept, *more))


def holds(number: int, other: Hold) -> History:
    return replace(GOOD, holds=(*GOOD.holds[:number], other, *GOOD.holds[number + 1 :]))


def followed(**changes: object) -> History:
    return replace(GOOD, followed=(replace(GOOD.followed[0], **changes),))  # type: ignore[arg-type]


def outputs(key: StreamKey, output: Output) -> History:
    return replace(GOOD, outputs={**GOOD.outputs, key: output})


STREAM = StreamKey(3, 1, 0, OUT)

BROKEN: dict[str, tuple[History, str]] = {
    "two jobs of one request": (submits(answers=(1, 4)), "one outcome"),
    "no answer": (submits(answers=()), "one outcome"),
    "a job of two requests": (submits(answers=(2,)), "one outcome"),
    "a job that got lost": (
        replace(GOOD, jobs={number: each for number, each in GOOD.jobs.items() if number != 2}),
        "one outcome",
    ),
    "a job that never ends": (job(2, outcome=""), "one outcome"),
    "a job that ends twice": (job(2, ends_recorded=2), "one outcome"),
    "a job of somebody else": (job(2, user="bob"), "one outcome"),
    "a job of nobody": (replace(GOOD, jobs={**GOOD.jobs, 9: stored(9)}), "one outcome"),
    "a cancel that nobody asked for": (job(2, outcome="CANCELLED", reason="CANCELLED"), "true outcome"),
    "a limit that was not set": (job(2, outcome="TIMED_OUT"), "true outcome"),
    "a success that did not run": (replace(GOOD, runs=GOOD.runs[:-1]), "true outcome"),
    "an array that did better than its items": (job(6, outcome="FAILED", code=None), "arrays"),
    "an array that did worse than its items": (job(4, outcome="FAILED", code=None), "arrays"),
    "more items at once than may be": (holds(4, replace(GOOD.holds[4], end=24)), "arrays"),
    "more shares than a device has": (
        replace(
            GOOD,
            holds=tuple(replace(each, milli=600) for each in GOOD.holds),
            runs=(*GOOD.runs[:3], replace(GOOD.runs[3], began_ns=19 * SECOND), *GOOD.runs[4:]),
        ),
        "one job a device",
    ),
    "a success that was ended": (runs(run(2, 1, 10, 20, code=None)), "true outcome"),
    "another exit code": (job(2, outcome="FAILED", code=4), "true outcome"),
    "a held job that ran": (replace(GOOD, released_ns={3: 27 * SECOND}), "waits"),
    "a held job that ran and was never released": (replace(GOOD, released_ns={}), "waits"),
    "a dependent that did not wait": (runs(run(2, 1, 8, 20)), "waits"),
    "a dependent of a failure": (job(1, outcome="FAILED", code=None), "waits"),
    "two live attempts": (runs(run(1, 1, 1, 6.5, code=None, written=12)), "one live attempt"),
    "a second start": (replace(GOOD, runs=(*GOOD.runs, replace(GOOD.runs[1], pid=7))), "one live attempt"),
    "a run where it was not placed": (runs(replace(GOOD.runs[2], node="node2")), "one live attempt"),
    "a run with other devices": (runs(replace(GOOD.runs[2], devices=("gpu1",))), "one live attempt"),
    "a run of a void attempt": (
        holds(2, replace(GOOD.holds[2], is_void=True)),
        "one live attempt",
    ),
    "a run again that must not be": (
        replace(
            GOOD,
            runs=(*GOOD.runs, run(3, 2, 40, 41)),
            holds=(*GOOD.holds, hold(3, 2, 20, 21)),
        ),
        "not run again",
    ),
    "a device that two had": (runs(run(3, 1, 19, 28)), "one job a device"),
    "a device that was given twice": (
        holds(3, replace(GOOD.holds[3], begin=10)),
        "one job a device",
    ),
    "a device that is held for ever": (
        holds(3, replace(GOOD.holds[3], end=None)),
        "one job a device",
    ),
    "wrong bytes": (outputs(STREAM, Output(length=30, wrong_at=3)), "equal streams"),
    "bytes that are missing": (outputs(STREAM, Output(length=29)), "equal streams"),
    "bytes that were written and not stored": (runs(run(3, 1, 26, 28, written=31)), "equal streams"),
    "a follower of wrong bytes": (followed(streams={STREAM: Output(length=30, wrong_at=3)}), "equal streams"),
    "a follower of too little": (followed(streams={STREAM: Output(length=29)}), "equal streams"),
    "a follower of nothing": (followed(streams={}), "equal streams"),
    "a follower who waits for ever": (followed(is_whole=False), "equal streams"),
    "a follower who saw a hole": (followed(problems=("offset 7 behind 3 bytes",)), "equal streams"),
    "an attempt that is counted twice": (
        replace(GOOD, accounts={"ada": replace(HAD, device_time=2 * HAD.device_time, starts=7)}),
        "counted once",
    ),
    "a job that is counted for another user": (
        replace(GOOD, accounts={"ada": replace(HAD, jobs=4), "bob": Account(jobs=1)}),
        "counted once",
    ),
    "an account that was lost": (replace(GOOD, accounts={}), "counted once"),
    "a secret that was taken": (replace(GOOD, loot=("job 5 reads: it read admin.token",)), "nothing taken"),
    "a program that left": (replace(GOOD, surprises=("agent node1 left by itself with 1",)), "nothing strange"),
    "a process that is left": (replace(GOOD, leftovers=("process 7 is left on node1",)), "nothing strange"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_history_is_found_by_the_rule_that_it_breaks(name: str) -> None:
    history, rule = BROKEN[name]
    assert rule in {violation.rule for violation in check(history)}


def test_every_rule_is_shown_to_be_able_to_fail() -> None:
    assert {rule for _, rule in BROKEN.values()} == RULES.keys()


def test_a_stream_is_compared_with_what_its_job_prints_byte_by_byte() -> None:
    key = StreamKey(7, 2, 0, OUT)
    whole = lines(7, 2, 0, OUT, 0, 2 * LINES_AT_ONCE + 3)
    pieces = [whole[at : at + 700] for at in range(0, len(whole), 700)]
    assert compared(key, pieces) == Output(length=len(whole))
    assert compared(key, [whole[:-5]]) == Output(length=len(whole) - 5)
    wrong = bytearray(whole)
    wrong[20_000] ^= 1
    assert compared(key, [bytes(wrong[:15_000]), bytes(wrong[15_000:])]) == Output(length=len(whole), wrong_at=20_000)
    assert compared(StreamKey(7, 3, 0, OUT), [whole]).wrong_at == len("7.")
