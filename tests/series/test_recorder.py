"""What is recorded and told without a server: bounds, trouble with the file, and what goes away with its node."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.errors import GpufleetError, Reason
from scheduler.series import queries as desks
from scheduler.series import recorder
from scheduler.series.accounts import BUCKET_SPAN, UsageSpan, bucket_of
from scheduler.series.file import Accounted
from scheduler.series.history_file import FILE
from scheduler.series.queries import History, HistoryQueries
from scheduler.series.reading import Retention
from scheduler.series.recorder import DeviceReading, Recorder
from scheduler.state.ids import DeviceUuid, NodeName
from scheduler.state.nodes import Device, Node, NodeInfo
from scheduler.state.specs import Band
from scheduler.state.state import State
from scheduler.state.units import DAY, HOUR, MINUTE, SECOND, Instant, Span, after
from tests.e2e.processes import until
from tests.engine.fakes import FakeStore
from tests.series.test_courses import T0, readings

BEGIN = Instant(T0 * SECOND)


class Stage:
    """A recorder and a desk over nodes that a test makes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.view = State()
        self.at = BEGIN
        self.recorder = Recorder(self.view, FakeStore(), lambda: self.at, lambda: DAY, folder)
        self.desk = HistoryQueries(self.recorder, folder, lambda: Retention(tens=DAY, fives=Span(90 * DAY)))

    def add_node(self, name: str, devices: int = 1, *, first: int = 0) -> None:
        held = tuple(
            Device(uuid=DeviceUuid(f"{name}-{index}"), index=index, name="H200", memory_bytes=100)
            for index in range(first, first + devices)
        )
        self.view.durable.nodes[NodeName(name)] = Node(
            name=NodeName(name),
            agent_id="a",
            incarnation=1,
            boot_id="b",
            info=NodeInfo(devices=held),
            registered_at=BEGIN,
        )

    def beat(self, name: str, device: int = 0, load: float = 50.0, seconds: int = 2) -> None:
        """A beat that ends now."""
        end = self.at // SECOND
        told = DeviceReading(DeviceUuid(f"{name}-{device}"), end - seconds, end, readings(load))
        self.recorder.take_beat(NodeName(name), [told])

    def beats(self, name: str, seconds: int) -> None:
        for _ in range(0, seconds, 2):
            self.at = after(self.at, 2 * SECOND)
            self.beat(name)

    async def told(self, name: str = "", points: int = 600, **asked: Any) -> History:
        begin = asked.pop("begin", BEGIN)
        asked = {"by_node": False} | asked
        return await self.desk.devices(NodeName(name), None, begin, after(self.at, SECOND), points, **asked)

    def close(self) -> None:
        self.desk.close()
        self.recorder.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.close()


def known(told: History) -> list[int]:
    """How many steps of each course have something."""
    return [sum(step is not None for step in each) for _, each in told.told]


async def test_a_node_that_nobody_knows_leaves_no_trace(stage: Stage) -> None:
    stage.add_node("n1")
    stage.beat("n2")
    stage.beat("n1", device=7)
    assert known(await stage.told()) == [0]
    assert [key.uuid for key in stage.recorder.courses] == ["n1-0"]


async def test_with_many_devices_the_steps_are_longer(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desks, "ANSWER_POINTS_MAX", 60)
    monkeypatch.setattr(desks, "COPIED_AT_ONCE", 2)
    for number in range(6):
        stage.add_node(f"n{number}")
        stage.beat(f"n{number}")
    stage.at = after(stage.at, 100 * SECOND)
    told = await stage.told()
    assert told.step == 20 * SECOND
    assert [len(each) for _, each in told.told] == [6] * 6
    assert (await stage.told("n1")).step == 2 * SECOND


async def test_so_many_devices_have_a_history_and_others_none_which_is_told_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder, "COURSES_MAX", 3)
    for number in range(5):
        stage.add_node(f"n{number}")
        stage.beat(f"n{number}")
        stage.beat(f"n{number}")
    assert len(stage.recorder.courses) == 3
    assert len([each for each in caplog.records if "no more histories" in each.message]) == 1


async def test_on_trouble_with_the_file_what_is_in_memory_is_told_and_the_rest_waits_within_bounds(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(rows: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    caplog.set_level("INFO")
    monkeypatch.setattr(recorder, "ROWS_WAITING_MAX", 3)
    stage.add_node("n1")
    with monkeypatch.context() as trouble:
        trouble.setattr(stage.recorder.file, "write_points", refuse)
        for _ in range(4):
            stage.beats("n1", 600)
            await stage.recorder.write()
        assert len(stage.recorder._rows) == 3
        told = await stage.told("n1", begin=after(stage.at, -5 * MINUTE))
        assert known(told) == [300]
    await stage.recorder.write()
    assert not stage.recorder._rows
    lines = [each.message for each in caplog.records if "stored" in each.message]
    assert lines == ["histories are not stored now", "histories are stored again"]


async def test_what_a_node_did_is_told_also_when_it_is_gone(stage: Stage) -> None:
    stage.add_node("n1", devices=2)
    stage.beats("n1", 700)
    del stage.view.durable.nodes[NodeName("n1")]
    assert await stage.recorder.prune(BEGIN, BEGIN) == 0
    assert not stage.recorder.courses and not stage.recorder.facts
    await stage.recorder.write()
    told = await stage.told("n1")
    assert [facts.key.uuid for facts, _ in told.told] == ["n1-0"]
    assert known(told) == [70]
    # It comes again, with another device in the place of the first.
    stage.add_node("n1", first=1)
    stage.beat("n1", device=1)
    assert [facts.index for facts, _ in (await stage.told("n1")).told] == [0, 1]


async def test_points_are_dropped_by_age(stage: Stage) -> None:
    stage.add_node("n1")
    stage.beats("n1", 3600)
    await stage.recorder.write()
    assert await stage.recorder.prune(after(stage.at, -10 * MINUTE), BEGIN) > 0
    begin = after(stage.at, -2 * DAY)  # so long ago that points of 5 min are told
    assert known(await stage.told("n1", begin=begin)) == [12]


async def test_more_reads_than_may_be_are_refused(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desks, "READS_MAX", 2)
    stage.add_node("n1")
    stage.beats("n1", 2)
    asked = await asyncio.gather(*(stage.told("n1") for _ in range(8)), return_exceptions=True)
    refused = [each for each in asked if isinstance(each, GpufleetError)]
    assert refused and len(refused) < 8
    assert {each.reason for each in refused} == {Reason.HISTORY_UNAVAILABLE}
    assert known(await stage.told("n1")) == [2]


async def test_usage_is_not_told_before_it_is_complete(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desks, "COMPLETE_SECONDS_MAX", 0.05)
    span = UsageSpan(bucket_of(BEGIN), after(bucket_of(BEGIN), BUCKET_SPAN), BUCKET_SPAN)
    with pytest.raises(GpufleetError, match="still being counted") as caught:
        await stage.desk.usage(lambda: list, span, "user", "")
    assert caught.value.reason is Reason.HISTORY_UNAVAILABLE
    await stage.recorder.write()
    found, known_since = await stage.desk.usage(lambda: list, span, "user", "")
    assert (found, known_since) == ({}, BEGIN)
    # A file that was lost is not taken for one in which nothing was used.
    stage.recorder.ledger._accounted = Accounted(17, BEGIN, "")
    with pytest.raises(GpufleetError, match="filled anew"):
        await stage.desk.usage(lambda: list, span, "user", "")


async def test_the_queue_is_told_band_by_band_while_the_recorder_runs(stage: Stage) -> None:
    stage.recorder._waits[Band.HIGH] = [0.5, 2.5]
    running = asyncio.create_task(stage.recorder.run())

    async def bands() -> History:
        return await stage.desk.bands(after(BEGIN, -HOUR), after(BEGIN, HOUR), 600)

    async def is_told() -> bool:
        return bool((await bands()).told)

    try:
        await until("the queue is recorded", is_told)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    ((facts, told),) = (await bands()).told
    assert facts.name == "high"
    (step,) = [each for each in told if each is not None]
    assert step == ((0, 0, 0), (0, 0, 0), (0.5, 2.5, 1.5))
    assert (stage.folder / FILE).exists()
