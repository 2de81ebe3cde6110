"""A restore that is killed at any moment, or whose disk is full: the old store is served whole, or none at all."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpufleet.config.scheduler_settings import SchedulerSettings
from gpufleet.errors import GpufleetError, Reason
from scheduler.backup import commands
from scheduler.known_store import Memory
from scheduler.restore_mark import FILE as MARK
from scheduler.restore_mark import read_mark
from scheduler.store.errors import StoreError
from scheduler.store.opening import open_store
from scheduler.verifying import store_url
from tests.backup.conftest import Place
from tests.backup.stores import KEYS, back_up, contents, everything, fill, restored
from tests.e2e.disks import small_disk
from tests.store.samples import behind_its_back, job, submit

Moment = tuple[str, str, int, str]

MOMENTS: Mapping[str, Moment] = {
    "while rows are put": ("scheduler.backup.restoring", "put", 3, "after"),
    "before the mark": ("scheduler.backup.restoring", "write_mark", 1, "before"),
    "behind the mark": ("scheduler.backup.restoring", "write_mark", 1, "after"),
    "before a key is replaced": ("scheduler.backup.keys", "replace_file", 1, "before"),
    "behind the first key": ("scheduler.backup.keys", "replace_file", 1, "after"),
    "behind the old log": ("pathlib", "Path.rename", 1, "after"),
    "behind the old database": ("pathlib", "Path.rename", 3, "after"),
    "behind the new database": ("pathlib", "Path.rename", 4, "after"),
    "while output is put back": ("scheduler.backup.output_bytes", "_put", 1, "after"),
    "before the mark is finished": ("scheduler.backup.restoring", "write_mark", 2, "before"),
}
"""When a restore over another store is killed, in this order."""

FINISHED: Moment = ("scheduler.backup.restoring", "write_mark", 2, "after")
OLD_KEYS = {name: key.replace("1", "7").replace("gf_", "gf_old_") for name, key in KEYS.items()}


def kill(orders: list[tuple[SchedulerSettings, Path, Moment]]) -> None:
    """Begin these restores, and kill each at its moment."""
    asked = [
        {"data": str(settings.data), "store": settings.store, "file": str(file), "at": at}
        for settings, file, at in orders
    ]
    command = [sys.executable, "-m", "tests.backup.killed"]
    done = subprocess.run(command, input=json.dumps(asked), text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr


def start(settings: SchedulerSettings) -> None:
    """Open the store as a start does."""
    open_store(store_url(settings), Memory(settings.data).admit).close()


def keys_of(settings: SchedulerSettings) -> dict[str, str]:
    return {name: (settings.data / name).read_text().strip() for name in KEYS}


@pytest.fixture
def old(place: Place) -> SchedulerSettings:
    """Another store, with other keys, whose scheduler was killed: its log is not in its file yet."""
    settings = place("old", "sqlite")
    fill(settings)
    for name, key in OLD_KEYS.items():
        (settings.data / name).write_text(key + "\n")
    database = settings.data / "scheduler.db"
    with closing(open_store(store_url(settings))) as store:
        store.commit(submit(1, job(77)))
        live = {path.name: path.read_bytes() for path in settings.data.glob("scheduler.db-*")}
        whole = database.read_bytes()
    database.write_bytes(whole)
    for name, data in live.items():
        (settings.data / name).write_bytes(data)
    assert {"scheduler.db-wal", "scheduler.db-shm"} <= live.keys()
    return settings


def test_a_restore_that_is_killed_is_served_by_nobody_and_run_again(
    old: SchedulerSettings, place: Place, tmp_path: Path
) -> None:
    source = place("source", "sqlite")
    fill(source)
    rows, file = everything(source), back_up(source, tmp_path / "fleet.tar", has_output=True)
    shutil.rmtree(old.data / "output")
    orders = []
    for number, moment in enumerate([*MOMENTS.values(), FINISHED]):
        shutil.copytree(old.data, tmp_path / f"killed{number}")
        orders.append((SchedulerSettings(data=tmp_path / f"killed{number}"), file, moment))
    old_rows = everything(old)
    assert old_rows != rows
    kill(orders)
    served = []
    for (settings, _, _), name in zip(orders, [*MOMENTS, "finished"], strict=True):
        if name == "finished":
            mark = read_mark(settings.data)
            assert mark is not None and mark.is_finished
        elif not (settings.data / MARK).exists():
            served.append(name)
            assert everything(settings) == old_rows and keys_of(settings) == OLD_KEYS, name
        else:
            with pytest.raises(GpufleetError) as refused:
                start(settings)
            assert refused.value.reason is Reason.RESTORE_UNFINISHED and "restore FILE" in refused.value.next_step
            restored(settings, file)  # no --replace again: that was said before
            assert everything(settings) == rows and keys_of(settings) == KEYS, name
            printed = {path.read_bytes() for path in settings.data.glob("output/*/*/1.0.*.stdout")}
            assert printed == {b"hello\n", bytes(100_000)}, name
            assert not list(settings.data.glob("*.restoring*")), name
            (kept,) = settings.data.glob("scheduler.db.before-*Z")
            assert everything(SchedulerSettings(data=settings.data, store=f"sqlite:///{kept}")) == old_rows, name
            aside = [path for path in settings.data.glob("*.before-*") if "scheduler.db" not in path.name]
            assert {path.read_text().strip() for path in aside} == set(OLD_KEYS.values()) - set(KEYS.values()), name
        if name not in served:
            start(settings)
    assert served == ["while rows are put", "before the mark"]


@pytest.mark.postgres
def test_with_postgresql_what_was_committed_is_not_put_there_twice(place: Place, tmp_path: Path) -> None:
    source = place("source", "sqlite")
    fill(source)
    rows, file = everything(source), back_up(source, tmp_path / "fleet.tar")
    before, behind = place("before", "postgresql"), place("behind", "postgresql")
    put = "scheduler.backup.targets", "PostgresTarget.put", 1
    kill([(before, file, (*put, "before")), (behind, file, (*put, "after"))])
    for settings in (before, behind):
        with pytest.raises(GpufleetError, match="has not come to its end"):
            start(settings)
        restored(settings, file)
        assert everything(settings) == rows
        start(settings)


def test_of_a_full_disk_nothing_is_left_and_all_is_as_it_was(place: Place, tmp_path: Path) -> None:
    source = place("source", "sqlite")
    fill(source)
    many = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 9)"
    behind_its_back(store_url(source), f"INSERT INTO lineage {many} SELECT 1000 + x, hex(zeroblob(500000)), 0 FROM n")
    file = back_up(source, tmp_path / "fleet.tar")
    with small_disk(6_000_000) as disk:
        settings = SchedulerSettings(data=disk.path / "data")
        with pytest.raises(GpufleetError, match="free") as refused:
            restored(settings, file)
        assert refused.value.reason is Reason.BACKUP_FAILED
        assert {name for name in contents(settings.data) if not name.endswith(".lock")} == set()


def test_a_disk_that_fills_meanwhile(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = place("source", "sqlite")
    fill(source)
    file = back_up(source, tmp_path / "fleet.tar")
    with small_disk(2_000_000) as disk:
        settings = SchedulerSettings(data=disk.path / "data")
        fill(settings)
        rows, before = everything(settings), contents(settings.data)
        disk.fill()
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10**9))  # as it was a moment ago
        with pytest.raises((StoreError, OSError, GpufleetError), match=r"full|space"):
            restored(settings, file, replaces=True)
        with pytest.raises((GpufleetError, StoreError), match=r"full|No space left"):
            commands.backup(settings, str(disk.path / "own.tar"), replaces=False)
        assert [path.name for path in disk.path.iterdir() if path.name != "ballast"] == ["data"]
        disk.make_room()
        after = contents(settings.data)
        assert everything(settings) == rows
        assert {n: d for n, d in after.items() if "scheduler.db" not in n} == {
            n: d for n, d in before.items() if "scheduler.db" not in n
        }
        start(settings)


def test_a_damaged_mark_keeps_a_start_out_and_a_restore_mends_it(full: SchedulerSettings, tmp_path: Path) -> None:
    file = back_up(full, tmp_path / "fleet.tar")
    (full.data / MARK).write_text("{")
    with pytest.raises(GpufleetError, match="says nothing that a restore says"):
        start(full)
    assert restored(full, file, replaces=True).jobs_above == 1_000
    start(full)
