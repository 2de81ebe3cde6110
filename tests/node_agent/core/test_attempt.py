"""The keeper's decisions about one attempt, walked through time without a clock."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.jobs.runs import FENCE_US_MIN, StopCause
from node_agent.core.attempt import (
    Action,
    Killed,
    Limits,
    Phase,
    Running,
    SendKill,
    SendSignal,
    SendTerm,
    Stopping,
    Wait,
    after,
    heartbeat_acknowledged,
    next_action,
    stop,
    stop_cause,
    time_limit_us_of,
    with_time_limit,
)
from node_agent.core.fence import (
    CommandRefusal,
    fence_deadline_us,
    fence_margin_us,
    grace_within_fence_us,
    refusal_of_command,
)

S = 1_000_000
LIMITS = Limits(grace_us=30 * S)


def running(limits: Limits = LIMITS, heartbeat_sent_us: int = 0) -> Running:
    return Running(limits=limits, started_us=0, heartbeat_sent_us=heartbeat_sent_us)


def history(phase: Phase, until_us: int) -> list[tuple[int, Action]]:
    """Do what is due, whenever it is due, and list what was done when."""
    done: list[tuple[int, Action]] = []
    now_us = 0
    while now_us <= until_us:
        action = next_action(phase, now_us)
        if isinstance(action, Wait):
            if action.until_us is None or action.until_us > until_us:
                break
            assert action.until_us > now_us, "a wait that is over would spin"
            now_us = action.until_us
        else:
            done.append((now_us, action))
            phase = after(phase, action)
    return done


def test_without_limits_there_is_nothing_to_do() -> None:
    assert next_action(running(), 10**15) == Wait(None)


def test_at_the_time_limit_comes_sigterm_and_after_the_grace_sigkill() -> None:
    limits = Limits(grace_us=30 * S, time_limit_us=100 * S)
    assert history(running(limits), 10**15) == [
        (100 * S, SendTerm(cause=StopCause.TIME_LIMIT, kill_us=130 * S)),
        (130 * S, SendKill(StopCause.TIME_LIMIT)),
    ]


def test_a_signal_comes_once_before_the_time_limit_and_changes_nothing_else() -> None:
    limits = Limits(grace_us=30 * S, time_limit_us=100 * S, signal=10, signal_before_us=40 * S)
    assert history(running(limits), 10**15) == [
        (60 * S, SendSignal(signal=10, is_for_leader=False, limit_us=100 * S)),
        (100 * S, SendTerm(cause=StopCause.TIME_LIMIT, kill_us=130 * S)),
        (130 * S, SendKill(StopCause.TIME_LIMIT)),
    ]


def test_a_keeper_that_was_suspended_over_signal_and_limit_only_stops() -> None:
    limits = Limits(grace_us=30 * S, time_limit_us=100 * S, signal=10, signal_before_us=40 * S)
    assert next_action(running(limits), 101 * S) == SendTerm(cause=StopCause.TIME_LIMIT, kill_us=131 * S)


def test_a_limit_that_is_raised_later_makes_the_signal_due_once_more_and_one_that_is_lowered_does_not() -> None:
    limits = Limits(grace_us=30 * S, time_limit_us=100 * S, signal=10, signal_before_us=40 * S)
    told = after(running(limits), next_action(running(limits), 60 * S))
    assert isinstance(told, Running)
    raised = with_time_limit(told, 200 * S)
    lowered = replace(told, limits=replace(limits, time_limit_us=80 * S))
    assert next_action(raised, 61 * S) == Wait(160 * S)
    assert isinstance(next_action(raised, 160 * S), SendSignal)
    assert next_action(lowered, 61 * S) == Wait(80 * S)


def test_what_is_being_stopped_gets_no_signal_before_its_limit() -> None:
    limits = Limits(grace_us=30 * S, time_limit_us=100 * S, signal=10, signal_before_us=40 * S)
    phase, _ = stop(running(limits), StopCause.CANCELLED, None, 50 * S)
    assert next_action(phase, 60 * S) == Wait(80 * S)


def test_before_the_fence_comes_sigterm_one_grace_early_and_at_the_deadline_sigkill() -> None:
    limits = Limits(grace_us=30 * S, fence_us=600 * S)
    assert history(running(limits), 10**15) == [
        (564 * S, SendTerm(cause=StopCause.FENCED, kill_us=594 * S)),
        (594 * S, SendKill(StopCause.FENCED)),
    ]


def test_a_grace_longer_than_half_the_fence_is_cut_to_half() -> None:
    limits = Limits(grace_us=1000 * S, fence_us=100 * S)
    assert history(running(limits), 10**15) == [
        (45 * S, SendTerm(cause=StopCause.FENCED, kill_us=95 * S)),
        (95 * S, SendKill(StopCause.FENCED)),
    ]


def test_a_keeper_that_slept_past_the_fence_kills_without_sigterm() -> None:
    assert next_action(running(Limits(fence_us=600 * S)), 594 * S) == SendKill(StopCause.FENCED)


def test_a_time_limit_just_before_the_fence_gets_only_the_time_that_is_left() -> None:
    limits = Limits(grace_us=30 * S, time_limit_us=560 * S, fence_us=600 * S)
    assert next_action(running(limits), 560 * S) == SendTerm(cause=StopCause.TIME_LIMIT, kill_us=590 * S)
    limits = Limits(grace_us=300 * S, time_limit_us=290 * S, fence_us=600 * S)
    assert next_action(running(limits), 290 * S) == SendTerm(cause=StopCause.TIME_LIMIT, kill_us=590 * S)
    late = Limits(grace_us=300 * S, time_limit_us=290 * S, fence_us=580 * S)
    assert next_action(running(late), 289 * S) == SendTerm(cause=StopCause.FENCED, kill_us=574_200_000)


def test_a_stop_uses_the_attempts_grace_or_the_one_that_is_given() -> None:
    assert stop(running(), StopCause.CANCELLED, None, 5 * S) == (
        Stopping(cause=StopCause.CANCELLED, kill_us=35 * S),
        SendTerm(cause=StopCause.CANCELLED, kill_us=35 * S),
    )
    assert stop(running(), StopCause.CANCELLED, S, 5 * S)[0] == Stopping(cause=StopCause.CANCELLED, kill_us=6 * S)
    assert stop(running(), StopCause.CANCELLED, 0, 5 * S) == (
        Killed(cause=StopCause.CANCELLED),
        SendKill(StopCause.CANCELLED),
    )


def test_a_second_stop_can_only_bring_the_kill_forward_and_never_changes_the_cause() -> None:
    stopping = Stopping(cause=StopCause.PREEMPTED, kill_us=100 * S)
    assert stop(stopping, StopCause.CANCELLED, None, 5 * S) == (stopping, Wait(100 * S))
    assert stop(stopping, StopCause.CANCELLED, 1000 * S, 5 * S) == (stopping, Wait(100 * S))
    sooner = Stopping(cause=StopCause.PREEMPTED, kill_us=15 * S)
    assert stop(stopping, StopCause.CANCELLED, 10 * S, 5 * S) == (sooner, Wait(15 * S))
    assert stop(stopping, StopCause.CANCELLED, 0, 5 * S)[1] == SendKill(StopCause.PREEMPTED)
    killed = Killed(cause=StopCause.PREEMPTED)
    assert stop(killed, StopCause.CANCELLED, 0, 5 * S) == (killed, Wait(None))


def test_heartbeats_move_the_fence_of_what_runs_and_of_nothing_that_was_told_to_stop() -> None:
    assert heartbeat_acknowledged(running(heartbeat_sent_us=5), 9) == running(heartbeat_sent_us=9)
    assert heartbeat_acknowledged(running(heartbeat_sent_us=5), 4) == running(heartbeat_sent_us=5)
    stopping = Stopping(cause=StopCause.FENCED, kill_us=100 * S)
    assert heartbeat_acknowledged(stopping, 10**15) == stopping


def test_the_margin_is_one_percent_and_at_least_five_seconds() -> None:
    assert fence_margin_us(600 * S) == 6 * S
    assert fence_margin_us(30 * S) == 5 * S
    assert fence_margin_us(3600 * S) == 36 * S
    assert fence_deadline_us(7 * S, 600 * S) == 601 * S


def test_a_command_of_a_lower_term_or_an_old_or_unknown_heartbeat_is_refused() -> None:
    def judge(term: int = 3, sent_us: int | None = 100 * S, now_us: int = 130 * S) -> CommandRefusal | None:
        return refusal_of_command(term=term, highest_term=3, heartbeat_sent_us=sent_us, now_us=now_us)

    assert judge() is None
    assert judge(term=4) is None
    assert judge(term=2) is CommandRefusal.LOWER_TERM
    assert judge(sent_us=None) is CommandRefusal.UNKNOWN_HEARTBEAT
    assert judge(now_us=130 * S + 1) is CommandRefusal.TOO_OLD


times = st.integers(0, 10_000 * S)
limits_values = st.builds(
    Limits,
    grace_us=st.integers(0, 2_000 * S),
    time_limit_us=st.none() | st.integers(1, 5_000 * S),
    fence_us=st.none() | st.integers(FENCE_US_MIN, 5_000 * S),
)


@given(limits_values)
def test_an_attempt_gets_at_most_one_sigterm_and_one_sigkill_in_this_order_and_by_the_fence(limits: Limits) -> None:
    done = history(running(limits), 10**15)
    assert [type(action) for _, action in done] in ([], [SendTerm, SendKill], [SendKill])
    if limits.fence_us is not None:
        killed_us, killed = done[-1]
        assert isinstance(killed, SendKill)
        assert killed_us <= fence_deadline_us(0, limits.fence_us) < limits.fence_us
    if limits.time_limit_us is not None:
        assert done[-1][0] <= limits.time_limit_us + limits.grace_us


@given(
    limits_values,
    st.lists(st.tuples(times, st.sampled_from(("beat", "stop", "kill")), st.none() | st.integers(0, 100 * S))),
)
def test_whatever_happens_it_is_killed_by_the_fence_of_the_newest_heartbeat_and_never_twice(
    limits: Limits, events: list[tuple[int, str, int | None]]
) -> None:
    phase: Phase = running(limits)
    kills = terms = 0
    newest_us = 0
    for now_us, kind, grace_us in sorted(events, key=lambda event: event[0]):
        while not isinstance(due := next_action(phase, now_us), Wait):
            kills += isinstance(due, SendKill)
            terms += isinstance(due, SendTerm)
            phase = after(phase, due)
        if kind == "beat":
            newest_us = now_us
            phase = heartbeat_acknowledged(phase, now_us)
        else:
            was = stop_cause(phase)
            phase, action = stop(phase, StopCause.CANCELLED, 0 if kind == "kill" else grace_us, now_us)
            assert stop_cause(phase) is (was or StopCause.CANCELLED)
            kills += isinstance(action, SendKill)
            terms += isinstance(action, SendTerm)
        if limits.fence_us is not None and not isinstance(phase, Killed):
            wait = next_action(phase, now_us)
            deadline_us = fence_deadline_us(newest_us, limits.fence_us)
            assert not isinstance(wait, Wait) or (wait.until_us is not None and wait.until_us <= deadline_us)
    assert kills <= 1
    assert terms <= 1


@given(st.integers(0, 10**12), st.integers(FENCE_US_MIN, 10**12))
def test_at_least_half_of_the_fence_less_the_margin_is_running_time(grace_us: int, fence_us: int) -> None:
    term_us = fence_deadline_us(0, fence_us) - grace_within_fence_us(grace_us, fence_us)
    assert term_us >= fence_us // 2 - fence_margin_us(fence_us) > 0


def test_a_limit_that_has_passed_already_ends_it_and_what_is_being_stopped_goes_on_stopping() -> None:
    phase = with_time_limit(running(Limits(grace_us=30 * S)), 10 * S)
    assert next_action(phase, 50 * S) == SendTerm(cause=StopCause.TIME_LIMIT, kill_us=80 * S)
    stopping = after(phase, next_action(phase, 50 * S))
    assert with_time_limit(stopping, None) == stopping
    assert (time_limit_us_of(phase), time_limit_us_of(with_time_limit(phase, None))) == (10 * S, None)
