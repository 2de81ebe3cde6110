"""Whether a store is the one that its data folder has seen, on both databases; and what is refused stays as it is."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from gpufleet.errors import GpufleetError, Reason
from scheduler.known_store import FILE, KnownStore, Memory, gap_of, read_known, write_known
from scheduler.store.opening import open_store
from scheduler.store.reading import Began, Meta
from scheduler.store.store import SqlStore
from tests.store.samples import behind_its_back, job, submit

STARTS = [Began(4, "4" * 16, 50), Began(5, "5" * 16, 100), Began(6, "6" * 16, 140)]
FOUND = Meta(format=1, term=6, commit_number=3, record_seq=150, newest_us=0, store_id="mine")


def seen(term: int = 6, sequence: int = 150, store_id: str = "mine", next_job: int = 42) -> KnownStore:
    return KnownStore(store_id=store_id, lineage=str(term) * 16, term=term, sequence=sequence, next_job=next_job)


@pytest.mark.parametrize("known", [None, seen(), seen(6, 141), seen(5, 140), seen(5, 3), seen(4, 100), seen(3, 9_999)])
def test_a_store_that_has_all_that_was_seen_of_it_has_no_gap(known: KnownStore | None) -> None:
    assert gap_of(known, FOUND, STARTS, ["worker.key"]) == ""


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (seen(6, 151), "older than it was: it ends in term 6, and the data folder has seen one with jobs up to 41"),
        (seen(5, 141), "older than it was"),  # a copy of term 5 was put back, and has been started since
        (seen(7, 150), "older than it was"),
        (seen(store_id="other"), "not that of this data folder"),
    ],
)
def test_a_store_that_lacks_what_was_seen_has_one(known: KnownStore, said: str) -> None:
    assert said in gap_of(known, FOUND, STARTS, [])


def test_a_start_under_the_same_term_is_another_one() -> None:
    other = KnownStore(store_id="mine", lineage="f" * 16, term=6, sequence=1, next_job=2)
    assert "older than it was" in gap_of(other, FOUND, STARTS, [])


def test_an_empty_database_has_one_where_anything_says_that_there_was_another() -> None:
    assert gap_of(None, None, [], []) == ""
    assert "holds what another has left (worker.key, output)" in gap_of(None, None, [], ["worker.key", "output"])
    assert "is empty, and the data folder has seen one with jobs up to 41" in gap_of(seen(), None, [], [])


def now(store: SqlStore, next_job: int) -> KnownStore:
    return KnownStore(
        store_id=store.store_id,
        lineage=store.lineage,
        term=store.term,
        sequence=store.newest_sequence(),
        next_job=next_job,
    )


def test_a_store_that_went_back_is_refused_and_left_alone_until_somebody_accepts_it(url: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with closing(open_store(url, Memory(data).admit)) as store:
        store.commit(submit(1, job(1)))
        write_known(data, now(store, 2))
    with closing(open_store(url, Memory(data).admit)) as store:
        write_known(data, now(store, 2_345), is_synced=True)
    # As a copy that was taken in the first term: the second one is not in it.
    behind_its_back(url, "DELETE FROM lineage WHERE term = 2")
    behind_its_back(url, "UPDATE meta SET term = 1")
    with pytest.raises(GpufleetError, match="older than it was") as refused:
        open_store(url, Memory(data).admit)
    assert refused.value.reason is Reason.STORE_RESTORED and "--accept-restored" in refused.value.next_step
    assert behind_its_back(url, "SELECT term FROM meta") == [(1,)]
    accepting = Memory(data, accepts=True)
    with closing(open_store(url, accepting.admit)) as store:
        assert (store.term, accepting.jobs_above) == (1_001, 3_000)
        accepting.note(now(store, 3_001), is_synced=True)
    after = Memory(data)
    open_store(url, after.admit).close()
    assert (after.gap, after.jobs_above) == ("", 0)


def test_an_empty_database_beside_output_is_refused_again_and_again(url: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "output" / "000004" / "4321").mkdir(parents=True)
    for _ in range(2):
        with pytest.raises(GpufleetError, match=r"is empty, and the data folder holds .*output"):
            open_store(url, Memory(data).admit)
    accepting = Memory(data, accepts=True)
    open_store(url, accepting.admit).close()
    assert accepting.jobs_above == 5_000


def test_what_a_crash_left_of_the_file_counts_as_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for left in ("", "{", "[]", '{"store_id": 1}'):
        (tmp_path / FILE).write_text(left)
        assert read_known(tmp_path) is None
    assert "cannot be read" in caplog.text
    write_known(tmp_path, seen())
    assert read_known(tmp_path) == seen()
