"""SQLite files that were damaged at random: whatever meets it says so in the store's own words, or all is well."""

from __future__ import annotations

import random
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest

from scheduler.ports import FinishedQuery
from scheduler.state.durable import load
from scheduler.store.errors import StoreCorrupt, StoreError, read_as_stored
from scheduler.store.opening import open_store, open_to_examine
from tests.rings.choosing import examples
from tests.store.samples import at, behind_its_back, job, submit

PAGE_BYTES = 4096
DAMAGES = examples(100)

WRITER = """
import os, sys
from scheduler.store.opening import open_store
from tests.store.samples import finish, finished, job, submit

for term in (1, 2):
    store = open_store(sys.argv[1])
    for number in range(1, 16):
        first = 1000 * term + 10 * number
        store.commit(submit(number, *(job(first + each, name="x" * 300) for each in range(5))))
    for number in range(16, 24):
        store.commit(finish(number, finished(job(1000 * term + 10 * (number - 15)), 5), second=5))
    if term == 1:
        store.close()
os._exit(0)
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A database that a killed scheduler left, with a log."""
    folder = tmp_path_factory.mktemp("whole")
    root = Path(__file__).resolve().parents[2]
    environment = {"PYTHONPATH": f"{root}:{root / 'gen'}"}
    url = f"sqlite:///{folder / 'scheduler.db'}"
    subprocess.run([sys.executable, "-c", WRITER, url], check=True, cwd=root, env=environment)
    files = {name: (folder / name).read_bytes() for name in ("scheduler.db", "scheduler.db-wal")}
    assert all(len(each) > 20 * PAGE_BYTES for each in files.values())
    return files


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Bits, bytes, the header, the page of the schema, or a whole page; or what is behind a point is gone."""
    broken = bytearray(data)
    match chance.choice(("bits", "bit", "page", "cut", "header", "schema", "zeros", "bytes")):
        case "bit":
            broken[chance.randrange(len(broken))] ^= 1 << chance.randrange(8)
        case "bits":
            for _ in range(100):
                broken[chance.randrange(len(broken))] ^= 1 << chance.randrange(8)
        case "page":
            begin = chance.randrange(len(broken) // PAGE_BYTES) * PAGE_BYTES
            broken[begin : begin + PAGE_BYTES] = chance.randbytes(PAGE_BYTES)
        case "cut":
            del broken[chance.randrange(len(broken)) :]
        case "header":
            broken[chance.randrange(100)] = chance.randrange(256)
        case "schema":
            for _ in range(5):
                broken[chance.randrange(PAGE_BYTES)] = chance.randrange(256)
        case "zeros":
            begin = chance.randrange(len(broken) - PAGE_BYTES)
            count = chance.choice((1, 16, 512, PAGE_BYTES))
            broken[begin : begin + count] = bytes(count)
        case _:
            begin = chance.randrange(len(broken) - 8)
            broken[begin : begin + 8] = chance.randbytes(8)
    return bytes(broken)


def test_no_damage_of_the_file_or_its_log_is_met_by_a_traceback(whole: dict[str, bytes], tmp_path: Path) -> None:
    """On looking, on opening and loading, and while it is in use. Another error than the store's fails the test."""
    noticed = 0
    for seed in range(DAMAGES):
        chance = random.Random(seed)
        for file in tmp_path.iterdir():
            file.unlink()
        hit = chance.choice(("scheduler.db", "scheduler.db", "scheduler.db-wal"))
        for name, data in whole.items():
            (tmp_path / name).write_bytes(damaged(data, chance) if name == hit else data)
        url = f"sqlite:///{tmp_path / 'scheduler.db'}"
        problems = ["it cannot be looked at"]
        with suppress(StoreError), closing(open_to_examine(url)) as examined:
            problems = examined.problems()
            if not problems:
                list(examined.jobs())
        noticed += bool(problems)
        with suppress(StoreError), closing(open_store(url)) as store:
            with read_as_stored("the state"):
                load(store.load())
            store.finished_jobs(FinishedQuery(limit=1000))
            store.story(job(1010).id, 0, 100)
            store.commit(submit(1, *(job(9000 + each) for each in range(5))))
            store.prune(at(10**6))
    assert DAMAGES // 10 < noticed < DAMAGES


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE entity SET payload = x'ff00'",
        "UPDATE meta SET term = 'x'",
        "UPDATE meta SET record_seq = 1.5",
        "UPDATE meta SET format = x'01'",
        "UPDATE schema_revision SET version_num = x'00'",
        "DELETE FROM schema_revision",
    ],
)
def test_values_that_no_commit_ever_stored_are_said_to_be_so(
    whole: dict[str, bytes], tmp_path: Path, change: str
) -> None:
    for name, data in whole.items():
        (tmp_path / name).write_bytes(data)
    url = f"sqlite:///{tmp_path / 'scheduler.db'}"
    with closing(open_store(url)):
        pass
    behind_its_back(url, change)
    with pytest.raises(StoreError):
        with closing(open_to_examine(url)) as examined:
            if found := examined.problems():
                raise StoreCorrupt(found[0])
        with closing(open_store(url)) as store:
            load(store.load())
