"""What nodes are told of the store: who gives it back shows that the store lacks history; nobody else can say so."""

from __future__ import annotations

import base64
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.errors import GpufleetError, Reason
from scheduler.known_store import KnownStore, Memory, read_known
from scheduler.position_seal import POSITION_CHARS_MAX, PositionSeal
from scheduler.state.durable import Durable
from scheduler.state.gap import HistoryGap
from scheduler.state.ids import JobId, NodeName
from scheduler.state.units import Instant
from scheduler.store.opening import open_store
from scheduler.store.store import SqlStore
from scheduler.store_position import StorePositions, opened, sealed
from tests.store.samples import behind_its_back, job, submit

KEY = b"k" * 32
N1 = NodeName("n1")


def far(store: SqlStore, next_job: int = 2) -> KnownStore:
    return KnownStore(
        store_id=store.store_id,
        lineage=store.lineage,
        term=store.term,
        sequence=store.newest_sequence(),
        next_job=next_job,
    )


class Start:
    """A start of the scheduler on a store and a data folder, as far as positions go."""

    def __init__(self, url: str, data: Path, *, accepts: bool = False, key: bytes = KEY) -> None:
        self.memory = Memory(data, accepts=accepts)
        self.store = open_store(url, self.memory.admit)
        self.memory.opened(self.store.starts)
        self.durable = Durable()
        self.durable.counters = replace(self.durable.counters, next_job=JobId(self.memory.jobs_above + 1))
        if self.memory.gap:
            self.durable.gap = HistoryGap(
                at=Instant(1), reason=self.memory.gap, jobs_below=JobId(2), term=self.store.term
            )
        self.raised: list[tuple[int, int]] = []
        self.positions = StorePositions(
            PositionSeal(key),
            self.memory,
            lambda: far(self.store),
            self.durable,
            lambda *above: self.raised.append(above),
        )

    def close(self) -> None:
        self.memory.note(far(self.store), is_synced=True)
        self.store.close()


def put_back_with_its_folder(url: str, data: Path) -> None:
    """As a copy of both that was taken in the first term."""
    (data / "known-store.json").unlink()
    behind_its_back(url, "DELETE FROM lineage WHERE term > 1")
    behind_its_back(url, "UPDATE meta SET term = 1")


@pytest.fixture
def told(url: str, tmp_path: Path) -> str:
    """What a node was told in the second term, of a store that was put back to the first one since."""
    with closing(Start(url, tmp_path)) as first:
        first.store.commit(submit(1, job(1)))
    with closing(Start(url, tmp_path)) as second:
        text = second.positions.text()
    put_back_with_its_folder(url, tmp_path)
    return text


def test_what_is_sealed_comes_back_and_nothing_else_does() -> None:
    far_on = 2**40
    known = KnownStore(
        store_id="5" * 16, lineage="7" * 16, term=far_on, sequence=2**60, next_job=far_on, next_session=far_on
    )
    seal = PositionSeal(KEY)
    text = sealed(seal, known)
    assert opened(seal, text) == known and len(text) <= POSITION_CHARS_MAX // 2
    assert PositionSeal(b"x" * 32).read(text) is None
    inside = base64.urlsafe_b64decode(text)
    for place in range(len(inside)):
        changed = bytes(byte ^ (place == at) for at, byte in enumerate(inside))
        assert seal.read(base64.urlsafe_b64encode(changed).decode()) is None
    for wrong in ("", "=", "é", "AAAA", text[:-4], text * 4, "\0", "A" * 1_000_000):
        assert seal.read(wrong) is None


def test_a_node_that_knows_more_stops_a_scheduler_whose_folder_was_put_back_too(
    url: str, tmp_path: Path, told: str
) -> None:
    with closing(Start(url, tmp_path)) as start:
        with pytest.raises(GpufleetError, match=r"is older than it was: it ends in term 2.*jobs up to 1") as refused:
            start.positions.judge(N1, told)
        assert refused.value.reason is Reason.STORE_RESTORED and "--accept-restored" in refused.value.next_step
        assert start.memory.contradicted.is_set()
    # What it noted at its end is what the node knew: it is refused before any node is heard.
    for _ in range(2):
        with pytest.raises(GpufleetError, match="older than it was"):
            Start(url, tmp_path)


def test_what_was_accepted_is_refused_by_no_node_of_the_lost_history_again(
    url: str, tmp_path: Path, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Start(url, tmp_path)) as start, pytest.raises(GpufleetError):
        start.positions.judge(N1, told)
    lost = opened(PositionSeal(KEY), told)
    assert lost is not None
    with closing(Start(url, tmp_path, accepts=True)) as start:
        assert start.store.term == 1_001, "above all that any node has heard of"
        start.positions.judge(N1, told)
        # Another was told more, and of later starts.
        further = replace(lost, lineage="f" * 16, term=900, sequence=77_777, next_job=4_321)
        start.positions.judge(N1, sealed(PositionSeal(KEY), further))
        assert start.raised == [(5_000, 1_000)] and "higher numbers" in caplog.text
        assert start.memory.contradiction is None
        of_now = start.positions.text()
    with closing(Start(url, tmp_path)) as start:
        start.durable.gap = HistoryGap(at=Instant(1), reason="it was", jobs_below=JobId(2), term=1_001, is_closed=True)
        for text in (told, of_now, start.positions.text()):
            start.positions.judge(N1, text)
        assert start.memory.contradiction is None


def test_who_lies_is_not_listened_to(url: str, tmp_path: Path, told: str, caplog: pytest.LogCaptureFixture) -> None:
    with closing(Start(url, tmp_path, key=b"another" * 5)) as start:
        for text in (told, "", "é", "A" * 400, sealed(PositionSeal(b"guessed"), far(start.store, 9_999_999))):
            start.positions.judge(N1, text)
        assert start.memory.contradiction is None and not start.raised
        with pytest.raises(GpufleetError, match="has heard a scheduler of this store in term 7") as refused:
            start.positions.check_term(N1, start.store.store_id, 7)
        assert refused.value.reason is Reason.STORE_RESTORED, "only the node itself is refused"
        start.positions.check_term(N1, "another", 7)
        start.positions.check_term(N1, start.store.store_id, start.store.term)
        assert start.memory.contradiction is None
    Start(url, tmp_path).close()


def test_a_position_of_another_store_is_told_and_stops_nobody(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Start(url, tmp_path)) as start:
        other = replace(far(start.store), store_id="of another", term=99, next_job=1_234)
        start.positions.judge(N1, sealed(PositionSeal(KEY), other))
        assert "told of another store" in caplog.text and start.memory.contradiction is None
    assert read_known(tmp_path) is not None
