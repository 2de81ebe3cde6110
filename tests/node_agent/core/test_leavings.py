"""When a node may delete what a rank left: never by a refusal alone."""

from __future__ import annotations

import pytest

from gpufleet.jobs.runs import JobId, RankKey
from node_agent.core.leavings import PAUSE_SECONDS_MAX, ROOM_AFTER_SECONDS, Bounds, Leavings, ResultsAnswer

FIRST, SECOND = RankKey(JobId(1), 1, 0), RankKey(JobId(2), 1, 0)
BOUNDS = Bounds(seconds=7 * 86_400.0, bytes_max=100)


def test_only_what_is_on_record_permits_deletion() -> None:
    assert [each for each in ResultsAnswer if not each.permits_deletion] == [ResultsAnswer.REFUSED]


def test_what_is_refused_waits_for_longer_each_time_up_to_a_bound() -> None:
    left = Leavings()
    pauses = [left.refused(FIRST, 1.0, 10).pause_s for _ in range(40)]
    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]
    assert pauses[-1] == PAUSE_SECONDS_MAX


def test_what_is_refused_is_kept_for_so_long_also_across_starts_of_the_agent() -> None:
    left = Leavings()
    assert not left.why_given_up(FIRST, BOUNDS)
    left.remembered(FIRST, BOUNDS.seconds - 2)
    assert not left.why_given_up(FIRST, BOUNDS), "it is sent before anything is given up"
    left.refused(FIRST, 1.0, 10)
    assert not left.why_given_up(FIRST, BOUNDS)
    left.refused(FIRST, 1.0, 10)
    assert left.why_given_up(FIRST, BOUNDS) == "it could not be stored for 7 d"
    left.settled(FIRST)
    assert not left.why_given_up(FIRST, BOUNDS)


def test_beyond_the_disks_bound_the_oldest_is_given_up_and_not_before_an_hour() -> None:
    left = Leavings()
    left.refused(FIRST, 1.0, 60)
    left.refused(SECOND, 1.0, 60)
    assert not left.why_given_up(FIRST, BOUNDS)
    for key in (FIRST, SECOND):
        left.refused(key, ROOM_AFTER_SECONDS, 60)
    assert left.why_given_up(FIRST, BOUNDS) == "what the node keeps needs 120 bytes, at most 100 are kept"
    assert not left.why_given_up(SECOND, BOUNDS)
    left.settled(FIRST)
    assert not left.why_given_up(SECOND, BOUNDS)


@pytest.mark.parametrize(("seconds", "words"), [(3_600.0, "1 h"), (90.0, "90 s"), (1_800.0, "30 min")])
def test_spans_are_in_words(seconds: float, words: str) -> None:
    left = Leavings()
    left.refused(FIRST, seconds, 0)
    assert left.why_given_up(FIRST, Bounds(seconds=seconds, bytes_max=0)) == f"it could not be stored for {words}"
