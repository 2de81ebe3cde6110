"""What attempts held is counted exactly once, whatever happens between an end and the file."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.ports import Commit, StoredRecord
from scheduler.series import held, ledger
from scheduler.series.accounts import BUCKET_SPAN, Totals, UsageSpan, bucket_of
from scheduler.series.held import GROUPS
from scheduler.series.history_file import HistoryFile
from scheduler.series.ledger import Ledger
from scheduler.state.access import Role, Token
from scheduler.state.attempts import EndedAttempt, PlacedDevice, Placement, Rank, RankExit
from scheduler.state.groups.group import GroupId
from scheduler.state.ids import DeviceUuid, JobId, NodeName, TokenId, UserName
from scheduler.state.jobs import Finished, Job
from scheduler.state.records import AttemptEnded, JobFinished, Record, TokenCreated
from scheduler.state.specs import Band, JobSpec, Outcome
from scheduler.state.state import State
from scheduler.state.units import DAY, MINUTE, SECOND, Instant, Span, after
from scheduler.state.used import DeviceUse, RankUse, Statistic
from tests.engine.fakes import BEGIN, FakeStore
from tests.rings.choosing import examples

T = TypeVar("T")
SPEC = JobSpec(argv=("true",), name="true", cwd="/")
YEAR = Span(365 * DAY)


async def here(call: Callable[[], T]) -> T:
    return call()


def attempt(
    number: int, begin: int, span: int, *, devices: int = 1, milli: int = 0, nodes: int = 1, load: float | None = None
) -> EndedAttempt:
    placed = after(BEGIN, begin)
    use = None
    if load is not None:
        read = Statistic(low=load, high=load, mean=load, count=3)
        uses = tuple(
            DeviceUse(uuid=DeviceUuid(f"g{index}"), utilization_percent=read, energy_mj=1000)
            for index in range(devices)
        )
        use = RankUse(span=Span(span), sample_count=3, devices=uses)
    ranks = tuple(
        Rank(
            placement=Placement(
                node=NodeName(f"n{node}"),
                agent_id="a",
                boot_id="b",
                devices=tuple(
                    PlacedDevice(index=index, uuid=DeviceUuid(f"g{index}"), name="H200", share_milli=milli)
                    for index in range(devices)
                ),
            ),
            started_at=after(placed, min(span, SECOND)),
            exit=RankExit(exit=None, reason="EXITED", use=use),
        )
        for node in range(nodes)
    )
    return EndedAttempt(number=number, placed_at=placed, ended_at=after(placed, span), ranks=ranks, reason="EXITED")


@dataclass
class Scheduler:
    """A store, a file of histories, and a ledger that may be begun anew at any moment."""

    folder: Path
    store: FakeStore = field(default_factory=FakeStore)
    count: int = 0
    openings: int = 1
    expected: Totals = field(default_factory=Totals)

    def __post_init__(self) -> None:
        self.view = State()
        self.start()

    def start(self) -> None:
        """A new start: what was in memory is gone."""
        self.file = HistoryFile(self.folder)
        self.ledger = Ledger(self.file, self.view, self.store, lambda: after(BEGIN, YEAR), lambda: YEAR)

    def copy(self) -> tuple[FakeStore, Totals]:
        """What is stored now, as a start of its own finds it, and what it comes to."""
        self.openings += 1
        return self.store.reopened(self.openings), replace(self.expected)

    def put_back(self, store: FakeStore, expected: Totals) -> None:
        """A start on a copy of the store, of what was so much; the file is that of the store that was lost."""
        self.file.close()
        self.openings += 1
        self.store, self.expected, self.count = store.reopened(self.openings), replace(expected), 0
        self.start()

    def ends(self, *attempts: EndedAttempt, user: str = "alice", outcome: Outcome = Outcome.SUCCEEDED) -> None:
        """A job ends, after these attempts; each is committed by itself."""
        job_id = JobId(len(self.store.finished) + 1)
        last = attempts[-1]
        job = Job(
            id=job_id,
            user=UserName(user),
            spec=SPEC,
            band=Band.NORMAL,
            group=GroupId(job_id % 3),
            submitted_at=Instant(attempts[0].placed_at - 5 * SECOND),
            state=Finished(outcome=outcome, at=last.ended_at, reason="EXITED"),
            past=attempts,
        )
        self.store.finished[job_id] = job
        for each in attempts[:-1]:
            self._commit(AttemptEnded(at=each.ended_at, job=job_id, ended=each), job)
        finished = job.state
        assert isinstance(finished, Finished)
        self._commit(JobFinished(at=last.ended_at, job=job_id, finished=finished, ended=last), job)
        for each in attempts:
            milli = sum(device.share_milli or 1000 for rank in each.ranks for device in rank.placement.devices)
            self.expected.milli_us += milli * (each.ended_at - each.placed_at)
            self.expected.starts += 1
        self.expected.jobs += 1
        self.expected.failed += outcome is Outcome.FAILED

    def _commit(self, record: Record, job: Job) -> None:
        self.count += 1
        self.store.commit(Commit(number=self.count, at=record.at, records=(record,)))
        self.ledger.take(self.store.newest_sequence(), record, job)

    async def write(self) -> None:
        await self.ledger.write(here)

    def total(self, begin: int = 0, span: int = YEAR, group: str = "user", steps: int = 0) -> Totals:
        """All that is counted, stored or not."""
        known = self.file.accounted()
        more = [hold for number, hold in self.ledger.waiting if known is None or number > known.sequence]
        first = bucket_of(after(BEGIN, begin))
        step = Span(span if not steps else -(-span // steps // BUCKET_SPAN) * BUCKET_SPAN)
        found = self.file.usage(more, UsageSpan(first, after(first, span), step, steps), group, "")
        whole = Totals()
        for each in found.values():
            whole.add_all(each.totals)
            if steps:
                assert sum(each.course) == each.totals.milli_us
        return whole


WAYS = ("write", "crash", "stop", "lose the file", "copy the store", "put the copy back", "nothing")
attempts = st.builds(
    attempt,
    st.just(1),
    st.integers(0, 2 * DAY),
    st.one_of(st.integers(0, 20 * SECOND), st.integers(0, DAY)),
    devices=st.integers(0, 3),
    milli=st.sampled_from([0, 0, 125, 333]),
    nodes=st.integers(1, 2),
)
happenings = st.lists(st.one_of(st.sampled_from(WAYS), st.lists(attempts, min_size=1, max_size=3)), max_size=25)


def lose(folder: Path) -> None:
    for file in folder.glob("history.db*"):
        file.unlink()


@settings(max_examples=examples(40))
@given(happenings)
def test_the_sum_over_rows_is_the_sum_of_the_spans_whatever_happens(happened: list[object]) -> None:
    async def run(folder: Path) -> None:
        scheduler = Scheduler(folder)
        copy = scheduler.copy()
        for each in happened:
            match each:
                case "write":
                    await scheduler.write()
                case "stop":
                    await scheduler.write()
                    scheduler.file.close()
                    scheduler.start()
                case "crash":
                    scheduler.file.close()
                    scheduler.start()
                case "lose the file":
                    scheduler.file.close()
                    lose(folder)
                    scheduler.start()
                case "copy the store":
                    copy = scheduler.copy()
                case "put the copy back":
                    scheduler.put_back(*copy)
                case list():
                    scheduler.ends(*each)
        await scheduler.write()
        for group in GROUPS:
            total = scheduler.total(group=group)
            assert total.milli_us == scheduler.expected.milli_us
            assert (total.jobs, total.starts) == (scheduler.expected.jobs, scheduler.expected.starts)
        # Steps that do not divide the span: the last one is cut short, and nothing behind the span counts.
        cut = 100 * BUCKET_SPAN
        assert scheduler.total(span=cut, steps=7).milli_us == scheduler.total(span=cut).milli_us
        assert scheduler.total(span=cut, steps=7).jobs == scheduler.total(span=cut).jobs
        # Whatever the steps, and wherever a span is cut in two: nothing is lost and nothing is there twice.
        assert scheduler.total(span=BUCKET_SPAN * 900, steps=300).milli_us == scheduler.expected.milli_us
        cut = 12 * BUCKET_SPAN
        parts = scheduler.total(span=cut), scheduler.total(begin=cut)
        assert sum(part.milli_us for part in parts) == scheduler.expected.milli_us
        assert sum(part.jobs for part in parts) == scheduler.expected.jobs
        assert sum(part.starts for part in parts) == scheduler.expected.starts
        scheduler.file.close()

    folder = Path(tempfile.mkdtemp())
    try:
        asyncio.run(run(folder))
    finally:
        shutil.rmtree(folder)


async def test_what_ended_while_nothing_could_be_written_is_counted_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "HOLDS_WAITING_MAX", 5)
    monkeypatch.setattr(ledger, "RECORDS_AT_ONCE", 4)
    scheduler = Scheduler(tmp_path)
    await scheduler.write()
    for number in range(23):
        scheduler.ends(attempt(1, number * MINUTE, 30 * SECOND), outcome=Outcome.FAILED)
    assert len(scheduler.ledger.waiting) < 5
    assert not scheduler.ledger.is_complete.is_set()
    await scheduler.write()
    total = scheduler.total()
    assert total.milli_us == scheduler.expected.milli_us == 23 * 30 * SECOND * 1000
    assert (total.jobs, total.failed, total.starts) == (23, 23, 23)
    scheduler.file.close()


async def test_what_is_known_is_known_since_ever_while_the_first_record_is_there(tmp_path: Path) -> None:
    scheduler = Scheduler(tmp_path)
    scheduler.ends(attempt(1, 5 * MINUTE, SECOND))
    await scheduler.write()
    known = scheduler.file.accounted()
    assert known is not None and known.known_since == after(BEGIN, 5 * MINUTE + SECOND)  # older ones may be gone
    scheduler.file.close()
    lose(tmp_path)
    token = Token(id=TokenId("t"), digest="d", user=UserName("ada"), role=Role.ADMIN, created_at=BEGIN)
    first = TokenCreated(at=BEGIN, token=token, by=UserName("ada"))
    scheduler.store.records.insert(0, StoredRecord(sequence=0, at=BEGIN, record=first))
    scheduler.store.records = [
        StoredRecord(sequence=number, at=each.at, record=each.record)
        for number, each in enumerate(scheduler.store.records, 1)
    ]
    scheduler.start()
    await scheduler.write()
    known = scheduler.file.accounted()
    assert known is not None and known.known_since == 0
    scheduler.file.close()


async def test_a_file_of_a_store_that_is_gone_is_begun_anew(tmp_path: Path) -> None:
    scheduler = Scheduler(tmp_path)
    for number in range(3):
        scheduler.ends(attempt(1, number * MINUTE, SECOND))
    await scheduler.write()
    scheduler.file.close()
    other = Scheduler(tmp_path)  # its store knows nothing yet
    other.ends(attempt(1, 0, 7 * SECOND))
    await other.write()
    assert other.total().milli_us == 7 * SECOND * 1000
    other.file.close()


async def test_an_account_of_a_history_that_the_store_has_lost_is_begun_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = Scheduler(tmp_path)
    scheduler.ends(attempt(1, 0, SECOND))
    copy = scheduler.copy()
    scheduler.ends(attempt(1, MINUTE, SECOND))
    scheduler.ends(attempt(1, MINUTE, SECOND))
    await scheduler.write()
    scheduler.put_back(*copy)
    # As many records again, so that their numbers are those that are counted.
    scheduler.ends(attempt(1, 2 * MINUTE, 7 * SECOND))
    scheduler.ends(attempt(1, 2 * MINUTE, 11 * SECOND))
    await scheduler.write()
    assert scheduler.total().milli_us == (1 + 7 + 11) * SECOND * 1000
    assert sum("counted anew" in record.message for record in caplog.records) == 1
    # The next start finds its own history.
    scheduler.put_back(*scheduler.copy())
    scheduler.ends(attempt(1, 3 * MINUTE, SECOND))
    await scheduler.write()
    assert scheduler.total().milli_us == 20 * SECOND * 1000
    assert sum("counted anew" in record.message for record in caplog.records) == 1
    scheduler.file.close()


async def test_a_file_of_before_lineages_goes_on(tmp_path: Path) -> None:
    scheduler = Scheduler(tmp_path)
    for day in range(3):
        scheduler.ends(attempt(1, day * DAY, DAY // 2))
    await scheduler.write()
    scheduler.file._opened().execute("ALTER TABLE accounted DROP COLUMN lineage")
    scheduler.file.prune({}, after(BEGIN, DAY))  # what is counted anew would come back
    scheduler.put_back(*scheduler.copy())
    scheduler.ends(attempt(1, 3 * DAY, SECOND))
    await scheduler.write()
    assert scheduler.total().jobs == 3
    known = scheduler.file.accounted()
    assert known is not None and known.lineage == scheduler.store.lineage
    scheduler.file.close()


async def test_waits_loads_and_energy_are_told_of_what_started_and_was_read(tmp_path: Path) -> None:
    scheduler = Scheduler(tmp_path)
    first = attempt(1, 0, 600 * SECOND, load=50.0, devices=2)
    second = attempt(2, 1200 * SECOND, 60 * SECOND, load=100.0, devices=2)
    scheduler.ends(first, second)
    scheduler.ends(attempt(1, 0, 10 * SECOND))  # nothing was read of it
    await scheduler.write()
    total = scheduler.total()
    assert total.load / total.load_milli_us == pytest.approx((50 * 600 + 100 * 60) / 660)
    assert total.energy_mj == 4000
    # Six seconds from the submit; then from the end of the attempt before; then six again.
    assert (total.wait_us_min, total.wait_us_max, total.starts) == (6 * SECOND, 601 * SECOND, 3)
    # Of the long one's 600 s and 2,000 mJ, 200 s lie in the first five minutes of the clock.
    assert scheduler.total(span=5 * MINUTE).energy_mj == pytest.approx(2000 / 3)
    scheduler.file.close()


async def test_many_small_jobs_of_a_group_cost_one_row_of_their_five_minutes(tmp_path: Path) -> None:
    scheduler = Scheduler(tmp_path)
    for number in range(200):
        scheduler.ends(attempt(1, number * SECOND // 4, SECOND))
    await scheduler.write()
    (count,) = scheduler.file._opened().execute("SELECT count(*) FROM held").fetchone()
    assert count == 3
    assert scheduler.total().milli_us == 200 * SECOND * 1000
    scheduler.file.close()


async def test_the_oldest_are_dropped_and_it_is_told_since_when_all_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Scheduler(tmp_path)
    for day in range(10):
        scheduler.ends(attempt(1, day * DAY, DAY // 2))
    await scheduler.write()
    before = after(BEGIN, 3 * DAY)
    while scheduler.file.prune({}, before):
        pass
    known = scheduler.file.accounted()
    assert known is not None and after(BEGIN, 2 * DAY) < known.known_since < before
    assert scheduler.total().jobs == 7
    monkeypatch.setattr(held, "ROWS_MAX", 4)
    while scheduler.file.prune({}, Instant(0)):
        pass
    assert scheduler.total().jobs == 5
    # What was dropped is not counted anew by a new start.
    scheduler.put_back(*scheduler.copy())
    await scheduler.write()
    assert scheduler.total().jobs == 5
    scheduler.file.close()
