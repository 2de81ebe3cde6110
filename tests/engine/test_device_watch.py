"""WatchDevices: all devices, then those that changed; together, shared, and only the newest of each for the slow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from gpufleet.v1 import scheduler_pb2

from gpufleet.telemetry.spans import OFF
from scheduler.api.fleet import device_watch
from scheduler.api.fleet.device_board import DeviceBoard, NodeShown
from scheduler.api.fleet.device_watch import DeviceReader
from scheduler.engine import PASS_INTERVAL, Changes
from scheduler.links import Links
from scheduler.state.events import DrainRequested, ForgetRequested, NodeBeat
from scheduler.state.ids import DeviceUuid, NodeName
from scheduler.state.nodes import DeviceSample
from scheduler.state.units import GB, SECOND
from scheduler.watching import ChangeHub
from tests.core.fleet import spec
from tests.engine.harness import ALICE, DEADLINE_SECONDS, Harness

Message = scheduler_pb2.WatchDevicesResponse
INTERVAL = 0.01


class Watched(Harness):
    """An engine whose devices are watched."""

    def __init__(self) -> None:
        super().__init__()
        self.hub = ChangeHub(self.store.term)
        self.engine._publish = self._publish
        self.links = Links(OFF)
        self.board = DeviceBoard(self.engine, self.hub, self.links)

    def _publish(self, changes: Changes) -> None:
        self.hub.publish(changes)

    def watch(self, *nodes: str, interval: float = INTERVAL) -> aclosing[Reader]:
        reader = DeviceReader(self.engine, self.board, frozenset(map(NodeName, nodes)))
        return aclosing(Reader(reader.messages(interval)))

    async def read(self, node: str, *loads: int) -> None:
        """The node beats, with these loads of its devices by index."""
        name = NodeName(node)
        samples = tuple(
            DeviceSample(
                uuid=device.uuid,
                taken_at=self.clock.now(),
                utilization_percent=load,
                memory_free_bytes=device.memory_bytes,
                told=b"\x18" + bytes([load]),
            )
            for device, load in zip(self.decided.nodes[name].info.devices, loads, strict=False)
        )
        stream = self.engine.view.live.nodes[name].stream
        await self.engine.report(NodeBeat(at=self.clock.now(), node=name, stream=stream, samples=samples))
        self.links.beaten(name)


class Reader:
    """Takes messages one by one; what it does not take waits."""

    def __init__(self, messages: AsyncIterator[Message]) -> None:
        self._messages: Any = messages

    async def next(self) -> Message:
        async with asyncio.timeout(DEADLINE_SECONDS):
            message: Message = await anext(self._messages)
            return message

    async def until(self, is_it: Callable[[Message], bool]) -> Message:
        """The next message that is so; those before it are dropped."""
        while not is_it(message := await self.next()):
            pass
        return message

    async def aclose(self) -> None:
        await self._messages.aclose()


def loads(message: Message) -> list[tuple[str, int, int]]:
    """Node, index and load of each device."""
    return [(each.node, each.device.index, each.sample.utilization_percent) for each in message.devices]


async def test_all_devices_come_first_and_then_only_those_that_changed() -> None:
    watched = Watched()
    async with watched.running():
        await watched.join("n2", gpus=1)
        await watched.join("n1", gpus=2)
        await watched.read("n1", 10, 20)
        async with watched.watch() as reader:
            first = await reader.next()
            assert first.is_whole and first.HasField("view_time")
            assert loads(first) == [("n1", 0, 10), ("n1", 1, 20), ("n2", 0, 0)]
            await watched.read("n1", 10, 21)
            second = await reader.next()
            assert not second.is_whole and loads(second) == [("n1", 1, 21)]


async def test_who_holds_a_device_is_told_with_the_commit_and_without_a_beat() -> None:
    watched = Watched()
    async with watched.running():
        node = await watched.join(gpus=2)
        async with watched.watch() as reader:
            await reader.next()
            watched.clock.advance(PASS_INTERVAL)
            job = await watched.submit(spec(gpus=1))
            held = await reader.next()
            assert [(each.job_id, each.user, each.is_free) for each in held.devices] == [(job, "alice", False)]
            await watched.started(node, job)
            await watched.exited(node, job)
            await watched.synced(job)
            freed = await reader.next()
            assert [(each.job_id, each.user, each.is_free) for each in freed.devices] == [(0, "", True)]


async def test_a_beat_that_says_nothing_new_is_told_to_nobody_until_the_sign_of_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_watch, "KEEPALIVE_SECONDS", 0.05)
    watched = Watched()
    async with watched.running():
        await watched.join(gpus=1)
        await watched.read("n1", 10)
        async with watched.watch() as reader:
            await reader.next()
            watched.clock.advance(SECOND)
            await watched.read("n1", 10)
            alive = await reader.next()
            assert not alive.devices and not alive.removed_uuids and alive.HasField("view_time")


async def test_a_node_that_falls_silent_has_its_readings_told_as_old_and_as_new_when_it_is_back() -> None:
    watched = Watched()
    async with watched.running():
        await watched.join(gpus=1)
        await watched.read("n1", 10)
        async with watched.watch() as reader:
            assert (await reader.next()).devices[0].is_free
            watched.clock.advance(7 * SECOND)
            watched.engine._last_tick = watched.clock.now()
            await watched.poke()
            silent = await reader.next()
            assert silent.devices[0].sample.age.seconds == 7 and not silent.devices[0].is_free
            await watched.read("n1", 10)
            back = await reader.until(lambda message: message.devices[0].is_free)
            assert back.devices[0].sample.age.seconds == 0


async def test_a_slow_reader_gets_the_newest_of_each_device_and_nothing_piles_up() -> None:
    watched = Watched()
    async with watched.running():
        await watched.join(gpus=2)
        async with watched.watch() as reader:
            await reader.next()
            for load in range(1, 60):
                await watched.read("n1", load, 7)
            assert loads(await reader.next()) == [("n1", 0, 59), ("n1", 1, 7)]


async def test_a_node_is_made_once_for_all_who_watch_and_by_nobody_when_nobody_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched()
    made: list[NodeName] = []
    make = DeviceBoard._made

    def counted(board: DeviceBoard, name: NodeName, before: NodeShown) -> NodeShown:
        made.append(name)
        return make(board, name, before)

    monkeypatch.setattr(DeviceBoard, "_made", counted)
    async with watched.running():
        await watched.join(gpus=1)
        await watched.read("n1", 1)
        assert not made and not watched.links.beat_listeners and not watched.hub.node_listeners
        async with watched.watch() as one, watched.watch() as other, watched.watch() as third:
            for reader in (one, other, third):
                assert loads(await reader.next()) == [("n1", 0, 1)]
            assert len(made) == 1
            await watched.read("n1", 2)
            for reader in (one, other, third):
                assert loads(await reader.next()) == [("n1", 0, 2)]
            assert len(made) == 2
        assert not watched.links.beat_listeners and not watched.hub.node_listeners


async def test_devices_of_a_node_that_is_forgotten_are_named_as_gone() -> None:
    watched = Watched()
    async with watched.running():
        await watched.join("n1", gpus=1)
        await watched.join("n2", gpus=1)
        async with watched.watch() as reader:
            await reader.next()
            watched.engine.view.live.nodes[NodeName("n1")].is_connected = False
            await watched.engine.request(ForgetRequested(at=watched.clock.now(), by=ALICE, node=NodeName("n1")))
            message = await reader.until(lambda message: bool(message.removed_uuids))
            assert list(message.removed_uuids) == [DeviceUuid("n1-gpu0")]
            await watched.join("n1", gpus=1)
            again = await reader.until(lambda message: bool(message.devices) and message.devices[0].node == "n1")
            assert again.devices[0].device.memory_bytes == 80 * GB


async def test_devices_whose_machine_has_another_name_now_are_still_there() -> None:
    watched = Watched()
    async with watched.running():
        await watched.join("n1", gpus=1)
        await watched.join("n2", gpus=1)
        shown = watched.engine.view.durable.nodes
        moved = replace(shown[NodeName("n2")].info, devices=shown[NodeName("n1")].info.devices)
        for state in (watched.view, watched.decided):
            state.nodes[NodeName("n2")] = replace(shown[NodeName("n2")], info=moved)
        async with watched.watch() as reader:
            assert [(each.node, each.device.uuid) for each in (await reader.next()).devices] == [
                ("n1", "n1-gpu0"),
                ("n2", "n1-gpu0"),
            ]
            watched.engine.view.live.nodes[NodeName("n1")].is_connected = False
            await watched.engine.request(ForgetRequested(at=watched.clock.now(), by=ALICE, node=NodeName("n1")))
            message = await reader.until(lambda message: bool(message.removed_uuids))
            assert [each.node for each in message.devices] == ["n2"]


async def test_who_asks_for_some_nodes_hears_of_no_other() -> None:
    watched = Watched()
    async with watched.running():
        for name in ("n1", "n2"):
            await watched.join(name, gpus=1)
        async with watched.watch("n2") as reader:
            assert [each.node for each in (await reader.next()).devices] == ["n2"]
            await watched.read("n1", 1)
            await watched.engine.request(
                DrainRequested(at=watched.clock.now(), by=ALICE, node=NodeName("n1"), is_draining=True, reason="")
            )
            await watched.read("n2", 2)
            assert loads(await reader.next()) == [("n2", 0, 2)]


async def test_many_devices_come_as_several_messages_of_which_the_first_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_watch, "DEVICES_PER_MESSAGE", 2)
    watched = Watched()
    async with watched.running():
        for name in ("n1", "n2", "n3"):
            await watched.join(name, gpus=2)
        async with watched.watch(interval=60) as reader:
            messages = [await reader.next() for _ in range(3)]
            assert [message.is_whole for message in messages] == [True, False, False]
            assert [message.has_more for message in messages] == [True, True, False]
            assert [len(message.devices) for message in messages] == [2, 2, 2]
            await watched.read("n1", 1, 2)
        async with watched.watch(interval=60) as cut:
            assert (await cut.next()).has_more
        async with watched.watch("n1", interval=60) as again:
            whole = await again.next()
            assert (whole.is_whole, whole.has_more, loads(whole)) == (True, False, [("n1", 0, 1), ("n1", 1, 2)])
