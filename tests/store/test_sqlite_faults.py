"""The embedded store when the disk, the file or the process fails under it."""

from __future__ import annotations

import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.ports import Commit
from scheduler.state.jobs import Job
from scheduler.store import sqlite
from scheduler.store.errors import StoreCorrupt, StoreUnavailable
from scheduler.store.opening import open_store
from scheduler.store.store import SqlStore
from tests.store.samples import at, job, node, submit

MIB = 1024 * 1024


def big_jobs(count: int, each_bytes: int) -> list[Job]:
    jobs = [job(number) for number in range(1, count + 1)]
    return [replace(each, spec=replace(each.spec, argv=("x" * each_bytes,))) for each in jobs]


def fail_then_recover(store: SqlStore, too_big: Commit, make_room: Iterator[None]) -> None:
    """The shape of every test here: refused as a whole, readable meanwhile, and then the same commit passes."""
    store.commit(submit(1, job(1000)))
    next(make_room)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"scheduler\.db: "):
            store.commit(too_big)
        assert list(store.load()) == [job(1000)]
        with pytest.raises(StoreUnavailable, match="a commit waits to be tried again"):
            store.prune(at(0))
    next(make_room)
    store.commit(too_big)
    assert len(list(store.load())) == 1 + len(too_big.upserts)
    assert store.prune(at(0)) == 0
    assert store.verify() == []


def test_a_commit_that_may_not_be_written_is_refused_and_passes_later(tmp_path: Path) -> None:
    """The kernel refuses to let a file grow: what a quota does, and a failing disk much the same."""

    def limit_file_size() -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        yield

    with closing(open_store(f"sqlite:///{tmp_path / 'scheduler.db'}")) as store:
        fail_then_recover(store, submit(2, *big_jobs(30, 100_000)), limit_file_size())


def test_a_full_disk_refuses_the_commit_and_room_lets_it_pass(tmp_path: Path) -> None:
    def fill_the_disk() -> Iterator[None]:
        ballast = tmp_path / "disk" / "ballast"
        with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
            while file.write(b"x" * 4096):
                pass
        yield
        ballast.unlink()
        yield

    with tiny_disk(tmp_path / "disk") as disk, closing(open_store(f"sqlite:///{disk / 'scheduler.db'}")) as store:
        fail_then_recover(store, submit(2, *big_jobs(10, 100_000)), fill_the_disk())


@contextmanager
def tiny_disk(path: Path) -> Iterator[Path]:
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def test_a_database_that_someone_else_locks_is_unavailable_and_then_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LOCK_WAIT_SECONDS_MAX", 0.05)
    path = tmp_path / "scheduler.db"
    with closing(open_store(f"sqlite:///{path}")) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable, match="database is locked"):
                store.commit(submit(1, job(1)))
        store.commit(submit(1, job(1)))
        assert len(store.story(job(1).id, 0, 10)) == 1


def test_a_file_that_was_moved_away_takes_no_commits_until_it_is_back(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "scheduler.db", tmp_path / "elsewhere.db"
    with closing(open_store(f"sqlite:///{path}")) as store:
        path.rename(elsewhere)
        with pytest.raises(StoreUnavailable, match=r"scheduler\.db: the file was moved or removed"):
            store.commit(submit(1, job(1)))
        path.touch()
        with pytest.raises(StoreUnavailable, match="the file was moved or removed"):
            store.commit(submit(1, job(1)))
        elsewhere.rename(path)
        store.commit(submit(1, job(1)))
        assert list(store.load()) == [job(1)]


def test_a_mistake_in_the_code_leaves_the_store_usable(tmp_path: Path) -> None:
    with closing(open_store(f"sqlite:///{tmp_path / 'scheduler.db'}")) as store:
        with pytest.raises(OverflowError):
            store.commit(submit(1, job(2**70)))
        store.commit(submit(1, job(1)))
        assert list(store.load()) == [job(1)]


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"nowhere/scheduler\.db.*No such file"):
        open_store(f"sqlite:///{tmp_path / 'nowhere' / 'scheduler.db'}")


def test_a_file_that_is_no_database_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.db"
    path.write_bytes(b"these are my notes " * 1000)
    with pytest.raises(StoreCorrupt, match=r"scheduler\.db: file is not a database"):
        open_store(f"sqlite:///{path}")
    assert path.read_bytes() == b"these are my notes " * 1000


def test_a_damaged_file_is_named_by_whatever_meets_the_damage(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.db"
    with closing(open_store(f"sqlite:///{path}")) as store:
        store.commit(submit(1, *big_jobs(100, 2_000)))
    damaged = bytearray(path.read_bytes())
    # Everything but the first pages, which hold the schema and the one row of meta.
    damaged[16 * 4096 :] = random.Random(1).randbytes(len(damaged) - 16 * 4096)
    path.write_bytes(damaged)
    with closing(open_store(f"sqlite:///{path}")) as store:
        with pytest.raises(StoreCorrupt, match=r"scheduler\.db: database disk image is malformed"):
            list(store.load())
        assert any("scheduler.db" in problem for problem in store.verify())
        with pytest.raises(StoreCorrupt, match=r"scheduler\.db"):
            store.commit(Commit(number=1, at=at(0), upserts=tuple(big_jobs(100, 1_000))))


def test_only_the_account_of_the_scheduler_may_read_the_store(tmp_path: Path) -> None:
    with closing(open_store(f"sqlite:///{tmp_path / 'scheduler.db'}")) as store:
        store.commit(submit(1, job(1)))
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(modes, 0o600)
    assert "scheduler.db-wal" in modes


WRITER = """
import sys
from dataclasses import replace
from scheduler.ports import Commit
from scheduler.store.opening import open_store
from tests.store.samples import at, job, node, submit

store = open_store(sys.argv[1])
count = max((entity.version for entity in store.load()), default=0)
for number in range(1, 100_000):
    count += 1
    jobs = tuple(replace(job(each), version=count) for each in (1, 2, 3))
    store.commit(submit(number, *jobs))
    print(count, flush=True)
"""


def test_a_writer_that_is_killed_leaves_every_acknowledged_commit_whole(tmp_path: Path) -> None:
    """Kill −9 at random moments, six times over the same store."""
    url = f"sqlite:///{tmp_path / 'scheduler.db'}"
    chance = random.Random(7)
    root = Path(__file__).resolve().parents[2]
    for term in range(1, 7):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, url],
            stdout=subprocess.PIPE,
            cwd=root,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "gen")])},
        )
        with writer:
            assert writer.stdout is not None
            lines = [writer.stdout.readline() for _ in range(chance.randrange(1, 300))]
            writer.send_signal(signal.SIGKILL)
            acknowledged = int([*lines, *writer.stdout.read().splitlines()][-1])
        with closing(open_store(url)) as store:
            assert store.term == 2 * term
            versions = {entity.version for entity in store.load()}  # type: ignore[union-attr]
            assert len(versions) == 1
            # The one commit whose answer was not read may be there or not.
            assert versions <= {acknowledged, acknowledged + 1}
            assert len(store.story(job(1).id, 0, 1_000_000)) == versions.pop()
            assert store.verify() == []


def test_a_store_can_be_opened_again_at_once_after_its_holder_was_killed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'scheduler.db'}"
    with closing(open_store(url)) as store:
        store.commit(Commit(number=1, at=at(0), upserts=(node(),)))
    (tmp_path / "scheduler.db.lock").write_text("pid 1 on elsewhere\n")
    with closing(open_store(url)) as store:
        assert list(store.load()) == [node()]
