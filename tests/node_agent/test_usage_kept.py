"""What attempts use, over a restart of the agent in the middle of a job: it goes on, and the gap counts for nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.devices.device import DeviceSample
from gpufleet.devices.kept_tallies import copy_of, from_json, to_json
from gpufleet.devices.tally import COUNTERS, AttemptTally, DeviceTally, Point, ProcessTally, Series, Tally, TreeReading
from gpufleet.jobs.runs import RankKey
from node_agent.usage import UsageRecords, note_of
from tests.e2e.processes import until
from tests.node_agent.test_usage import ONE, SECOND_US, TWO, Bench, Source, ended, view


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@asynccontextmanager
async def ticking(bench: Bench) -> AsyncIterator[None]:
    """It reads at each tick; leaving is as sudden as a kill."""
    task = asyncio.create_task(bench.usages.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def kept(bench: Bench, folder: Path, key: RankKey, loads: list[int], at_us: int) -> None:
    """Read these at that time, and return once they are written down."""

    def count() -> int:
        found = UsageRecords(folder).read(key)
        return 0 if found is None else found.sample_count

    before = count()
    bench.now_us = at_us
    bench.source.ready = {"a": loads}
    await until("what was read is written down", lambda: count() == before + len(loads))


async def test_a_killed_agent_is_followed_by_one_that_goes_on_with_the_figures(tmp_path: Path) -> None:
    devices = {device.uuid: device for device in Source().list()}
    first = Bench(tmp_path)
    first.usages.expect(ONE, ["a"])
    first.usages.see(view(ONE))
    async with ticking(first):
        await kept(first, tmp_path, ONE, [10, 90], 5 * SECOND_US)
        await kept(first, tmp_path, ONE, [3], 20 * SECOND_US)
    second = Bench(tmp_path)
    second.usages.adopt([view(ONE)])
    second.now_us = 100 * SECOND_US
    second.usages.see(view(ONE, note=note_of(["a"], devices)))
    assert second.loads(ONE) == [(3, 90, 3)]  # and no sample of the time in between
    second.source.ready = {"a": [40]}
    second.now_us = 101 * SECOND_US
    second.usages.take_beat()
    second.now_us = 110 * SECOND_US
    second.usages.see(ended(ONE, second.now_us))
    usage = second.usages.of(ONE)
    assert usage is not None and (usage.sample_count, usage.devices[0].idle_count) == (4, 1)
    assert usage.duration.ToSeconds() == 110 and usage.processes.cpu_seconds == 5.0
    series = usage.devices[0].series
    assert (list(series.offset_ms), list(series.utilization_percent)) == ([5000, 20000, 101000], [50, 3, 40])
    second.usages.forget(ONE)
    assert names(tmp_path) == []


async def test_an_end_that_the_killed_agent_did_not_live_to_see_keeps_what_it_had_read(tmp_path: Path) -> None:
    first = Bench(tmp_path)
    first.usages.expect(ONE, ["a"])
    first.usages.see(view(ONE))
    async with ticking(first):
        await kept(first, tmp_path, ONE, [10, 90], 5 * SECOND_US)
    second = Bench(tmp_path)
    second.usages.see(ended(ONE, 9 * SECOND_US))
    usage = second.usages.of(ONE)
    assert usage is not None and (usage.sample_count, usage.duration.ToSeconds()) == (2, 9)


async def test_an_agent_that_leaves_in_order_loses_nothing(tmp_path: Path) -> None:
    first = Bench(tmp_path)
    first.usages.expect(ONE, ["a"])
    first.usages.see(view(ONE))
    first.source.ready = {"a": [10]}
    first.usages.close()
    second = Bench(tmp_path)
    second.usages.see(view(ONE))
    assert second.loads(ONE) == [(10, 10, 1)]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: text.replace('"version":1', '"version":99'),
        lambda text: text.replace('"count":1', '"count":Infinity'),
        lambda text: text.replace('"devices":{', '"devices":{"b":null,'),
    ],
)
async def test_a_torn_file_is_none_and_the_figures_count_from_now_on(
    tmp_path: Path, damage: Callable[[str], str]
) -> None:
    first = Bench(tmp_path)
    first.usages.expect(ONE, ["a"])
    first.usages.see(view(ONE))
    first.source.ready = {"a": [10]}
    first.usages.close()
    file = tmp_path / ONE.name
    whole = file.read_text()
    file.write_text(damage(whole))
    assert file.read_text() != whole
    second = Bench(tmp_path)
    second.usages.see(view(ONE, note=note_of(["a"], {device.uuid: device for device in second.source.list()})))
    assert second.loads(ONE) == []
    second.source.ready = {"a": [20]}
    second.usages.take_beat()
    assert second.loads(ONE) == [(20, 20, 1)]


async def test_what_no_keeper_knows_and_what_was_never_finished_is_deleted(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for name in (ONE.name, TWO.name, f"{ONE.name}.new"):
        (tmp_path / name).write_text("{}")
    bench.usages.adopt([view(ONE)])
    assert names(tmp_path) == [ONE.name]


async def test_sums_are_written_at_a_bounded_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[RankKey, int]] = []
    bench = Bench(tmp_path)
    monkeypatch.setattr(UsageRecords, "write", lambda self, key, tally: written.append((key, bench.now_us)))
    for key in (ONE, TWO):
        bench.usages.expect(key, [])
        bench.usages.see(view(key))
    async with ticking(bench):
        for seconds in range(25):
            bench.now_us = seconds * SECOND_US
            ticks = len(bench.read)
            await until("it is read again", lambda ticks=ticks: len(bench.read) >= ticks + 4)
    assert [(key, at_us // SECOND_US) for key, at_us in written] == [
        (key, seconds) for seconds in (0, 10, 20) for key in (ONE, TWO)
    ]


async def test_a_folder_that_cannot_be_written_costs_no_job_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "usages").write_text("a file, not a folder")
    bench = Bench(tmp_path / "usages")
    bench.usages.expect(ONE, [])
    bench.usages.see(view(ONE))
    async with ticking(bench):
        await until("its processes are read", lambda: bench.usages.of(ONE))
        bench.now_us = 60 * SECOND_US
        ticks = len(bench.read)
        await until("they are read again", lambda: len(bench.read) > ticks + 2)
    bench.usages.forget(ONE)
    assert [record.message for record in caplog.records if "not kept" in record.message] == [caplog.records[0].message]


READ = st.floats(min_value=0, max_value=2**60, allow_nan=False)
TALLIES = st.builds(Tally, st.integers(0, 10**9), READ, READ, READ, READ)


@given(st.dictionaries(st.sampled_from(COUNTERS), TALLIES), st.none() | READ, st.lists(st.none() | READ, max_size=9))
def test_every_tally_comes_back(counters: dict[str, Tally], energy_mj: float | None, means: list[float | None]) -> None:
    device = DeviceTally(count=7, idle_count=1, energy_mj=energy_mj, memory_total_bytes=9, counters=counters)
    device.throttle_reasons["hw_slowdown"] = None
    rounded = [None if mean is None else round(mean, 3) for mean in means]
    points = [Point(number, 1, (mean, None, 1.0, 2.0)) for number, mean in enumerate(rounded)]
    processes = ProcessTally(cpu_seconds=2.5, read_bytes=None, write_bytes=4, cpu_percent=Tally(1, 2, 2, 2, 2))
    tally = AttemptTally(
        begun_us=5,
        devices={"a": device},
        series={"a": Series(points)} if points else {},
        processes=processes,
        sampling_us=250_000,
    )
    assert from_json(json.loads(json.dumps(to_json(tally)))) == tally
    copy = copy_of(tally)
    assert copy == tally
    device.take(DeviceSample(uuid="a", utilization_percent=3, throttle_reasons=("hw_thermal_slowdown",)))
    processes.take(TreeReading(cpu_seconds=9.0, memory_bytes=7), 1.0)
    tally.series.setdefault("a", Series()).points.append(Point(99, 1, (None, None, None, None)))
    assert from_json(to_json(copy)) == copy != tally
    assert copy.devices["a"].count == 7 and "hw_thermal_slowdown" not in copy.devices["a"].throttle_reasons
    assert copy.processes.memory_bytes.count == 0 and len(copy.series.get("a", Series()).points) == len(means)
