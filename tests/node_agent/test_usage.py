"""What attempts use: sums that stay small and true, and to whom a reading counts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.devices.device import Device, DeviceSample, Vendor
from gpufleet.devices.process_tree import read_tree
from gpufleet.devices.tally import POINTS_MAX, DeviceTally, Meter, ProcessTally, Series, Tally, TreeReading
from gpufleet.devices.virtual import VIRTUAL_GPUS_MAX
from gpufleet.jobs.runs import ExitCode, JobId, RankKey
from node_agent.core.launch import NOTE_CHARS_MAX
from node_agent.core.outcome import AttemptEnd, AttemptPhase, AttemptView, Offsets
from node_agent.core.slots import noted_slot
from node_agent.origins import noted_origin
from node_agent.traces import noted
from node_agent.usage import UsageRecords, Usages, device_summary, note_of
from tests.e2e.processes import until
from tests.rings.choosing import examples

SECOND_US = 1_000_000
ONE = RankKey(JobId(1), 1, 0)
TWO = RankKey(JobId(2), 1, 0)


# --- tallies


@given(st.lists(st.lists(st.floats(0, 1e12))))
def test_summing_up_in_pieces_is_summing_up_at_once(pieces: list[list[float]]) -> None:
    whole, joined = Tally(), Tally()
    for piece in pieces:
        part = Tally()
        for value in piece:
            whole.take(value)
            part.take(value)
        joined.add(part)
    assert (joined.count, joined.low, joined.high, joined.last) == (whole.count, whole.low, whole.high, whole.last)
    assert joined.mean == pytest.approx(whole.mean)


def test_a_counter_that_the_device_lacks_is_absent_and_not_zero() -> None:
    tally = DeviceTally()
    tally.take(DeviceSample(uuid="a", utilization_percent=3))
    summary = device_summary(tally)
    assert summary.utilization_percent.max == 3
    assert not any(summary.HasField(name) for name in ("temperature_c", "power_mw", "memory_used_bytes"))
    assert tally.energy_mj is None and tally.idle_count == 1


def test_ten_thousand_readings_that_waited_are_one_small_message() -> None:
    tally = DeviceTally()
    for number in range(10_000):
        tally.take(DeviceSample(uuid="a", utilization_percent=number % 101, power_mw=100_000), seconds=1.0)
    summary = device_summary(tally)
    assert (summary.utilization_percent.count, summary.span.ToSeconds()) == (10_000, 10_000)
    assert summary.ByteSize() < 200


def test_energy_goes_by_the_devices_own_count_or_by_its_power() -> None:
    meter = Meter()
    steps = [(0.0, 500, None), (1.0, 700, None), (2.0, 100, None), (3.0, 150, None)]
    told = [meter.between(DeviceSample(uuid="a", energy_mj=energy, power_mw=power), at) for at, energy, power in steps]
    # The count fell: the driver was loaded anew, and nobody knows what was used meanwhile.
    assert told == [(0.0, 0.0), (200.0, 1.0), (0.0, 1.0), (50.0, 1.0)]
    meter = Meter()
    powers = [(0.0, 1000), (2.0, 1000), (100.0, 1000), (99.0, 1000)]
    told = [meter.between(DeviceSample(uuid="a", power_mw=power), at) for at, power in powers]
    # A long gap counts for ten seconds of it, and a clock that went back for nothing.
    assert told == [(0.0, 0.0), (2000.0, 2.0), (10_000.0, 98.0), (0.0, 0.0)]


def test_what_ended_processes_used_is_not_lost() -> None:
    tally = ProcessTally()
    for at, cpu, memory in ((0.0, 1.0, 100), (2.0, 4.0, 300), (4.0, 2.0, 50)):
        tally.take(TreeReading(cpu_seconds=cpu, memory_bytes=memory, read_bytes=int(cpu)), at)
    assert (tally.cpu_seconds, tally.memory_bytes.high, tally.read_bytes) == (4.0, 300, 4)
    assert (tally.cpu_percent.low, tally.cpu_percent.high) == (0.0, 150.0)


def test_a_clock_of_readings_that_goes_back_makes_no_load() -> None:
    tally = ProcessTally()
    for at in (10.0, 5.0, 5.0):
        tally.take(TreeReading(cpu_seconds=at, memory_bytes=1), at)
    assert tally.cpu_percent.count == 0


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(1, 3), st.integers(0, 100)), max_size=3000))
@settings(max_examples=examples(20))
def test_a_course_of_any_length_has_few_points_in_order_and_the_same_mean(steps: list[tuple[int, int, int]]) -> None:
    series, now_us, total, count = Series(), 0, 0, 0
    for step, readings, load in steps:
        now_us += step
        tally = DeviceTally()
        for _ in range(readings):
            tally.take(DeviceSample(uuid="a", utilization_percent=load))
        series.take(now_us, tally)
        total, count = total + readings * load, count + readings
    ends = [point.end_us for point in series.points]
    assert len(ends) <= POINTS_MAX and ends == sorted(ends)
    assert sum(point.count for point in series.points) == count
    loads = [(point.means[0] or 0.0) * point.count for point in series.points]
    assert sum(loads) == pytest.approx(total)
    assert all(point.means[1:] == (None, None, None) for point in series.points)


# --- to whom a reading counts


class Source:
    """Two devices, or these; what is put into `ready` is told once."""

    def __init__(self, uuids: Iterable[str] = "ab") -> None:
        self.uuids = list(uuids)
        self.ready: dict[str, list[int]] = {}

    def list(self) -> tuple[Device, ...]:
        return tuple(
            Device(uuid=uuid, index=index, name="GPU", memory_bytes=1, vendor=Vendor.NVIDIA)
            for index, uuid in enumerate(self.uuids)
        )

    def drain(self) -> dict[str, DeviceTally]:
        drained = {}
        for uuid, loads in self.ready.items():
            drained[uuid] = DeviceTally()
            for load in loads:
                drained[uuid].take(DeviceSample(uuid=uuid, utilization_percent=load))
        self.ready = {}
        return drained


class Bench:
    """Usages over a source and a clock that a test holds."""

    def __init__(self, folder: Path | None = None, uuids: Iterable[str] = "ab") -> None:
        self.source = Source(uuids)
        self.now_us = 0
        self.tick_seconds = 0.0
        self.often: list[float | None] = []
        self.read: list[int] = []
        self.tops: dict[RankKey, int | None] = {}
        self.usages = Usages(
            cast(Any, self.source),
            tick_seconds=lambda: self.tick_seconds,
            set_interval=self.often.append,
            read=self._read,
            top_of=lambda key, leader: self.tops.get(key, leader),
            clock_us=lambda: self.now_us,
            records=None if folder is None else UsageRecords(folder),
        )

    def _read(self, pid: int) -> TreeReading:
        self.read.append(pid)
        return TreeReading(cpu_seconds=1.0, memory_bytes=7)

    def loads(self, key: RankKey) -> list[tuple[float, float, int]]:
        """Least, most and count of the load of each device of a rank."""
        usage = self.usages.of(key)
        found = [] if usage is None else [each.utilization_percent for each in usage.devices]
        return [(each.min, each.max, each.count) for each in found]


def view(key: RankKey, **values: Any) -> AttemptView:
    return AttemptView(key=key, phase=AttemptPhase.RUNNING, keeper_id="k", directory="/", pid=1, started_us=0, **values)


def ended(key: RankKey, at_us: int) -> AttemptView:
    end = AttemptEnd(status=ExitCode(code=0), output_ends=Offsets(), started_us=0, ended_us=at_us, cpu_us=5 * SECOND_US)
    return replace(view(key), phase=AttemptPhase.ENDED, end=end)


async def test_a_reading_counts_for_who_held_the_device_when_it_was_made() -> None:
    bench = Bench()
    bench.source.ready = {"a": [99], "b": [98]}  # before anybody
    bench.usages.expect(ONE, ["a"])
    bench.usages.see(view(ONE))
    bench.source.ready = {"a": [10, 20], "b": [30]}
    bench.now_us = 3 * SECOND_US
    bench.usages.see(ended(ONE, bench.now_us))
    bench.source.ready = {"a": [97]}  # behind its end
    bench.usages.expect(TWO, ["a", "b"])
    assert bench.loads(ONE) == [(10, 20, 2)]
    assert bench.loads(TWO) == []
    usage = bench.usages.of(ONE)
    assert usage is not None and (usage.duration.ToSeconds(), usage.sample_count) == (3, 2)
    assert list(usage.devices[0].series.offset_ms) == [3000]
    assert list(usage.devices[0].series.utilization_percent) == [15]
    assert list(usage.devices[0].series.power_draw_w) == [-1]
    since, told = bench.usages.take_beat()
    # The beat has all of it, once; of the ranks only those that run and of which something is known.
    assert [tally.count for tally in since.values()] == [4, 2] and told == []
    assert bench.usages.take_beat() == ({}, [])


async def test_of_a_rank_in_a_container_what_is_below_its_first_process_is_read_and_before_that_nothing() -> None:
    bench = Bench()
    bench.usages.expect(ONE, [])
    bench.usages.expect(TWO, [])
    bench.usages.see(view(ONE))
    bench.usages.see(view(TWO))
    bench.tops = {ONE: None}
    running = asyncio.create_task(bench.usages.run())
    await until("the other was read", lambda: bench.read)
    assert set(bench.read) == {1} and bench.usages.of(ONE) is None
    bench.tops = {ONE: 42}
    await until("its first process was read", lambda: bench.usages.of(ONE))
    running.cancel()
    assert set(bench.read) == {1, 42}


async def test_devices_are_read_often_while_something_runs_and_processes_once_a_tick() -> None:
    bench = Bench()
    bench.usages.expect(ONE, [])
    bench.usages.see(view(ONE))
    ticking = asyncio.create_task(bench.usages.run())
    try:
        await until("its processes are read", lambda: bench.usages.of(ONE))
        usage = bench.usages.of(ONE)
        assert usage is not None and usage.processes.memory_bytes.max == 7 and usage.sample_count >= 1
        bench.usages.see(ended(ONE, SECOND_US))
        usage = bench.usages.of(ONE)
        assert usage is not None and usage.processes.cpu_seconds == 5.0
    finally:
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
    bench.usages.forget(ONE)
    assert bench.often == [0.0, None] and bench.usages.of(ONE) is None


async def test_the_job_that_wants_to_be_read_most_often_decides() -> None:
    bench = Bench()
    bench.tick_seconds = 1.0
    bench.usages.expect(ONE, ["a"], 5 * SECOND_US)
    bench.usages.expect(TWO, ["b"])
    bench.usages.forget(TWO)
    assert bench.often == [5.0, 1.0, 5.0]
    devices = {device.uuid: device for device in bench.source.list()}
    bench.usages.see(view(TWO, note=note_of(["b"], devices, SECOND_US // 4)))
    assert bench.often[-1] == bench.usages.interval_seconds == 0.25


async def test_a_new_start_of_the_agent_knows_the_devices_by_the_note_of_the_launch() -> None:
    bench = Bench()
    devices = {device.uuid: device for device in bench.source.list()}
    bench.usages.see(view(ONE, note=note_of(["b"], devices)))
    bench.source.ready = {"a": [50], "b": [60]}
    bench.usages.take_beat()
    assert bench.loads(ONE) == [(60, 60, 1)]
    bench.usages.see(ended(TWO, SECOND_US))  # it ended under the agent before this one
    assert bench.usages.of(TWO) is None


async def test_a_note_means_the_same_device_when_another_one_is_gone_and_the_indices_moved() -> None:
    before, after = Bench(), Bench(uuids="bc")
    note = note_of(["a", "b"], {device.uuid: device for device in before.source.list()}, SECOND_US // 4)
    after.tick_seconds = 1.0
    after.usages.see(view(ONE, note=note))
    after.source.ready = {"b": [60], "c": [70]}
    after.usages.take_beat()
    assert after.loads(ONE) == [(60, 60, 1)] and after.usages.interval_seconds == 0.25


async def test_the_note_of_an_agent_of_before_names_devices_by_index() -> None:
    bench = Bench()
    bench.tick_seconds = 1.0
    bench.usages.see(view(ONE, note="devices=1 sampling_us=250000 trace=00-0a-0b-01"))
    bench.source.ready = {"a": [50], "b": [60]}
    bench.usages.take_beat()
    assert bench.loads(ONE) == [(60, 60, 1)] and bench.usages.interval_seconds == 0.25


async def test_a_note_names_the_devices_also_where_it_names_an_origin_a_slot_and_a_trace() -> None:
    bench = Bench()
    devices = {device.uuid: device for device in bench.source.list()}
    slot = noted_slot(RankKey(JobId(5), 1, 0, "0123456789abcdef"))
    bench.usages.see(view(ONE, note=note_of(["b"], devices) + noted_origin("e30") + slot + noted("00-0a-0b-01")))
    bench.source.ready = {"a": [50], "b": [60]}
    bench.usages.take_beat()
    assert bench.loads(ONE) == [(60, 60, 1)]


async def test_a_note_of_more_devices_than_fit_names_them_by_index() -> None:
    bench = Bench(uuids=[f"VIRTUAL-{'n' * 120}-{index}" for index in range(VIRTUAL_GPUS_MAX)])
    devices = {device.uuid: device for device in bench.source.list()}
    note = note_of(devices, devices)
    assert len(note) < NOTE_CHARS_MAX
    bench.usages.see(view(ONE, note=note))
    bench.source.ready = {uuid: [50] for uuid in devices}
    bench.usages.take_beat()
    assert bench.loads(ONE) == [(50, 50, 1)] * VIRTUAL_GPUS_MAX


# --- trees of processes


def test_a_tree_of_real_processes_is_read() -> None:
    reading = read_tree(os.getpid())
    assert reading is not None and reading.memory_bytes > 1_000_000 and reading.process_count >= 1
    assert read_tree(2**22 + 1) is None


def test_a_tree_counts_all_below_and_a_circle_ends(tmp_path: Path) -> None:
    for pid, child in ((10, 11), (11, 10)):
        folder = tmp_path / str(pid) / "task" / str(pid)
        folder.mkdir(parents=True)
        (folder / "children").write_text(f"{child} ")
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) b) " + " ".join(["S", *["1"] * 30]))
    (tmp_path / "10" / "io").write_text("rchar: 1\nread_bytes: 4096\nwrite_bytes: 0\n")
    reading = read_tree(10, tmp_path)
    assert reading is not None and reading.process_count == 2
    assert (reading.read_bytes, reading.write_bytes) == (4096, 0)
