"""Stores that hold something of everything, and a look at all that is in one."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpufleet.config.scheduler_settings import SchedulerSettings
from gpufleet.errors import GpufleetError
from scheduler.backup import archive, commands, restoring
from scheduler.known_store import KnownStore, write_known
from scheduler.outputs.opening import open_shelf
from scheduler.outputs.segment_store import SegmentKey
from scheduler.ports import Commit
from scheduler.state.access import Counters
from scheduler.state.attempts import OutputStream
from scheduler.state.audited import AuditedCall, AuditRow
from scheduler.state.durable import Entity
from scheduler.state.ids import JobId, RankKey
from scheduler.state.indexes.equal_jobs import EqualJobs
from scheduler.state.jobs import Job, Tally
from scheduler.store.errors import StoreError
from scheduler.store.kinds import ENTITY_CLASSES, RECORD_CLASSES
from scheduler.store.opening import open_store
from scheduler.store.snapshot import TABLES, open_snapshot
from scheduler.verifying import store_url
from tests.store.samples import at, finished, job
from tests.store.stored_format import LINEAGE, example

NEXT_JOB = 300
KEYS = {"worker.key": "11" * 32, "secrets.key": "22" * 32, "admin.token": "gf_admin", "agent.token": "gf_agent"}


def whole(number: int, variant: int = 0) -> Job:
    """A job in which every field says something, that is by itself and has not ended."""
    every: Job = example(Job, variant)
    return replace(every, id=JobId(number), array=None, items=None, state=job(number).state)


def entities() -> list[Entity]:
    """One of each kind, and together they make a store."""
    array = replace(example(Job, 0), id=JobId(50), array=None)
    assert array.items is not None
    of_jobs: list[Entity] = [
        *(whole(100 + variant, variant) for variant in range(5)),
        EqualJobs(first=whole(200), spans=((JobId(200), JobId(203)), (JobId(204), JobId(210)))),
        array,
        Tally(array=array.id, succeeded=array.items.indices.count),
        Counters(next_job=NEXT_JOB, next_session=7),
    ]
    of_others = [example(cls, 0) for cls in ENTITY_CLASSES.values() if cls not in {type(each) for each in of_jobs}]
    return [*of_jobs, *of_others]


def fill(settings: SchedulerSettings) -> None:
    """Something in every table, after two starts; keys, output, and what a data folder remembers."""
    settings.data.mkdir(mode=0o700)
    url = store_url(settings)
    open_store(url).close()
    records = tuple(example(cls, 0) for cls in RECORD_CLASSES.values())
    ended = (finished(job(40, name="nul\0 and \udcff"), 5), finished(whole(41), 6))
    with closing(open_store(url)) as store:
        store.commit(Commit(number=1, at=at(9), records=records, upserts=tuple(entities()), finished=ended))
        store.write_audit([AuditRow(sequence=1, call=AuditedCall(at=at(9), call="Submit", user="ann"))])
        known = KnownStore(
            store_id=store.store_id,
            lineage=store.lineage,
            term=store.term,
            sequence=store.newest_sequence(),
            next_job=NEXT_JOB,
        )
        print_output(settings, 40, b"hello\n")
        print_output(settings, 41, bytes(100_000))
    write_known(settings.data, known)
    for name, key in KEYS.items():
        (settings.data / name).write_text(key + "\n")
        (settings.data / name).chmod(0o600)


def print_output(settings: SchedulerSettings, number: int, data: bytes) -> None:
    """Store what a job printed; with PostgreSQL the store must have had two starts."""
    segment = SegmentKey(RankKey(JobId(number), 1, 0, LINEAGE), OutputStream.STDOUT, 0, is_head=True)
    with closing(open_shelf(settings.store, 2, settings.data / "output")) as shelf:
        shelf.write(segment, 0, memoryview(data))
        shelf.sync([segment], {})


def everything(settings: SchedulerSettings) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of every table, in an order that does not depend on the database."""
    with open_snapshot(store_url(settings)) as store:
        return {table.name: sorted(map(tuple, store.rows(table)), key=repr) for table in TABLES}


def back_up(settings: SchedulerSettings, file: Path, *, has_output: bool = False) -> Path:
    """A backup of it in a file."""
    assert commands.backup(settings, str(file), replaces=False, has_output=has_output) == 0
    return file


def restored(settings: SchedulerSettings, file: Path, *, replaces: bool = False) -> restoring.Restored:
    """Put a backup back."""
    with archive.opened(file) as opened:
        return restoring.restore(settings, opened, replaces=replaces)


def refusal(settings: SchedulerSettings, file: Path, *, replaces: bool = False) -> str:
    """What a restore is refused with; the settings' folder and the place of its database are as before."""
    before = contents(settings.data)
    with pytest.raises((GpufleetError, StoreError)) as refused:
        restored(settings, file, replaces=replaces)
    after = contents(settings.data)
    assert {name: after[name] for name in after if not name.endswith(".lock")} == {
        name: before[name] for name in before if not name.endswith(".lock")
    }
    assert "\n" not in str(refused.value)
    return str(refused.value)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    if not folder.exists():
        return {}
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
