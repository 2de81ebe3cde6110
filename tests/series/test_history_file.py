"""The file of the histories in trouble: another version, broken, full, gone; the scheduler goes on."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from scheduler.series.accounts import UsageSpan
from scheduler.series.courses import StoredRow
from scheduler.series.history_file import FILE, HistoryFile
from scheduler.series.points import DEVICE, Point
from scheduler.state.units import SECOND, Instant, Span
from tests.series.test_courses import FACTS, T0, readings
from tests.series.test_ledger import Scheduler, attempt, lose


def row(begin: int = T0) -> StoredRow:
    return StoredRow(1, begin, DEVICE.pack(Point(begin, begin + 10, readings(50))))


def aside(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.glob("*.broken-*"))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "moved aside" in record.message]


def test_a_file_of_another_version_is_moved_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with sqlite3.connect(tmp_path / FILE) as other:
        other.execute("CREATE TABLE held (a)")
        other.execute("PRAGMA user_version = 99")
    other.close()
    file = HistoryFile(tmp_path)
    file.write_points([(FACTS, row())])
    assert len(file.entries(FACTS.key, 1, T0, T0 + 10)) == DEVICE.entry_bytes
    file.close()
    assert aside(tmp_path) == [f"{FILE}.broken-1"]
    assert len(warnings(caplog)) == 1


OF_BEFORE_GROUPS = """
CREATE TABLE held (
    begin_us INTEGER NOT NULL, end_us INTEGER NOT NULL, is_sum INTEGER NOT NULL, milli INTEGER NOT NULL,
    user TEXT NOT NULL, node TEXT NOT NULL, model TEXT NOT NULL, band INTEGER NOT NULL,
    milli_us INTEGER NOT NULL, started_us INTEGER, finished_us INTEGER,
    starts INTEGER NOT NULL, wait_us INTEGER NOT NULL, wait_us_min INTEGER NOT NULL, wait_us_max INTEGER NOT NULL,
    jobs INTEGER NOT NULL, failed INTEGER NOT NULL, load_milli_us REAL NOT NULL, load REAL NOT NULL, energy_mj REAL
);
CREATE UNIQUE INDEX held_sums ON held (begin_us, user, node, model, band) WHERE is_sum;
INSERT INTO held VALUES (0, 0, 1, 0, 'alice', 'n1', 'H100', 2, 7000000, NULL, NULL, 1, 5, 5, 5, 1, 0, 0, 0, NULL);
PRAGMA user_version = 1;
"""


async def test_a_file_of_before_there_were_groups_goes_on_and_what_it_has_is_of_none(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE) as before:
        before.executescript(OF_BEFORE_GROUPS)
    before.close()
    scheduler = Scheduler(tmp_path)
    for _ in range(3):
        scheduler.ends(attempt(1, 0, SECOND))  # of groups 1, 2 and 0, all in the same five minutes
    await scheduler.write()
    span = UsageSpan(Instant(0), Instant(2**62), Span(2**62))
    found = scheduler.file.usage([], span, "group", "")
    assert {name: each.totals.jobs for name, each in found.items()} == {"0": 2, "1": 1, "2": 1}
    assert not aside(tmp_path)
    scheduler.file.close()


def test_a_file_that_is_none_is_moved_aside_each_time_under_a_name_of_its_own(tmp_path: Path) -> None:
    for count in (1, 2):
        (tmp_path / FILE).write_bytes(b"nothing that a database would be" * 500)
        file = HistoryFile(tmp_path)
        file.write_points([(FACTS, row())])
        file.close()
        assert len(aside(tmp_path)) == count


async def test_a_file_that_breaks_while_it_is_used_is_moved_aside_and_what_was_held_is_counted_anew(
    tmp_path: Path,
) -> None:
    scheduler = Scheduler(tmp_path)
    for number in range(400):
        scheduler.ends(attempt(1, number * 1000 * SECOND, 500 * SECOND))
    await scheduler.write()
    scheduler.file.close()
    # Everything but the header is overwritten, as a bad disk would.
    whole = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(whole[:100] + b"\xff" * (len(whole) - 100))
    scheduler.start()
    await scheduler.write()
    assert scheduler.total().milli_us == scheduler.expected.milli_us
    assert aside(tmp_path)
    scheduler.file.close()


async def test_a_file_that_is_taken_away_is_begun_anew_with_all_that_was_held(tmp_path: Path) -> None:
    scheduler = Scheduler(tmp_path)
    scheduler.ends(attempt(1, 0, 5 * SECOND))
    await scheduler.write()
    lose(tmp_path)
    scheduler.ends(attempt(1, 0, 7 * SECOND))
    await scheduler.write()
    assert scheduler.total().milli_us == 12 * SECOND * 1000
    scheduler.file.close()


async def test_on_a_full_disk_what_was_held_waits_and_nothing_is_lost(tmp_path: Path) -> None:
    scheduler = Scheduler(tmp_path)
    await scheduler.write()
    connection = scheduler.file._opened()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    for number in range(300):
        scheduler.ends(attempt(1, number * 1000 * SECOND, 500 * SECOND), user="u" * 200)
    with pytest.raises(sqlite3.OperationalError, match="full"):
        await scheduler.write()
    assert not aside(tmp_path)
    await scheduler.write()  # opened anew, without the limit
    assert scheduler.total().milli_us == scheduler.expected.milli_us
    scheduler.file.close()


def test_old_points_are_dropped_level_by_level_and_the_rest_stays(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path)
    file.write_points([(FACTS, row(T0 + 10 * number)) for number in range(100)])
    file.write_points([(FACTS, StoredRow(2, T0, row().entries))])
    assert file.prune({1: T0 + 500, 2: T0 - 1}, Instant(0)) == 49
    assert file.prune({1: T0 + 500, 2: T0 - 1}, Instant(0)) == 0
    assert len(file.entries(FACTS.key, 1, T0, T0 + 1000)) == 51 * DEVICE.entry_bytes
    assert len(file.entries(FACTS.key, 2, T0, T0 + 1000)) == DEVICE.entry_bytes
    file.close()


def test_a_reader_makes_no_file_and_moves_none(tmp_path: Path) -> None:
    reader = HistoryFile(tmp_path, is_reader=True)
    with pytest.raises(sqlite3.Error):
        reader.courses(FACTS.key.node, None)
    assert not (tmp_path / FILE).exists()
    writer = HistoryFile(tmp_path)
    writer.write_points([(FACTS, row())])
    assert reader.courses(FACTS.key.node, None) == [FACTS]
    lose(tmp_path)
    writer.write_points([(FACTS, row(T0 + 10)), (FACTS, row(T0 + 20))])
    assert len(reader.entries(FACTS.key, 1, T0, T0 + 100)) == 2 * DEVICE.entry_bytes
    reader.close()
    writer.close()
