"""A store that is opened to be looked at: it stays as it is, nobody else has it, and real damage is named."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path

import psycopg
import pytest

from scheduler.store import opening
from scheduler.store.errors import StoreCorrupt, StoreLocked, StoreTooNew, StoreTooOld, StoreUnavailable
from scheduler.store.opening import open_store, open_to_examine
from tests.store.postgres_server import PostgresServer
from tests.store.samples import behind_its_back, finish, finished, job, node, submit

PAGE_BYTES = 4096
HEAP_PAGE_BYTES = 8192


def problems(url: str) -> list[str]:
    with closing(open_to_examine(url)) as examined:
        return examined.problems()


@pytest.fixture
def filled(url: str) -> str:
    """The URL of a store with two living jobs and one that has ended."""
    with closing(open_store(url)) as store:
        store.commit(submit(1, job(1), job(2), job(3)))
        store.commit(finish(2, finished(job(1), 5), second=5))
    return url


def test_it_reads_every_job_and_finds_nothing_wrong(filled: str) -> None:
    with closing(open_to_examine(filled)) as examined:
        assert examined.problems() == []
        assert [(each.id, each.is_finished) for each in examined.jobs()] == [(2, False), (3, False), (1, True)]


def test_a_store_that_a_scheduler_has_open_is_refused_by_the_holders_name(filled: str) -> None:
    with closing(open_store(filled)), pytest.raises(StoreLocked, match=r"in use by .*pid .*: stop that scheduler$"):
        open_to_examine(filled)
    with closing(open_to_examine(filled)), pytest.raises(StoreLocked, match=r"stop that scheduler$"):
        open_store(filled)
    assert problems(filled) == []


def test_looking_raises_no_term(filled: str) -> None:
    assert problems(filled) == problems(filled) == []
    with closing(open_store(filled)) as store:
        assert store.term == 2


def test_tables_of_another_version_are_left_to_it(filled: str) -> None:
    behind_its_back(filled, "UPDATE schema_revision SET version_num = '0003'")
    with pytest.raises(StoreTooOld, match=r"before the first release .*revision 0003.* start the scheduler once from"):
        open_to_examine(filled)
    behind_its_back(filled, "UPDATE schema_revision SET version_num = '9999'")
    with pytest.raises(StoreTooNew, match="revision 9999"):
        open_to_examine(filled)


def test_tables_that_a_start_would_bring_up_to_date_are_left_to_it(
    filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "NEWEST_REVISION", "9000")
    with pytest.raises(StoreUnavailable, match=r"an older version made its tables .revision \d{4}, now 9000"):
        open_to_examine(filled)


def test_where_there_is_no_store_none_is_made(url: str, tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"no such file|holds no store"):
        open_to_examine(url)
    assert list(tmp_path.iterdir()) == []
    with closing(open_store(url)) as store:
        assert store.term == 1


def test_tampered_rows_are_named(filled: str) -> None:
    behind_its_back(filled, "UPDATE finished_job SET outcome = 'FAILED'")
    behind_its_back(filled, "UPDATE entity SET payload = '{' WHERE id = '3'")
    found = problems(filled)
    assert len(found) == 2 and "entity job 3: Job: not JSON" in found[0], found
    assert found[1] == "finished_job 1: its columns differ from its payload"


# --- SQLite


def sqlite_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix not in (".lock", ".db-shm")}


KILLED = """
import os, sys
from scheduler.store.opening import open_store
from tests.store.samples import job, submit

store = open_store(sys.argv[1])
store.commit(submit(1, *map(job, range(1, 50))))
os._exit(0)
"""


def test_what_a_killed_scheduler_left_is_read_and_stays_as_it_is(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'scheduler.db'}"
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", KILLED, url], check=True, cwd=root, env={"PYTHONPATH": f"{root}:{root}/gen"})
    left = sqlite_files(tmp_path)
    assert left["scheduler.db-wal"], "the commit is in the log only"
    with closing(open_to_examine(url)) as examined:
        assert examined.problems() == []
        assert len(list(examined.jobs())) == 49
    assert sqlite_files(tmp_path) == left


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Path]:
    """A SQLite file of many pages, closed."""
    path = tmp_path / "scheduler.db"
    with closing(open_store(f"sqlite:///{path}")) as store:
        for number in range(1, 40):
            store.commit(submit(number, *(job(10 * number + each, name="x" * 500) for each in range(10))))
    yield path


def test_each_page_of_a_file_that_is_overwritten_is_noticed(large: Path) -> None:
    whole = large.read_bytes()
    url = f"sqlite:///{large}"
    assert problems(url) == []
    chance = random.Random(3)
    pages = range(1, len(whole) // PAGE_BYTES)
    for page in chance.sample(pages, 25):
        damaged = bytearray(whole)
        damaged[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = chance.randbytes(PAGE_BYTES)
        large.write_bytes(damaged)
        try:
            found = problems(url)
        except StoreCorrupt as error:
            found = [str(error)]
        assert found, f"page {page} is noise, and nobody saw it"
        assert "scheduler.db" in found[0]


def test_a_file_that_is_cut_off_is_noticed(large: Path) -> None:
    large.write_bytes(large.read_bytes()[: large.stat().st_size // PAGE_BYTES // 2 * PAGE_BYTES])
    try:
        found = problems(f"sqlite:///{large}")
    except StoreCorrupt as error:
        found = [str(error)]
    assert "scheduler.db" in found[0]


def test_what_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "scheduler.db").write_bytes(b"these are my notes " * 1000)
    with pytest.raises(StoreCorrupt, match=r"scheduler\.db: file is not a database"):
        open_to_examine(f"sqlite:///{tmp_path / 'scheduler.db'}")


# --- PostgreSQL


@pytest.mark.postgres
def test_a_heap_page_that_is_overwritten_is_named(
    postgres: PostgresServer, long_lived: Callable[[str], AbstractContextManager[None]]
) -> None:
    url = postgres.url(postgres.new_database())
    with closing(open_store(url)) as store:
        store.commit(submit(1, *(job(number, name="x" * 500) for number in range(1, 100))))
        store.commit(finish(2, finished(job(1), 5), second=5))
    assert problems(url) == []
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        found = connection.execute("SELECT pg_relation_filepath('record')").fetchone()
    assert found is not None
    postgres.stop()
    file = postgres.folder / "data" / str(found[0])
    damaged = bytearray(file.read_bytes())
    assert len(damaged) > 2 * HEAP_PAGE_BYTES
    damaged[HEAP_PAGE_BYTES : 2 * HEAP_PAGE_BYTES] = random.Random(5).randbytes(HEAP_PAGE_BYTES)
    file.write_bytes(damaged)
    with long_lived("PostgreSQL"):
        postgres.start()
    named = problems(url)
    assert len(named) == 1 and "invalid page in block 1" in named[0], named
    assert "gpufleet@127.0.0.1" in named[0]


def test_nothing_can_be_written_through_what_was_opened_to_be_looked_at(filled: str) -> None:
    with closing(open_to_examine(filled)) as examined:
        database = examined._database
        with pytest.raises(Exception, match=r"read-?only"), database.engine.begin() as connection:
            connection.exec_driver_sql("DELETE FROM record")
    with closing(open_store(filled)) as store:
        assert node() not in list(store.load())
        assert len(store.story(job(1).id, 0, 10)) == 2
