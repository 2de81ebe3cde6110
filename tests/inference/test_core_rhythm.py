"""When a step waits for an input that is about to come, and that it never waits for long."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.core.rhythm import GAP_US_MAX, GAPS_LEARNT, WAIT_SHARE, Rhythm

STEP_US = 20_000


def heard(*times_us: int) -> Rhythm:
    rhythm = Rhythm()
    for at_us in times_us:
        rhythm.note(at_us)
    return rhythm


def regular(gap_us: int, count: int = 30) -> tuple[Rhythm, int]:
    """Inputs in a steady rhythm; and when the last one came."""
    times_us = [number * gap_us for number in range(1, count + 1)]
    return heard(*times_us), times_us[-1]


def test_a_step_that_would_just_miss_an_input_waits_for_it() -> None:
    rhythm, last_us = regular(20_000)
    assert rhythm.better_at(last_us + 18_000, STEP_US) == last_us + 20_000


@pytest.mark.parametrize("age_us", [0, 5_000, 15_900, 20_000, 21_000])
def test_a_step_with_a_fresh_input_or_one_that_did_not_come_in_time_begins(age_us: int) -> None:
    rhythm, last_us = regular(20_000)
    assert rhythm.better_at(last_us + age_us, STEP_US) is None


def test_a_short_step_waits_for_nothing() -> None:
    rhythm, last_us = regular(20_000)
    assert rhythm.better_at(last_us + 18_000, 5_000) is None


def test_where_inputs_come_so_fast_that_the_newest_is_hardly_old_none_is_waited_for() -> None:
    rhythm, last_us = regular(1_000)
    assert rhythm.better_at(last_us + 500, STEP_US) is None


def test_inputs_without_a_rhythm_are_not_waited_for() -> None:
    times_us = [0]
    for number in range(100):
        times_us.append(times_us[-1] + (5_000 if number % 2 else 60_000))
    rhythm = heard(*times_us)
    assert all(rhythm.better_at(times_us[-1] + age_us, STEP_US) is None for age_us in range(0, 100_000, 500))


def test_a_rhythm_is_learnt_first_and_anew_after_a_pause() -> None:
    rhythm, last_us = regular(20_000, GAPS_LEARNT)
    assert rhythm.better_at(last_us + 18_000, STEP_US) is None
    rhythm, last_us = regular(20_000)
    again_us = last_us + GAP_US_MAX + 1
    rhythm.note(again_us)
    assert rhythm.better_at(again_us + 18_000, STEP_US) is None


@given(st.lists(st.integers(0, 150_000), max_size=60), st.integers(0, 150_000), st.integers(0, 1_000_000))
def test_no_step_waits_for_longer_than_its_part_whatever_comes(gaps_us: list[int], age_us: int, step_us: int) -> None:
    rhythm, at_us = Rhythm(), 0
    for gap_us in gaps_us:
        at_us += gap_us
        rhythm.note(at_us)
    at_us += age_us
    until_us = rhythm.better_at(at_us, step_us)
    if until_us is not None:
        assert at_us < until_us <= at_us + step_us // WAIT_SHARE
        # It is waited for once: then the step begins, whether the input has come or not.
        assert rhythm.better_at(until_us, step_us) is None


def steps_us(inputs_us: list[int], step_us: int, *, waits: bool) -> list[int]:
    """When a busy model's steps begin; each takes what has come."""
    begun_us: list[int] = []
    rhythm, at_us = Rhythm(), inputs_us[0]
    waiting = list(inputs_us)
    while True:
        while waiting and waiting[0] <= at_us:
            rhythm.note(waiting.pop(0))
        if not waiting:
            return begun_us
        until_us = rhythm.better_at(at_us, step_us) if waits else None
        if until_us is not None:
            at_us = min(until_us, waiting[0])
            continue
        begun_us.append(at_us)
        at_us = max(at_us + step_us, waiting[0])


def oldest_us(inputs_us: list[int], begun_us: list[int]) -> int:
    """The highest age that the newest input has when a step begins, once the rhythm is known."""
    return max(at_us - max(each for each in inputs_us if each <= at_us) for at_us in begun_us[2 * GAPS_LEARNT :])


def test_a_model_just_slower_than_its_inputs_shows_fresher_ones_and_hardly_fewer_frames() -> None:
    inputs_us = [number * 20_000 for number in range(1, 1_000)]
    plain, waiting = (steps_us(inputs_us, 20_300, waits=waits) for waits in (False, True))
    assert oldest_us(inputs_us, plain) > 19_500
    assert oldest_us(inputs_us, waiting) < 16_300
    assert len(waiting) > 0.99 * len(plain)
    assert all(after - before >= 20_300 for before, after in pairwise(waiting))
