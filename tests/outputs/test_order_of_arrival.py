"""Stdout and stderr of all ranks come in the order in which they arrived, also when they are read later."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.api.output.arrival_order import PARTS_MAX, ArrivalOrder
from scheduler.output_hub import StreamKey
from scheduler.outputs import layout, segmented, times
from scheduler.outputs.files import FileShelf
from scheduler.outputs.layout import SEGMENT_BYTES_MIN, OutputLimits
from scheduler.outputs.segmented import SegmentedOutputStore
from scheduler.ports import Gap, OutputStore
from scheduler.state.attempts import OutputStream
from scheduler.state.ids import JobId, RankKey
from scheduler.state.units import SECOND, Instant
from tests.outputs.conftest import Reopen
from tests.outputs.test_times import WallClock

OUT, ERR = OutputStream.STDOUT, OutputStream.STDERR
JOB = JobId(7)
FIRST, SECOND_RANK, AGAIN = RankKey(JOB, 1, 0), RankKey(JOB, 1, 1), RankKey(JOB, 2, 0)
STREAMS: Sequence[StreamKey] = ((FIRST, OUT), (FIRST, ERR), (SECOND_RANK, OUT), (SECOND_RANK, ERR))


def write(store: OutputStore, key: StreamKey, data: bytes) -> None:
    store.append(*key, store.end(*key), data)


def replayed(store: OutputStore, positions: dict[StreamKey, int] | None = None) -> list[tuple[StreamKey, bytes]]:
    """All that is stored, in the order in which a reader gets it; a gap has no bytes."""
    known = dict.fromkeys(store.streams(JOB), 0) | (positions or {})
    reading = ArrivalOrder(store, known)
    found: list[tuple[StreamKey, bytes]] = []
    while parts := reading.next():
        for key, part in parts:
            data = b"" if isinstance(part, Gap) else part.data
            if found and found[-1][0] == key:
                found[-1] = (key, found[-1][1] + data)
            else:
                found.append((key, data))
    return found


def lines_of(found: list[tuple[StreamKey, bytes]]) -> list[str]:
    return b"".join(data for _, data in found).decode().splitlines()


def test_both_streams_come_as_they_arrived_synced_or_not_and_after_a_restart(reopen: Reopen) -> None:
    store = reopen()
    for number in range(40):
        write(store, STREAMS[number % 2], f"line {number}\n".encode())
        if number % 7 == 0:
            store.sync()
    wanted = [f"line {number}" for number in range(40)]
    assert lines_of(replayed(store)) == wanted, "the newest are not synced"
    store.sync()
    store = reopen()
    assert lines_of(replayed(store)) == wanted
    write(store, STREAMS[0], b"more\n")
    write(store, STREAMS[1], b"oops\n")
    store.sync()
    assert lines_of(replayed(reopen())) == [*wanted, "more", "oops"]


def test_a_reader_who_comes_back_goes_on_in_that_order(reopen: Reopen) -> None:
    store = reopen()
    for number in range(10):
        write(store, STREAMS[number % 2], f"{number}\n".encode())
    store.sync()
    assert lines_of(replayed(store, {STREAMS[0]: 6, STREAMS[1]: 2})) == ["3", "5", "6", "7", "8", "9"]


def test_an_attempt_comes_behind_the_one_before_it_though_the_clock_went_back(reopen: Reopen) -> None:
    wall = WallClock()
    store = reopen(wall_clock=wall)
    write(store, (FIRST, OUT), b"1\n")
    write(store, (FIRST, ERR), b"2\n")
    wall.now = Instant(wall.now - 3_600 * SECOND)
    write(store, (FIRST, OUT), b"3\n")
    write(store, (AGAIN, OUT), b"4\n")
    write(store, (AGAIN, ERR), b"5\n")
    store.sync()
    assert lines_of(replayed(store)) == ["1", "2", "3", "4", "5"]


@given(steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=60), start=st.integers(0, 59))
def test_any_order_of_four_streams_is_told_again(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]], start: int
) -> None:
    store = SegmentedOutputStore(FileShelf(tmp_path_factory.mktemp("outputs")), OutputLimits(), WallClock())
    positions: dict[StreamKey, int] = {}
    wanted: list[tuple[StreamKey, bytes]] = []
    for number, (which, sync) in enumerate(steps):
        if number == start:
            positions = {key: store.end(*key) for key in STREAMS}
            wanted.clear()
        key, data = STREAMS[which], f"{number}\n".encode()
        write(store, key, data)
        if wanted and wanted[-1][0] == key:
            data = wanted.pop()[1] + data
        wanted.append((key, data))
        if sync == 0:
            store.sync()
    assert replayed(store, positions) == wanted
    store.close()


def test_what_is_given_up_leaves_its_gap_in_its_place(tmp_path: Path) -> None:
    limits = OutputLimits(head_bytes=1_000, tail_bytes=4 * SEGMENT_BYTES_MIN)
    store = SegmentedOutputStore(FileShelf(tmp_path), limits)
    for number in range(100):
        write(store, STREAMS[number % 2], f"{number:999}\n".encode())
    store.sync()
    lines = lines_of(replayed(store))
    numbers = [int(line) for line in lines if line.strip().isdecimal()]
    assert numbers == sorted(numbers) and numbers[0] == 0 and numbers[-1] == 99
    store.close()


def test_a_stream_that_alternates_without_end_keeps_its_bounds_and_its_newest_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (times, segmented):
        monkeypatch.setattr(module, "MARKS_MAX", 64)
    for module in (times, layout):
        monkeypatch.setattr(module, "TURNS_MAX", 16)
    wall = WallClock()
    store = SegmentedOutputStore(FileShelf(tmp_path), OutputLimits(), wall)
    for number in range(2_000):
        wall.now = Instant(wall.now + SECOND)
        write(store, STREAMS[number % 2], f"{number}\n".encode())
        if number % 20 == 19:
            store.sync()
    assert all(len(store.arrivals(*key)) <= 64 for key in STREAMS[:2])
    lines = lines_of(replayed(store))
    assert sorted(map(int, lines)) == list(range(2_000)), "every line comes"
    assert lines[-20:] == [str(number) for number in range(1_980, 2_000)]
    store.close()


def test_so_many_turns_between_two_syncs_that_some_give_way_lose_no_line(tmp_path: Path) -> None:
    store = SegmentedOutputStore(FileShelf(tmp_path), OutputLimits(), WallClock())
    for number in range(3 * times.TURNS_MAX):
        write(store, STREAMS[number % 2], f"{number}\n".encode())
    assert len(store.arrivals(*STREAMS[0])) <= times.TURNS_MAX < PARTS_MAX + 1
    assert sorted(map(int, lines_of(replayed(store)))) == list(range(3 * times.TURNS_MAX))
    store.close()
