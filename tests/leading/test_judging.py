"""When a standby takes over, by what it sees and its own clock; nothing here waits."""

from __future__ import annotations

from dataclasses import replace

from scheduler.leading.judging import GONE_SECONDS, Judge, LeadingRole, Look, Run, Verdict

SILENCE_MAX_S = 2.5
LEADER = Run(
    identity="a",
    host="m1",
    pid=1,
    address="m1:1",
    data_folder="/a",
    version="0.1.0",
    role=LeadingRole.LEADING,
    term=3,
    beat=7,
)
STANDBY = replace(LEADER, identity="b", host="m2", role=LeadingRole.STANDING_BY, term=0)
HELD = Look(runs=(LEADER, STANDBY), holder="a", term=3)
FREE = replace(HELD, holder="")


def judge() -> Judge:
    return Judge("b", SILENCE_MAX_S)


def beaten(look: Look, beat: int) -> Look:
    """The same look at a leader that has beaten so often."""
    return replace(look, runs=(replace(LEADER, beat=beat), STANDBY))


def over(judging: Judge, look: Look, begin_s: float, seconds: float, step_s: float = 0.25) -> Verdict:
    """The verdict after this look was seen again and again for so long."""
    verdict, count = judging.judge(look, begin_s), round(seconds / step_s)
    for number in range(1, count + 1):
        verdict = judging.judge(look, begin_s + number * step_s)
    return verdict


def test_a_leader_that_beats_is_waited_for_however_long() -> None:
    judging = judge()
    assert all(judging.judge(beaten(HELD, number), number * 0.5) is Verdict.WAIT for number in range(1_000))


def test_a_leader_that_holds_the_lock_and_is_silent_for_too_long_is_ended() -> None:
    judging = judge()
    assert over(judging, HELD, 100.0, SILENCE_MAX_S - 0.25) is Verdict.WAIT
    assert judging.judge(HELD, 100.0 + SILENCE_MAX_S) is Verdict.END_AND_LEAD


def test_one_beat_and_all_of_it_is_counted_anew() -> None:
    judging = judge()
    assert over(judging, HELD, 0.0, 2.0) is Verdict.WAIT
    assert over(judging, beaten(HELD, 8), 2.25, 2.0) is Verdict.WAIT


def test_a_leader_that_let_go_of_the_lock_and_beats_no_more_is_gone_sooner() -> None:
    judging = judge()
    assert over(judging, FREE, 0.0, GONE_SECONDS - 0.25) is Verdict.WAIT
    assert judging.judge(FREE, GONE_SECONDS) is Verdict.LEAD


def test_a_leader_whose_connection_with_the_lock_was_lost_and_that_beats_is_waited_for() -> None:
    judging = judge()
    assert all(judging.judge(beaten(FREE, number), number * 0.5) is Verdict.WAIT for number in range(20))


def test_where_nobody_leads_or_the_leader_has_left_in_order_it_leads_at_once() -> None:
    assert judge().judge(replace(FREE, runs=(STANDBY,)), 0.0) is Verdict.LEAD
    assert judge().judge(Look(has_runs=False), 0.0) is Verdict.LEAD


def test_of_who_holds_the_lock_and_has_no_row_nothing_is_said() -> None:
    """A version without rows, or somebody who examines the store."""
    assert over(judge(), replace(HELD, holder="someone"), 0.0, 60.0) is Verdict.WAIT


def test_a_store_that_was_away_gives_the_leader_the_time_of_one_that_hangs() -> None:
    judging = judge()
    assert over(judging, HELD, 0.0, 2.25) is Verdict.WAIT
    judging.lose_sight()
    assert over(judging, FREE, 30.0, SILENCE_MAX_S - 0.25) is Verdict.WAIT
    assert judging.judge(FREE, 30.0 + SILENCE_MAX_S) is Verdict.LEAD


def test_a_leader_that_came_back_after_the_store_was_away_is_gone_sooner_when_it_then_goes() -> None:
    judging = judge()
    judging.judge(HELD, 0.0)
    judging.lose_sight()
    judging.judge(HELD, 30.0)
    judging.judge(beaten(HELD, 8), 30.5)
    assert over(judging, beaten(FREE, 8), 31.0, GONE_SECONDS) is Verdict.LEAD


def test_a_standby_that_was_stopped_itself_has_not_waited_meanwhile() -> None:
    judging = judge()
    judging.judge(HELD, 0.0)
    assert judging.judge(HELD, 3_600.0) is Verdict.WAIT
    assert judging.silent_s == 1.0


def test_a_clock_that_goes_back_counts_nothing() -> None:
    judging = judge()
    judging.judge(HELD, 100.0)
    assert judging.judge(HELD, 0.0) is Verdict.WAIT
    assert judging.silent_s == 0.0


def test_another_leader_is_judged_by_its_own_beats() -> None:
    judging = judge()
    assert over(judging, HELD, 0.0, 2.25) is Verdict.WAIT
    third = replace(LEADER, identity="c", term=4, beat=1)
    assert over(judging, replace(HELD, runs=(LEADER, third, STANDBY), holder="c", term=4), 2.5, 2.0) is Verdict.WAIT
