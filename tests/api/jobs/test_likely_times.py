"""The range goes with the estimate, and a bound that says nothing beside it is left out."""

from __future__ import annotations

import pytest
from gpufleet.v1 import job_pb2

from scheduler.policy.explain import Explanation
from scheduler.policy.forecast import Bound, Estimate
from scheduler.policy.ranges import Range
from scheduler.state.units import MINUTE, SECOND, Instant, after
from scheduler.wire.convert_jobs import add_times, explanation_proto

NOW = Instant(1_000_000 * SECOND)
LIKELY = Range(earliest=after(NOW, 10 * MINUTE), latest=after(NOW, 50 * MINUTE))


@pytest.mark.parametrize(("minutes", "is_shown"), [(250, True), (251, False)])
def test_a_job_is_told_its_range_and_a_bound_of_at_most_five_times_that(minutes: int, is_shown: bool) -> None:
    message = job_pb2.Job()
    estimate = Estimate(at=after(NOW, 20 * MINUTE), likely=LIKELY, made_at=NOW)
    add_times(message, estimate, Bound(at=after(NOW, minutes * MINUTE), sentence="later than it was"))
    assert message.likely_earliest_start_time.ToMicroseconds() == LIKELY.earliest
    assert message.likely_latest_start_time.ToMicroseconds() == LIKELY.latest
    assert (message.HasField("latest_start_time"), bool(message.bound_sentence)) == (is_shown, is_shown)


def test_without_a_range_the_bound_is_told_as_ever() -> None:
    message = job_pb2.Job()
    add_times(message, Estimate(at=NOW, made_at=NOW), Bound(at=after(NOW, 900 * MINUTE), sentence=""))
    assert message.HasField("latest_start_time") and not message.HasField("likely_latest_start_time")


def test_an_explanation_carries_its_range() -> None:
    told = explanation_proto(Explanation(reason="", sentence="", likely=LIKELY))
    assert told.likely_earliest_start_time.ToMicroseconds() == LIKELY.earliest
    assert told.likely_latest_start_time.ToMicroseconds() == LIKELY.latest
