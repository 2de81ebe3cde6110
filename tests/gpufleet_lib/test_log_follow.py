"""Following a log across rotations: nothing is lost or doubled, and a reader that is too slow is told."""

from __future__ import annotations

import asyncio
import logging
import logging.handlers
from collections.abc import Iterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpufleet.telemetry.log_follow import MISSED_LINES, READ_BYTES_MAX, LogReader, follow
from gpufleet.telemetry.logs import as_logged
from tests.rings.choosing import examples


class Writer:
    """Writes numbered lines through the standard library's own rotation."""

    def __init__(self, file: Path, bytes_max: int, old_files: int) -> None:
        self._handler = logging.handlers.RotatingFileHandler(file, maxBytes=bytes_max, backupCount=old_files)
        self.count = 0

    def write(self, lines: int = 1) -> None:
        for _ in range(lines):
            record = logging.LogRecord("x", logging.INFO, "", 0, f"line {self.count}", None, None)
            self._handler.emit(record)
            self.count += 1

    def close(self) -> None:
        self._handler.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "s.log"


@pytest.fixture
def writer(file: Path) -> Iterator[Writer]:
    made = Writer(file, bytes_max=100, old_files=5)
    yield made
    made.close()


def numbered(begin: int, end: int) -> bytes:
    return b"".join(b"line %d\n" % number for number in range(begin, end))


def rest(reader: LogReader) -> bytes:
    return b"".join(iter(reader.read, b""))


def test_a_reader_gets_the_last_lines_over_all_files_and_then_what_comes(file: Path, writer: Writer) -> None:
    writer.write(40)
    assert len(list(file.parent.iterdir())) > 3
    for tail in (0, 1, 2, 15, 30):
        with LogReader(file, tail_lines=tail) as reader:
            assert rest(reader) == numbered(writer.count - tail, writer.count)
            before = writer.count
            writer.write(3)
            assert rest(reader) == numbered(before, before + 3)


def test_a_reader_asked_for_more_than_there_is_gets_all(file: Path, writer: Writer) -> None:
    writer.write(5)
    with LogReader(file, tail_lines=100) as reader:
        assert rest(reader) == numbered(0, 5)


def test_a_reader_of_a_log_that_is_not_there_yet_gets_its_first_line(file: Path) -> None:
    with LogReader(file) as reader:
        assert reader.read() == b""
        writer = Writer(file, 100, 1)
        writer.write()
        writer.close()
        assert rest(reader) == numbered(0, 1)


def test_an_unfinished_last_line_counts_as_a_line(file: Path) -> None:
    file.write_bytes(b"a\nb\nc")
    with LogReader(file, tail_lines=2) as reader:
        assert rest(reader) == b"b\nc"


def test_a_tail_is_found_over_many_blocks(file: Path) -> None:
    file.write_bytes(b"first\n" + b"x" * 200_000 + b"\n" + b"last\n")
    with LogReader(file, tail_lines=2) as reader:
        assert rest(reader) == b"x" * 200_000 + b"\nlast\n"


def test_several_rotations_between_two_reads_lose_nothing(file: Path, writer: Writer) -> None:
    writer.write()
    with LogReader(file) as reader:
        assert rest(reader) == numbered(0, 1)
        writer.write(40)
        assert rest(reader) == numbered(1, 41)


def test_a_reader_that_was_too_slow_is_told_and_goes_on(file: Path, writer: Writer) -> None:
    writer.write()
    with LogReader(file) as reader:
        assert rest(reader) == numbered(0, 1)
        writer.write(500)
        data = rest(reader)
    missed, _, later = data.rpartition(MISSED_LINES)
    assert numbered(1, 100).startswith(missed), "the rest of the file that it still held"
    assert numbered(0, 501).endswith(later) and later.startswith(b"line ")


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.integers(0, 30), max_size=12), bytes_max=st.integers(10, 300))
def test_any_interleaving_of_writing_and_reading_gives_every_line_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], bytes_max: int
) -> None:
    file = tmp_path_factory.mktemp("log") / "s.log"
    writer = Writer(file, bytes_max, old_files=99)
    got = b""
    with LogReader(file) as reader:
        for lines in steps:
            writer.write(lines)
            got += reader.read()
        got += rest(reader)
    writer.close()
    # 99 old files of one line or more hold the at most 30 lines that come between two reads.
    if MISSED_LINES not in got:
        assert got == numbered(0, writer.count)
    else:
        assert bytes_max < 100 and sum(steps) > 99


async def test_a_follower_gets_lines_as_they_come(file: Path, writer: Writer) -> None:
    writer.write(2)
    got = b""
    async with aclosing(follow(file, tail_lines=1, poll_s=0.001)) as lines, asyncio.timeout(60):
        async for data in lines:
            got += data
            if len(got) >= len(numbered(1, 30)):
                break
            writer.write()
    assert got == numbered(1, 30)[: len(got)]
    assert writer.count >= 25


BEGIN = datetime(2026, 3, 4, 15, tzinfo=UTC)


def timed(numbers: range) -> list[bytes]:
    """A line each second, every third as JSON, every fourth with a traceback behind it."""
    lines = []
    for number in numbers:
        time = as_logged(BEGIN + timedelta(seconds=number))
        text = f"{time} INFO    scheduler line {number}\n"
        if number % 3 == 0:
            text = f'{{"time": "{time}", "message": "line {number}"}}\n'
        if number % 4 == 0:
            text += "    Traceback\n" + f"    of {as_logged(BEGIN + timedelta(days=9))}, {'x' * (number % 97)}\n"
        lines.append(text.encode())
    return lines


def test_a_reader_begins_at_a_time_in_whatever_file_it_is(file: Path) -> None:
    oldest, older, newest = timed(range(900)), timed(range(900, 2400)), timed(range(2400, 5000))
    file.with_name(f"{file.name}.2").write_bytes(b"".join(oldest))
    file.with_name(f"{file.name}.1").write_bytes(b"".join(older))
    file.write_bytes(b"".join(newest) + b"2026-03-04T16:23:20.000Z unfinished")
    assert file.stat().st_size > 2 * READ_BYTES_MAX, "long enough to be searched by halves"
    everything = [*oldest, *older, *newest, b"2026-03-04T16:23:20.000Z unfinished"]
    for second in (0, 1, 4, 5, 450, 899, 900, 2399, 2400, 2401, 3333, 4999, 5000):
        with LogReader(file, since=BEGIN + timedelta(seconds=second)) as reader:
            assert rest(reader) == b"".join(everything[second:]), second
    with LogReader(file, since=BEGIN - timedelta(days=1)) as reader:
        assert rest(reader) == b"".join(everything)
    with LogReader(file, since=BEGIN + timedelta(milliseconds=7_000.9)) as reader:
        assert rest(reader) == b"".join(everything[7:]), "a line's own time was rounded down"
    with LogReader(file, since=BEGIN + timedelta(milliseconds=7_001)) as reader:
        assert rest(reader) == b"".join(everything[8:])


def test_a_reader_from_a_time_to_come_gets_what_is_written_then(file: Path) -> None:
    file.write_bytes(b"".join(timed(range(10))))
    with LogReader(file, since=BEGIN + timedelta(days=1)) as reader:
        assert reader.read() == b""
        with file.open("ab") as log:
            log.write(b"new\n")
        assert reader.read() == b"new\n"


def test_with_a_time_and_a_number_of_lines_both_hold(file: Path) -> None:
    lines = timed(range(1, 3))
    file.write_bytes(b"".join(lines))
    for tail, second, expected in ((1, 0, lines[1:]), (9, 2, lines[1:]), (0, 0, []), (9, 3, []), (9, 0, lines)):
        with LogReader(file, tail_lines=tail, since=BEGIN + timedelta(seconds=second)) as reader:
            assert rest(reader) == b"".join(expected), (tail, second)


def test_one_endless_traceback_is_no_place_to_begin_at(file: Path) -> None:
    first, last = timed(range(1, 3))
    file.write_bytes(first + b"    of a traceback\n" * 20_000 + last)
    with LogReader(file, since=BEGIN + timedelta(seconds=2)) as reader:
        assert rest(reader) == last
    with LogReader(file, since=BEGIN + timedelta(seconds=1)) as reader:
        assert rest(reader).startswith(first)
