"""From what agents tell of devices to what is recorded: what is no number is not read."""

from __future__ import annotations

import math

import pytest
from gpufleet.v1 import node_pb2

from scheduler.series.courses import Course
from scheduler.series.points import DEVICE, NOT_READ
from scheduler.state.units import SECOND, Instant
from scheduler.wire.validate_reports import READING_SECONDS_MAX, device_readings

NOW = Instant(1_800_000_000 * SECOND)
NOW_S = NOW // SECOND


def summary(low: float, high: float, mean: float, count: int = 2) -> node_pb2.Summary:
    return node_pb2.Summary(min=low, max=high, mean=mean, last=high, count=count)


def sample(**counters: node_pb2.Summary) -> node_pb2.DeviceSample:
    made = node_pb2.DeviceSample(uuid="GPU-1")
    made.summary.span.FromSeconds(1)
    for name, value in counters.items():
        getattr(made.summary, name).CopyFrom(value)
    return made


def test_a_summary_is_told_in_the_units_of_histories() -> None:
    told = sample(
        utilization_percent=summary(0, 100, 40.5),
        memory_used_bytes=summary(10**9, 2 * 10**9, 1.5e9),
        power_mw=summary(80_000, 700_500, 300_000),
    )
    (found,) = device_readings([told], NOW)
    assert (found.uuid, found.begin, found.end) == ("GPU-1", NOW_S - 2, NOW_S)
    assert found.readings == ((0, 100, 40.5), (1000, 2000, 1500), (80, 700.5, 300), NOT_READ)


def test_a_single_reading_stands_where_there_is_no_summary() -> None:
    told = node_pb2.DeviceSample(uuid="GPU-1", utilization_percent=7, temperature_c=-4)
    told.age.FromMilliseconds(2_500)
    (found,) = device_readings([told], NOW)
    assert (found.begin, found.end) == (NOW_S - 3, NOW_S - 2)
    assert found.readings == ((7, 7, 7), NOT_READ, NOT_READ, NOT_READ)


@pytest.mark.parametrize(
    "wrong",
    [
        summary(math.nan, 5, 5),
        summary(0, math.inf, 5),
        summary(0, 5, math.nan),
        summary(-1, 5, 2),
        summary(5, 1, 3),
        summary(1, 5, 3, count=0),
    ],
)
def test_what_is_no_number_was_not_read(wrong: node_pb2.Summary) -> None:
    (found,) = device_readings([sample(utilization_percent=wrong)], NOW)
    assert found.readings[0] == NOT_READ


def test_a_mean_that_rounding_put_beside_its_values_is_put_back() -> None:
    (found,) = device_readings([sample(utilization_percent=summary(3, 3, 3.0000000001))], NOW)
    assert found.readings[0] == (3, 3, 3)


def test_two_readings_are_told_second_by_second() -> None:
    course = Course(DEVICE)
    for number, (first, second) in enumerate([(10, 90), (90, 10), (50, 50)]):
        load = node_pb2.Summary(min=min(first, second), max=max(first, second), mean=(first + second) / 2, count=2)
        load.last = second
        told = sample(utilization_percent=load)
        (found,) = device_readings([told], Instant(NOW + 2 * number * SECOND))
        list(course.add(found.begin, found.end, found.readings, found.last))
    points = list(DEVICE.unpack(course.seconds))
    assert [point.readings[0][2] for point in points] == [10, 90, 90, 10, 50, 50]
    assert [point.end - NOW_S for point in points] == [-1, 0, 1, 2, 3, 4]
    assert all(point.readings[1] == NOT_READ for point in points)
    unfinished = course.tens.points()[-1]
    assert unfinished.readings[0] == (10, 90, 50)
    # One more of the same second is summed up with it.
    list(course.add(NOW_S + 3, NOW_S + 4, ((80.0, 80.0, 80.0), NOT_READ, NOT_READ, NOT_READ)))
    (*_, last) = DEVICE.unpack(course.seconds)
    assert (last.begin - NOW_S, last.readings[0]) == (2, (50, 80, 60))


@pytest.mark.parametrize("count", [1, 3, 10])
def test_more_or_fewer_readings_than_two_are_told_as_they_are_summed_up(count: int) -> None:
    (found,) = device_readings([sample(utilization_percent=summary(0, 100, 40, count=count))], NOW)
    assert found.last is None


def test_a_reading_of_days_is_told_of_its_end() -> None:
    told = sample(utilization_percent=summary(1, 2, 1.5))
    told.summary.span.FromSeconds(10**6)
    told.age.seconds = -50  # from the future
    (found,) = device_readings([told], NOW)
    assert (found.begin, found.end) == (NOW_S - READING_SECONDS_MAX, NOW_S)


def test_what_is_beyond_all_bounds_can_still_be_recorded() -> None:
    told = sample(utilization_percent=summary(0, 1e300, 1e299), memory_used_bytes=summary(2**62, 2**63, 2**62))
    told.age.FromSeconds(300_000_000_000)
    (found,) = device_readings([told], NOW)
    assert found.end == 1
    course = Course(DEVICE)
    assert list(course.add(found.begin, found.end, found.readings)) == []
    (point,) = DEVICE.unpack(course.seconds)
    assert point.readings[0] == (0, 6553.4, 6553.4)
