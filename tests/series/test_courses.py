"""Points: packed, summed up level by level, stored row by row, and told in steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.series.courses import FIVES, SECONDS_DROPPED, SECONDS_KEPT, TENS, Course, StoredRow
from scheduler.series.file import squeezed, unsqueezed
from scheduler.series.history_file import CourseFacts, CourseKey, HistoryFile
from scheduler.series.points import DEVICE, NOT_READ, SPAN_SECONDS_MAX, Point, Reading, Steps
from scheduler.series.reading import InMemory, Readings, Retention, by_node, least_level, read, steps_for, steps_from
from scheduler.state.ids import DeviceUuid, NodeName
from scheduler.state.units import DAY

T0 = 1_800_000_000
"""A whole day in seconds, but for 28,800."""
KEPT = Retention(tens=DAY, fives=DAY)
FACTS = CourseFacts(
    key=CourseKey(node=NodeName("n1"), uuid=DeviceUuid("GPU-1")), index=0, name="H200", memory_bytes=141 * 10**9
)


def readings(load: float, memory: float = 1000.0) -> tuple[Reading, ...]:
    return ((load, load, load), (memory, memory, memory), (300.5, 300.5, 300.5), (41.0, 41.0, 41.0))


def loads(told: Readings) -> list[float | None]:
    return [None if each is None else each[0][2] for each in told]


class Device:
    """A course with its file: what a recorder makes of it."""

    def __init__(self, folder: Path) -> None:
        self.course = Course(DEVICE)
        self.file = HistoryFile(folder)
        self.rows: list[StoredRow] = []

    def beat(self, begin: int, end: int, load: float) -> None:
        for row in self.course.add(begin, end, readings(load)):
            self.rows.append(row)
            self.file.write_points([(FACTS, row)])

    def told(self, begin: int, end: int, points: int, now: int, course: Course | None = None) -> tuple[Steps, Readings]:
        steps = steps_for(begin, end, points, now, KEPT)
        asked = InMemory.of(FACTS, self.course if course is None else course, least_level(steps))
        ((_, found),) = read(self.file, [asked], steps)
        return steps, found


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    device = Device(tmp_path)
    yield device
    device.file.close()


percents = st.floats(0, 100)
triples = (
    st.tuples(percents, percents, percents)
    .map(lambda each: tuple(sorted(each)))
    .map(lambda each: (each[0], each[2], each[1]))
)


@given(
    st.lists(st.tuples(st.integers(0, 2**31), st.integers(0, SPAN_SECONDS_MAX), triples, st.booleans()), max_size=40)
)
def test_a_point_comes_back_as_it_was_packed(points: list[tuple[int, int, tuple[float, float, float], bool]]) -> None:
    made = [
        Point(end, end + length, (values, NOT_READ if is_absent else (0, 2**31, 10**6), values, values))
        for end, length, values, is_absent in points
    ]
    entries = b"".join(map(DEVICE.pack, made))
    stored = unsqueezed(squeezed(entries, DEVICE.entry_bytes), DEVICE.entry_bytes, 10**6)
    assert stored == entries
    for before, after in zip(made, DEVICE.unpack(stored), strict=True):
        assert (after.begin, after.end) == (before.begin, before.end)
        assert after.readings[1] == before.readings[1]
        assert after.readings[0] == pytest.approx(before.readings[0], abs=0.051)
        assert after.readings[3] == pytest.approx(before.readings[3], abs=0.51)


def test_what_is_beyond_what_fits_is_cut_and_a_broken_row_is_empty() -> None:
    (point,) = DEVICE.unpack(DEVICE.pack(Point(T0, T0 + 10**6, ((9e9, 9e9, 9e9), *readings(1)[1:]))))
    assert point.end - point.begin == SPAN_SECONDS_MAX
    assert point.readings[0] == (6553.4, 6553.4, 6553.4)
    assert unsqueezed(b"no zlib", DEVICE.entry_bytes, 1000) == b""


def test_ten_minutes_are_told_second_by_second_and_a_day_in_ten(device: Device) -> None:
    for second in range(0, 3600, 2):
        device.beat(T0 + second, T0 + second + 2, 10.0 if second < 1800 else 90.0)
    now = T0 + 3600
    steps, told = device.told(now - 600, now, 600, now)
    assert steps == Steps(now - 600, 1, 600)
    assert loads(told) == [90.0] * 600
    steps, told = device.told(T0, now, 600, now)
    assert steps == Steps(T0, 10, 360)
    assert loads(told) == [10.0] * 180 + [90.0] * 180
    steps, told = device.told(T0 - 2 * 86_400, now, 1000, now)
    assert steps.length == 300
    assert loads(told)[-12:] == [10.0] * 6 + [90.0] * 6
    assert set(loads(told)[:-12]) == {None}


def test_a_step_that_is_longer_has_the_extremes_and_the_mean(device: Device) -> None:
    for second in range(0, 60, 2):
        device.beat(T0 + second, T0 + second + 2, 100.0 if second % 20 == 0 else 0.0)
    _, told = device.told(T0, T0 + 60, 1, T0 + 60)
    assert told[0] is not None
    assert told[0][0] == pytest.approx((0, 100, 10))
    assert told[0][2] == (300.5, 300.5, 300.5)


def test_a_coarse_point_says_nothing_of_steps_that_are_known_finer(device: Device) -> None:
    # It begins in the middle of five minutes, whose point holds both extremes.
    for second in range(T0 + 150, T0 + 700):
        device.beat(second, second + 1, 10.0 if second < T0 + 200 else 90.0)
    steps, told = device.told(T0, T0 + 700, 70, now=T0 + 700)
    assert steps.length == 10
    spreads = {each[0][:2] for number, each in enumerate(told) if each is not None and number >= 20}
    assert spreads == {(90.0, 90.0)}
    assert {each[0][:2] for each in told[15:20] if each is not None} == {(10.0, 10.0)}


def test_memory_is_bounded_whatever_time_passes(device: Device) -> None:
    sizes = set()
    for second in range(0, 30_000, 2):
        device.beat(T0 + second, T0 + second + 2, 50.0)
        if second > 25_000:
            course = device.course
            sizes.add(len(course.seconds) + len(course.tens.entries) + len(course.fives.entries))
    entries = SECONDS_KEPT + SECONDS_DROPPED + 2 * TENS.row_entries + 2 * FIVES.row_entries
    assert max(sizes) <= entries * DEVICE.entry_bytes


def test_a_crash_costs_the_seconds_and_less_than_five_minutes_of_the_rest(device: Device) -> None:
    for second in range(0, 2000, 2):
        device.beat(T0 + second, T0 + second + 2, 50.0)
    now = T0 + 2000
    after_crash = Course(DEVICE)
    _, told = device.told(T0, now, 600, now, after_crash)
    known = [number for number, each in enumerate(told) if each is not None]
    assert known[0] == 0 and 2000 - 300 <= (known[-1] + 1) * 10 < 2000
    for row in device.course.last_rows():  # an orderly end loses no more than the seconds
        device.file.write_points([(FACTS, row)])
    _, told = device.told(T0, now, 600, now, after_crash)
    assert loads(told) == [50.0] * 200


def test_what_a_new_start_reads_stands_beside_what_was_stored(device: Device) -> None:
    for second in range(0, 1000, 2):
        device.beat(T0 + second, T0 + second + 2, 20.0)
    for row in device.course.last_rows():
        device.file.write_points([(FACTS, row)])
    device.course = Course(DEVICE)
    for second in range(1200, 1300, 2):
        device.beat(T0 + second, T0 + second + 2, 80.0)
    now = T0 + 1300
    steps, told = device.told(T0, now, 130, now)
    assert steps.length == 10
    assert loads(told) == [20.0] * 100 + [None] * 20 + [80.0] * 10
    # Seconds of before the start are told as they are known: in points of ten.
    _, told = device.told(now - 500, now, 500, now)
    assert loads(told) == [20.0] * 200 + [None] * 200 + [80.0] * 100


def test_a_node_that_was_not_heard_is_told_with_what_it_summed_up_meanwhile(device: Device) -> None:
    device.beat(T0, T0 + 2, 10.0)
    device.beat(T0 + 2, T0 + 902, 70.0)  # one reading of fifteen minutes
    device.beat(T0 + 902, T0 + 904, 10.0)
    now = T0 + 910
    _, told = device.told(T0, now, 91, now)
    assert loads(told)[1:89] == [70.0] * 88
    assert device.course.fives.entries


def test_ten_thousand_that_come_late_at_once_are_no_more_than_their_second(device: Device) -> None:
    for _ in range(10_000):
        device.beat(T0, T0 + 2, 40.0)
    assert len(device.course.seconds) == DEVICE.entry_bytes
    assert loads(device.told(T0, T0 + 2, 2, T0 + 2)[1]) == [40.0, 40.0]


def test_a_clock_that_goes_back_leaves_out_what_is_older(device: Device) -> None:
    for second in range(0, 100, 2):
        device.beat(T0 + second, T0 + second + 2, 30.0)
    for second in range(0, 60, 2):
        device.beat(T0 - 5000 + second, T0 - 5000 + second + 2, 99.0)
    device.beat(T0 + 95, T0 + 97, 30.0)  # a little late is late by a little
    now = T0 + 100
    assert set(loads(device.told(T0, now, 100, now)[1])) == {30.0}
    assert set(loads(device.told(T0 - 6000, T0 - 60, 600, now)[1])) == {None}


def test_what_no_driver_tells_is_not_read(device: Device) -> None:
    nothing = (NOT_READ, NOT_READ, NOT_READ, NOT_READ)
    for second in range(0, 40, 2):
        assert not list(device.course.add(T0 + second, T0 + second + 2, nothing))
    assert set(device.told(T0, T0 + 40, 40, T0 + 40)[1]) == {None}
    list(device.course.add(T0 + 40, T0 + 42, (NOT_READ, *readings(0)[1:])))
    told = device.told(T0 + 40, T0 + 42, 2, T0 + 42)[1]
    assert told[0] is not None and told[0][0] == NOT_READ and told[0][3] == (41, 41, 41)


@given(st.integers(1, 90 * 86_400), st.integers(1, 1000), st.integers(0, 100 * 86_400), st.integers(0, 7200))
def test_steps_cover_the_span_in_no_more_points_than_are_wanted(span: int, points: int, age: int, ends: int) -> None:
    begin = T0 - age
    for steps in (
        steps_for(begin, begin + span, points, T0 + ends, KEPT),
        steps_from(begin, begin + span, points, T0, KEPT),
    ):
        assert 1 <= steps.count <= points
        assert steps.begin <= begin and steps.end >= begin + span
        assert steps.begin > begin - steps.length
        assert steps.length in (1, 2, 5) or steps.length % 10 == 0
        if age > 86_400:
            assert steps.length % 300 == 0


def test_a_nodes_devices_are_taken_together() -> None:
    def of(index: int, told: Readings) -> tuple[CourseFacts, Readings]:
        key = CourseKey(node=NodeName("n1"), uuid=DeviceUuid(f"GPU-{index}"))
        return CourseFacts(key=key, index=index, name="H200", memory_bytes=10), told

    first: Readings = [readings(10, 100), readings(50, 100), None]
    second: Readings = [readings(30, 200), None, None]
    ((node, memory, together),) = by_node([of(0, first), of(1, second)])
    assert (node, memory, loads(together)) == ("n1", 20, [20.0, 50.0, None])
    assert together[0] is not None
    assert together[0][1] == (300, 300, 300) and together[0][2] == (601, 601, 601) and together[0][3] == (41, 41, 41)
