"""A store that is backed up and restored is the same store, on the same database or the other one."""

from __future__ import annotations

import shutil
import stat
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.backup import checking, commands, making
from scheduler.known_store import KnownStore, Memory, write_known
from scheduler.restore_mark import FILE as MARK
from scheduler.restore_mark import read_mark, remove_mark, write_mark
from scheduler.store import filling, migrations, opening, schema
from scheduler.store.opening import open_store, open_to_examine
from scheduler.store.snapshot import TABLES
from scheduler.verifying import store_url, verify
from tests.backup.conftest import DATABASES, Place
from tests.backup.stores import KEYS, NEXT_JOB, back_up, contents, everything, fill, print_output, restored
from tests.store.samples import behind_its_back
from tests.store.test_opening import LATER_REVISION


def test_every_table_of_a_store_is_in_a_backup_but_those_of_output_and_of_the_schedulers_that_run() -> None:
    left_out = {"output_chunk", "output_time", "scheduler_run", "key_fingerprint"}
    assert {table.name for table in TABLES} | left_out == set(schema.metadata.tables)
    assert not {table.name for table in TABLES} & left_out


@pytest.mark.parametrize("source", DATABASES)
@pytest.mark.parametrize("target", DATABASES)
def test_every_row_of_every_table_comes_back_equal(source: str, target: str, place: Place, tmp_path: Path) -> None:
    settings = place("source", source)
    fill(settings)
    rows = everything(settings)
    assert all(rows.values()), "a table is empty, and shows nothing"
    file = back_up(settings, tmp_path / "fleet.tar")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert commands.check(file) == 0
    new = place("target", target)
    done = restored(new, file)
    assert done.jobs_above == 1_000 and not done.kept
    assert everything(new) == rows
    with closing(open_to_examine(store_url(new))) as examined:
        assert examined.problems() == []
    for name, key in KEYS.items():
        assert (new.data / name).read_text() == key + "\n"
        assert stat.S_IMODE((new.data / name).stat().st_mode) == 0o600


def test_a_start_after_a_restore_needs_no_second_word_and_raises_numbers(place: Place, tmp_path: Path) -> None:
    settings = place("source", "sqlite")
    fill(settings)
    file = back_up(settings, tmp_path / "fleet.tar")
    new = place("target", "sqlite")
    print_output(new, 4_321, b"of a job that the backup does not know\n")
    assert restored(new, file).jobs_above == 5_000
    for _ in range(2):  # the first one is killed before it has noted anything
        memory = Memory(new.data)
        with closing(open_store(store_url(new), memory.admit)) as store:
            assert "restored from a backup of" in memory.gap and memory.jobs_above == 5_000
            assert store.lineage != ""
    assert (new.data / MARK).exists()


def test_verify_counts_what_was_restored_as_known_and_half_a_restore_as_wrong(place: Place, tmp_path: Path) -> None:
    settings = place("source", "sqlite")
    fill(settings)
    file = back_up(settings, tmp_path / "fleet.tar")
    with closing(open_store(store_url(settings))) as store:
        newer = KnownStore(store_id=store.store_id, lineage=store.lineage, term=3, sequence=999, next_job=1_234)
    write_known(settings.data, newer)
    assert restored(settings, file, replaces=True).jobs_above == 2_000
    problems, _ = verify(settings)
    assert not [each for each in problems if "older than it was" in each]
    mark = read_mark(settings.data)
    assert mark is not None
    write_mark(settings.data, replace(mark, is_finished=False))
    problems, _ = verify(settings)
    assert problems[0] == "a restore into this data folder has not come to its end: run it again"
    remove_mark(settings.data)
    problems, _ = verify(settings)
    assert "the database is older than it was" in problems[0]


def test_where_nothing_is_lost_numbers_go_on_as_they_were(place: Place, tmp_path: Path) -> None:
    settings = place("source", "sqlite")
    fill(settings)
    file = back_up(settings, tmp_path / "fleet.tar")
    done = restored(settings, file, replaces=True)
    assert done.jobs_above == 0 and len(done.kept) == 1
    memory = Memory(settings.data)
    open_store(store_url(settings), memory.admit).close()
    assert (memory.gap, memory.jobs_above) == ("", 0)
    assert not (settings.data / MARK).exists()


@pytest.mark.parametrize("target", DATABASES)
def test_a_later_release_restores_what_this_one_has_backed_up(
    target: str, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = place("source", "sqlite")
    fill(settings)
    rows, file = everything(settings), back_up(settings, tmp_path / "fleet.tar")
    folder = tmp_path / "migrations"
    shutil.copytree(migrations.FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / "9000_motto.py").write_text(LATER_REVISION.format(newest=migrations.NEWEST_REVISION))
    monkeypatch.setattr(migrations, "FOLDER", folder)
    for module in (migrations, opening, filling, checking):
        monkeypatch.setattr(module, "NEWEST_REVISION", "9000")
    assert commands.check(file) == 0
    new = place("target", target)
    restored(new, file)
    assert everything(new) == rows
    assert behind_its_back(store_url(new), "SELECT motto FROM meta") == [("none",)]
    assert behind_its_back(store_url(new), "SELECT version_num FROM schema_revision") == [("9000",)]


def test_a_backup_of_before_the_audit_is_restored_and_has_an_empty_one(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = place("source", "sqlite")
    fill(settings)
    rows = everything(settings)
    behind_its_back(store_url(settings), "DROP TABLE audit")
    behind_its_back(store_url(settings), "UPDATE schema_revision SET version_num = '0006'")
    with monkeypatch.context() as before:
        before.setattr(opening, "NEWEST_REVISION", "0006")
        before.setattr(making, "TABLES", [each for each in TABLES if each.name != "audit"])
        file = back_up(settings, tmp_path / "fleet.tar")
    assert commands.check(file) == 0
    new = place("target", "sqlite")
    restored(new, file)
    assert everything(new) == {**rows, "audit": []}


@pytest.mark.postgres
def test_a_stopped_scheduler_moves_from_sqlite_to_postgresql_without_a_gap(place: Place, tmp_path: Path) -> None:
    settings = place("source", "sqlite")
    fill(settings)
    file = back_up(settings, tmp_path / "fleet.tar")
    moved = place("source", "postgresql")
    assert moved.data == settings.data
    done = restored(moved, file)
    assert done.jobs_above == 0
    memory = Memory(moved.data)
    open_store(store_url(moved), memory.admit).close()
    assert memory.gap == ""


def test_what_is_said_of_a_backup_and_a_restore(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = place("source", "sqlite")
    fill(settings)
    file = tmp_path / "fleet.tar"
    back_up(settings, file)
    said = capsys.readouterr().out
    assert "from sqlite: term 2, record" in said and f"jobs up to {NEXT_JOB - 1}" in said
    assert "4 keys and tokens, and a list of 2 pieces of output (100,006 bytes, which are not in it)" in said
    assert commands.check(file) == 0
    assert f"{file} is whole" in capsys.readouterr().out
    new = place("target", "sqlite")
    print_output(new, 40, b"hel")
    print_output(new, 555, b"later")
    assert commands.restore(new, file, replaces=False) == 0
    said = capsys.readouterr().out
    assert "kept apart: output of job 555, which the backup knows nothing of; it stays where it is\n" in said
    assert "missing: 100,003 bytes of output in 2 pieces" in said
    assert "40/1 stdout: 3 of 6 bytes are there\n" in said and "41/1 stdout: 0 of 100,000 bytes" in said
    assert "get numbers above 1,000\n" in said
    assert contents(new.data)["output/000000/555/1.0.0123456789abcdef.stdout"] == b"later"
