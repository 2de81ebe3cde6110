"""What a store that was put back may cost, and what it may not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.drills.checker import check
from tests.drills.gaps import LATE_NS, lost, ran_again, touched
from tests.drills.history import AttemptKey, Cut, History, Output, Run, StoredJob, StreamKey, Submit
from tests.drills.reading import diaries
from tests.drills.restores import FIRST_SECONDS, GAP_SECONDS, LAST_SECONDS, restores

SECOND = 1_000_000_000
COPIED, BACK = 100, 110
"""When the copy was taken, and put back, in seconds."""


def submit(job: int, asked: float, answered: float, user: str = "ada", **more: object) -> Submit:
    return Submit(
        request_id=f"{user}-{job}",
        user=user,
        kind="short",
        answers=(job,),
        asked_ns=round(asked * SECOND),
        answered_ns=round(answered * SECOND),
        **more,  # type: ignore[arg-type]
    )


def run(job: int, began: float, seen: float, attempt: int = 1, pid: int = 0, devices: tuple[str, ...] = ()) -> Run:
    return Run(
        attempt=AttemptKey(job, attempt),
        rank=0,
        pid=pid or round(began * 10),
        who="leader",
        node="node1",
        devices=devices,
        began_ns=round(began * SECOND),
        seen_ns=round(seen * SECOND),
        code=0,
        written={},
    )


def stored(job: int, user: str = "ada", outcome: str = "SUCCEEDED") -> StoredJob:
    return StoredJob(id=job, user=user, outcome=outcome, reason="EXITED")


# 2 was there before the copy, ran in the gap and again behind it; 3 came in the gap and is gone; 4 came behind it.
PUT_BACK = History(
    cuts=(Cut(COPIED * SECOND, BACK * SECOND),),
    submits=(submit(2, 99, 99), submit(3, 103, 103), submit(4, 98, 120)),
    jobs={2: stored(2), 4: stored(4)},
    runs=(run(2, 101, 105), run(2, 112, 116), run(3, 104, 106), run(4, 121, 122)),
)


def test_a_gap_costs_what_came_in_it_and_that_is_counted() -> None:
    assert check(PUT_BACK) == []
    assert lost(PUT_BACK) == [3]
    assert ran_again(PUT_BACK) == [2]


def test_what_ended_long_before_the_copy_is_not_touched() -> None:
    late = LATE_NS / SECOND
    old = replace(PUT_BACK, submits=(submit(2, 20, 20), *PUT_BACK.submits[1:]), runs=(run(2, 30, COPIED - late - 1),))
    assert 2 not in touched(old)
    assert {3, 4} <= touched(old)
    alone = replace(old, submits=old.submits[:1], jobs={})
    assert {each.rule for each in check(alone)} == {"one live attempt", "one outcome"}


def test_lost_jobs_that_asked_for_parts_of_a_device_may_have_had_it_at_once() -> None:
    def history(share_milli: int) -> History:
        submits = tuple(submit(job, 103, 103, share_milli=share_milli) for job in (5, 6))
        runs = (run(5, 104, 106, devices=("gpu0",)), run(6, 105, 107, devices=("gpu0",)))
        return replace(PUT_BACK, submits=(*PUT_BACK.submits, *submits), runs=(*PUT_BACK.runs, *runs))

    assert check(history(share_milli=500)) == []
    for too_much in (600, 0):
        assert {each.rule for each in check(history(too_much))} == {"put back"}


def test_a_submit_was_acknowledged_when_its_first_number_was_told(tmp_path: Path) -> None:
    asks = {"what": "asks", "ns": 1, "request": "ada-1", "kind": "instant", "count": 1, "items": 0, "active_max": 0}
    asks |= {"is_requeueable": True, "retries": 0, "is_held": False, "has_time_limit": False, "share_milli": 250}
    answers = [{"what": "answered", "request": "ada-1", "first": 7 + at, "ns": at, "count": 1} for at in (2, 9)]
    lines = [json.dumps(each) + "\n" for each in (asks | {"after": []}, *answers)]
    (tmp_path / "ada.jsonl").write_text("".join(lines))
    ((read, *others), *_) = diaries(tmp_path)
    assert not others
    assert (read.answers, read.answered_ns, read.share_milli) == ((9, 16), 2, 250)


BROKEN = {
    "gone though it was there": replace(PUT_BACK, jobs={4: stored(4)}),
    "another's": replace(PUT_BACK, jobs={**PUT_BACK.jobs, 2: stored(2, user="bob")}),
    "without an end": replace(PUT_BACK, jobs={**PUT_BACK.jobs, 2: stored(2, outcome="")}),
    "a number twice": replace(PUT_BACK, submits=(*PUT_BACK.submits, submit(3, 130, 130, user="bob"))),
    "another's output": replace(PUT_BACK, outputs={StreamKey(2, 1, 0, 1): Output(length=30, wrong_at=0)}),
    "both at once": replace(PUT_BACK, runs=(*PUT_BACK.runs, run(2, 104, 113, pid=7))),
    "both at once as other attempts": replace(PUT_BACK, runs=(*PUT_BACK.runs, run(2, 115, 118, attempt=2))),
    "a device twice": replace(
        PUT_BACK, runs=(*PUT_BACK.runs, run(3, 107, 122, devices=("gpu0",)), run(4, 121, 123, devices=("gpu0",)))
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_a_gap_may_not_cost_is_found(name: str) -> None:
    assert "put back" in {each.rule for each in check(BROKEN[name])}, check(BROKEN[name])


def test_a_seed_puts_the_store_back_at_the_same_times_and_never_within_another_gap() -> None:
    for seed in range(200):
        found = restores(seed, 600.0)
        assert found == restores(seed, 600.0)
        assert len(found) == 5
        ends = [FIRST_SECONDS, *(each.at + each.seconds for each in found)]
        assert all(end <= each.at + 0.2 for end, each in zip(ends, found, strict=False))
        assert ends[-1] <= 600.0 - LAST_SECONDS + 0.2
        assert all(GAP_SECONDS[0] <= each.seconds <= GAP_SECONDS[1] for each in found)
    assert restores(1, 600.0) != restores(2, 600.0)
    assert restores(1, 30.0) == ()
