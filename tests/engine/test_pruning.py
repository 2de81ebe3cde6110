"""What is older or more than the settings keep goes, hourly and after a reload; a store that is away harms nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from gpufleet.config.live import Change
from gpufleet.config.scheduler_settings import HistorySettings, SchedulerSettings
from scheduler import pruning
from scheduler.output_hub import OutputHub
from scheduler.outputs.errors import OutputStoreUnavailable
from scheduler.outputs.files import FileShelf
from scheduler.outputs.layout import OutputLimits
from scheduler.outputs.segmented import SegmentedOutputStore
from scheduler.pruning import Pruner
from scheduler.state.attempts import OutputStream
from scheduler.state.ids import JobId, RankKey
from scheduler.state.jobs import Finished
from scheduler.state.specs import JobInput, Outcome
from scheduler.state.units import DAY, Instant
from scheduler.store.errors import StoreUnavailable, TermSuperseded
from tests.core.fleet import spec
from tests.engine.fakes import FakeStore
from tests.engine.harness import Harness, eventually


class PrunedStore(FakeStore):
    """Remembers what it was told to drop; `answers` are given, or raised, one after the other, then 0."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Instant] = []
        self.answers: list[int | Exception] = []

    def prune(self, before: Instant) -> int:
        self.asked.append(before)
        answer = self.answers.pop(0) if self.answers else 0
        if isinstance(answer, Exception):
            raise answer
        return answer


class Bench:
    """A pruner over such a store and output in files."""

    def __init__(self, folder: Path) -> None:
        self.store = PrunedStore()
        self.harness = Harness(self.store)
        self.outputs = SegmentedOutputStore(FileShelf(folder), OutputLimits())
        self.hub = OutputHub(self.outputs, lambda key, ends: None)
        self.settings = SchedulerSettings()
        self.dropped: list[tuple[Instant, Instant]] = []
        self.pruner = Pruner(self.harness.engine, self.hub, lambda: self.settings, self.drop_histories)

    async def drop_histories(self, tens_before: Instant, rest_before: Instant) -> int:
        self.dropped.append((tens_before, rest_before))
        return 0

    def write(self, job: int, size: int) -> None:
        self.outputs.append(RankKey(JobId(job), 1, 0), OutputStream.STDOUT, 0, b"x" * size)
        self.outputs.sync()

    def jobs(self) -> list[int]:
        return [job for job in range(10) if self.outputs.streams(JobId(job))]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    with closing(bench.hub), closing(bench.harness.engine):
        yield bench


def changed(key: str) -> tuple[Change, ...]:
    return (Change(key, "1", "2"),)


async def test_records_go_in_portions_until_none_is_old(bench: Bench) -> None:
    bench.store.answers = [1000, 7, 0]
    bench.settings = SchedulerSettings(retention=timedelta(days=3))
    await bench.pruner.prune()
    assert bench.store.asked == [Instant(bench.harness.clock.at - 3 * DAY)] * 3


@pytest.mark.parametrize(("ended_days_ago", "kept_days"), [(1, 3), (10, 10), (1_000, 93)])
async def test_the_record_of_a_job_whose_files_a_waiting_job_is_given_stays_for_so_much_longer_at_most(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, ended_days_ago: int, kept_days: int
) -> None:
    bench.settings = SchedulerSettings(retention=timedelta(days=3))
    async with bench.harness.running():
        given = replace(spec(), inputs=(JobInput(job=JobId(5), pattern="*"),))
        job = await bench.harness.submit(given, held=True)
        now = bench.harness.clock.at
        ended = Finished(outcome=Outcome.SUCCEEDED, at=Instant(now - ended_days_ago * DAY), reason="")
        other = replace(bench.harness.job(job), id=JobId(5), state=ended)
        monkeypatch.setattr(bench.store, "finished_job", {JobId(5): other}.get)
        await bench.pruner.prune()
    assert bench.store.asked == [Instant(now - kept_days * DAY)]


async def test_points_go_by_settings_of_their_own(bench: Bench) -> None:
    bench.settings = SchedulerSettings(
        history=HistorySettings(fine_retention=timedelta(hours=6), retention=timedelta(days=7))
    )
    await bench.pruner.prune()
    at = bench.harness.clock.at
    assert bench.dropped == [(Instant(at - DAY // 4), Instant(at - 7 * DAY))]


async def test_the_oldest_output_goes_beyond_the_total_size_and_what_is_too_old(bench: Bench) -> None:
    for job in (1, 2, 3):
        bench.write(job, 600_000)
    await bench.pruner.prune()
    assert bench.jobs() == [1, 2, 3]
    output = bench.settings.output
    bench.settings = SchedulerSettings(output=replace(output, total_bytes_max=1_200_000))
    await bench.pruner.prune()
    assert bench.jobs() == [2, 3]
    bench.harness.clock.at = Instant(2**53)
    await bench.pruner.prune()
    assert bench.jobs() == []


@pytest.mark.parametrize("key", ["retention", "output.retention", "output.total_bytes_max", "history.retention"])
async def test_a_reload_that_changes_what_is_kept_is_followed_at_once(bench: Bench, key: str) -> None:
    running = asyncio.create_task(bench.pruner.run())
    bench.pruner.settings_changed(changed("log.level"))
    await asyncio.sleep(0)
    assert bench.store.asked == []
    bench.pruner.settings_changed(changed(key))
    await eventually("it prunes", lambda: bench.store.asked)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_store_that_is_away_is_asked_again_later(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "PRUNE_SECONDS", 0.01)
    bench.store.answers = [StoreUnavailable("the server is away")]
    failures = [OutputStoreUnavailable("the server is away")]
    retain = bench.outputs.retain

    def fails_once(before: Instant, bytes_max: int, live: frozenset[JobId]) -> list[JobId]:
        if failures:
            raise failures.pop()
        return retain(before, bytes_max, live)

    monkeypatch.setattr(bench.outputs, "retain", fails_once)
    running = asyncio.create_task(bench.pruner.run())
    await eventually("it goes on", lambda: len(bench.store.asked) >= 3 and not failures)
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_store_that_another_scheduler_has_ends_it(bench: Bench) -> None:
    bench.store.answers = [TermSuperseded("term 2 has the store")]
    bench.pruner.settings_changed(changed("retention"))
    with pytest.raises(TermSuperseded, match="term 2"):
        await asyncio.wait_for(bench.pruner.run(), 30)
