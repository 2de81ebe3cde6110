"""When output arrived: the pure marks, and the contract of both stores."""

from __future__ import annotations

import bisect
import errno
import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.outputs import segmented, times
from scheduler.outputs.files import FileShelf
from scheduler.outputs.layout import SEGMENT_BYTES_MIN, OutputLimits
from scheduler.outputs.segmented import SegmentedOutputStore
from scheduler.outputs.times import ENTRY_BYTES, MARKS_MAX, Marked, arrived_before, packed, thinned, unpacked
from scheduler.ports import Gap, Mark, OutputStore
from scheduler.state.attempts import OutputStream
from scheduler.state.ids import JobId, RankKey
from scheduler.state.units import DAY, MINUTE, SECOND, Instant
from tests.outputs.conftest import Reopen

OUT, ERR = OutputStream.STDOUT, OutputStream.STDERR
KEY = RankKey(JobId(7), 1, 0)
START = Instant(1_700_000_000 * SECOND)
SYNC_US = SECOND // 10


class WallClock:
    """Shows what it is set to."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> Instant:
        return self.now

    def at(self, seconds: float) -> Instant:
        """So many seconds after the start."""
        return Instant(START + round(seconds * SECOND))


@pytest.fixture
def wall() -> WallClock:
    return WallClock()


def write(outputs: OutputStore, wall: WallClock, seconds: float, data: bytes, key: RankKey = KEY) -> None:
    """Bytes that arrive, and are synced, so many seconds after the start."""
    wall.now = wall.at(seconds)
    outputs.append(key, OUT, outputs.end(key, OUT), data)
    outputs.sync()


def test_bytes_are_told_apart_by_when_they_arrived_before_and_after_a_restart(reopen: Reopen, wall: WallClock) -> None:
    outputs = reopen(wall_clock=wall)
    for second, data in ((1, b"one"), (2, b"two!"), (60, b"three")):
        write(outputs, wall, second, data)
    for _ in range(2):
        found = [
            outputs.arrived_before(KEY, OUT, wall.at(seconds)) for seconds in (0, 1, 1.01, 2, 2.01, 59, 60, 61, 9e9)
        ]
        assert found == [0, 0, 3, 3, 7, 7, 7, 12, 12]
        outputs = reopen(wall_clock=wall)
    write(outputs, wall, 70, b"four")
    assert outputs.arrived_before(KEY, OUT, wall.at(70)) == 12
    assert outputs.arrived_before(KEY, OUT, wall.at(71)) == 16


def test_each_stream_of_each_rank_and_attempt_has_times_of_its_own(reopen: Reopen, wall: WallClock) -> None:
    outputs = reopen(wall_clock=wall)
    keys = [RankKey(JobId(job), attempt, rank) for job in (7, 8) for attempt in (1, 2) for rank in (0, 1)]
    for second, key in enumerate(keys):
        write(outputs, wall, second, b"x" * (second + 1), key)
    outputs.append(keys[0], ERR, 0, b"stderr")
    wall.now = wall.at(100)
    outputs.sync()
    assert [outputs.arrived_before(key, OUT, wall.at(3.5)) for key in keys] == [1, 2, 3, 4, 0, 0, 0, 0]
    assert outputs.arrived_before(keys[0], ERR, wall.at(99)) == 0
    assert outputs.arrived_before(keys[0], ERR, wall.at(101)) == 6
    outputs.delete(JobId(7))
    write(outputs, wall, 200, b"again", keys[0])
    assert outputs.arrived_before(keys[0], OUT, wall.at(199)) == 0


def test_what_is_not_synced_has_no_time_yet_and_a_stream_never_seen_has_none(reopen: Reopen, wall: WallClock) -> None:
    outputs = reopen(wall_clock=wall)
    assert outputs.arrived_before(KEY, OUT, wall.at(1)) == 0
    outputs.append(KEY, OUT, 0, b"abc")
    wall.now = wall.at(1)
    assert outputs.arrived_before(KEY, OUT, wall.at(5)) == 0
    outputs.sync()
    assert outputs.arrived_before(KEY, OUT, wall.at(5)) == 3


def test_what_a_restart_finds_without_a_time_counts_as_arrived_when_it_is_next_synced(
    reopen: Reopen, wall: WallClock
) -> None:
    outputs = reopen(wall_clock=wall)
    write(outputs, wall, 1, b"abc")
    outputs.append(KEY, OUT, 3, b"def")
    outputs = reopen(wall_clock=wall)
    wall.now = wall.at(10)
    end = outputs.append(KEY, OUT, 3, b"def")
    outputs.sync()
    assert [outputs.arrived_before(KEY, OUT, wall.at(seconds)) for seconds in (1, 2, 10, 11)] == [0, 3, 3, end]


def test_a_wall_clock_that_goes_back_makes_no_reader_begin_too_late(reopen: Reopen, wall: WallClock) -> None:
    outputs = reopen(wall_clock=wall)
    write(outputs, wall, 3600, b"an hour ahead")
    write(outputs, wall, 5, b"put right")
    assert outputs.arrived_before(KEY, OUT, wall.at(5)) == 0
    assert outputs.arrived_before(KEY, OUT, wall.at(3601)) == 22


def test_times_go_on_over_a_gap(reopen: Reopen, wall: WallClock) -> None:
    outputs = reopen(OutputLimits(head_bytes=1_000, tail_bytes=4 * SEGMENT_BYTES_MIN), wall_clock=wall)
    for second in range(100):
        write(outputs, wall, second, b"x" * 1_000)
    gap = outputs.read(KEY, OUT, 1_000, 1)
    assert isinstance(gap, Gap) and gap.end > 50_000
    assert outputs.arrived_before(KEY, OUT, wall.at(30)) == 30_000, "in the gap: what is missing is told"
    assert outputs.arrived_before(KEY, OUT, wall.at(95)) == 95_000


def test_marks_are_bounded_and_never_let_a_reader_begin_too_late(
    reopen: Reopen, wall: WallClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times, "MARKS_MAX", 64)
    monkeypatch.setattr(segmented, "MARKS_MAX", 64)
    outputs = reopen(wall_clock=wall)
    for second in range(300):
        write(outputs, wall, second, b"0123456789")
        if second == 150:
            outputs = reopen(wall_clock=wall)
    for _ in range(2):
        assert len(outputs._shelf.marks((KEY, OUT))) <= 64
        found = [outputs.arrived_before(KEY, OUT, wall.at(second)) for second in range(301)]
        assert all(offset <= second * 10 for second, offset in enumerate(found))
        assert found == sorted(found)
        assert found[-5:] == [second * 10 for second in range(296, 301)], "the newest are exact"
        assert found[150] > 0
        outputs = reopen(wall_clock=wall)


def test_a_full_disk_costs_exactness_and_no_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wall = WallClock()

    def fails(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with closing(SegmentedOutputStore(FileShelf(tmp_path), OutputLimits(), wall)) as outputs:
        write(outputs, wall, 1, b"abc")
        with monkeypatch.context() as patch:
            patch.setattr(os, "fstat", fails)  # of the file of marks alone: bytes are written without asking for it
            write(outputs, wall, 2, b"def")
        (file,) = tmp_path.rglob("*.times")
        with file.open("ab") as broken:
            broken.write(b"half")
        write(outputs, wall, 3, b"ghi")
        assert outputs.synced(KEY, OUT) == 9
        assert [outputs.arrived_before(KEY, OUT, wall.at(seconds)) for seconds in (2, 3, 4)] == [3, 3, 9]
        assert file.stat().st_size == 2 * ENTRY_BYTES and file.stat().st_mode & 0o777 == 0o600


def test_thinning_that_fails_stops_neither_a_sync_nor_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times, "MARKS_MAX", 8)
    monkeypatch.setattr(segmented, "MARKS_MAX", 8)
    wall = WallClock()
    with closing(SegmentedOutputStore(FileShelf(tmp_path), OutputLimits(), wall)) as outputs:
        (tmp_path / "000000" / "7" / "1.0.stdout.times.new").mkdir(parents=True)  # in the way of a file of this name
        for second in range(20):
            write(outputs, wall, second, b"x")
        assert outputs.synced(KEY, OUT) == 20
        assert len(outputs._shelf.marks((KEY, OUT))) == 8


rising = st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 10**6)), max_size=30).map(
    lambda steps: [
        Mark(Instant(sum(at for at, _ in steps[: n + 1])), sum(end for _, end in steps[: n + 1]))
        for n in range(len(steps))
    ]
)


@given(marks=rising, cut=st.integers(0, 2 * ENTRY_BYTES), zeros=st.integers(0, 3))
def test_marks_survive_as_bytes_and_what_a_crash_left_is_no_mark(marks: list[Mark], cut: int, zeros: int) -> None:
    assert unpacked(packed(marks)) == marks
    half = len(marks) // 2
    damaged = packed(marks[:half]) + bytes(ENTRY_BYTES * zeros) + packed(marks[half:])
    assert unpacked(damaged) == marks
    data = packed(marks)[: max(0, len(marks) * ENTRY_BYTES - cut)]
    assert unpacked(data) == marks[: len(data) // ENTRY_BYTES]


@given(marks=rising, at=st.integers(0, 3 * 10**10))
def test_nothing_that_arrived_at_a_time_or_later_is_below_the_answer(marks: list[Mark], at: int) -> None:
    offset = arrived_before(marks, Instant(at))
    assert offset == max([mark.end for mark in marks if mark.at < at], default=0)


def test_a_mark_is_made_only_where_the_stream_has_grown() -> None:
    assert Marked().next(START, 0) is None
    first = Marked().next(START, 5)
    assert first == Mark(START, 5)
    marked = Marked().grown(first)
    assert marked.next(Instant(START + 1), 5) is None
    assert marked.next(Instant(START - 100), 6) == Mark(Instant(START + 1), 6), "marks rise"


def gap_at(marks: Sequence[Mark], age_us: int) -> int:
    """How far before a moment of the past the mark is that its readers begin at."""
    moment = marks[-1].at - age_us
    index = bisect.bisect_right(marks, moment, key=lambda mark: mark.at) - 1
    return moment - marks[index].at


def test_a_stream_that_never_rests_for_months_is_known_to_two_hundredths_of_its_age() -> None:
    marks: list[Mark] = []
    # A mark a minute for a month stands for what was thinned already; then a sync after the other.
    for minute in range(30 * DAY // MINUTE):
        marks.append(Mark(Instant(START + minute * MINUTE), len(marks) + 1))
        if len(marks) > MARKS_MAX:
            marks = thinned(marks)
    for number in range(1, 50_000):
        marks.append(Mark(Instant(marks[-1].at + SYNC_US), marks[-1].end + number))
        if len(marks) > MARKS_MAX:
            marks = thinned(marks)
    for age in (10 * SECOND, MINUTE, 10 * MINUTE, 60 * MINUTE, DAY, 7 * DAY, 29 * DAY):
        assert gap_at(marks, age) <= age * 0.02 + SYNC_US, age


def test_after_thinning_the_end_of_an_old_burst_is_where_its_silence_begins() -> None:
    burst = [Mark(Instant(START + number * SYNC_US), number + 1) for number in range(MARKS_MAX)]
    later = Instant(START + DAY)
    kept = thinned([*burst, Mark(later, MARKS_MAX + 100)])
    assert len(kept) <= MARKS_MAX // 2
    assert arrived_before(kept, Instant(later - 1)) == MARKS_MAX


def test_a_clock_that_never_moved_on_is_thinned_all_the_same() -> None:
    kept = thinned([Mark(Instant(START + number), number + 1) for number in range(MARKS_MAX)])
    assert kept[-1].end == MARKS_MAX and len(kept) <= MARKS_MAX // 2
