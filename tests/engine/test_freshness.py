"""Fresh samples: who is asked, which beat is an answer, and for how long it is waited for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpufleet.telemetry.spans import OFF
from scheduler.api.fleet import freshness
from scheduler.api.fleet.freshness import Freshness
from scheduler.links import AgentStream, Links
from scheduler.state.ids import DeviceUuid, NodeName
from scheduler.state.live import NodeLive
from scheduler.state.nodes import Device, DeviceSample, Node, NodeInfo
from scheduler.state.units import Instant

N1, N2 = NodeName("n1"), NodeName("n2")
ASKED_AT = Instant(100)


class World:
    """Two nodes of one device each; n1 is connected, and n2 is not."""

    def __init__(self) -> None:
        nodes = {name: node(name) for name in (N1, N2)}
        self.live = {name: NodeLive(heard_at=Instant(0)) for name in nodes}
        view = SimpleNamespace(live=SimpleNamespace(nodes=self.live), durable=SimpleNamespace(nodes=nodes))
        self.links = Links(OFF)
        self.connection = AgentStream(N1, 1, 1)
        self.links.join(self.connection)
        self.freshness = Freshness(cast(Any, SimpleNamespace(now=lambda: ASKED_AT, view=view)), self.links)

    def beat(self, taken_at: int) -> None:
        uuid = DeviceUuid("GPU-n1")
        self.live[N1].samples[uuid] = DeviceSample(uuid=uuid, taken_at=Instant(taken_at))
        self.links.beaten(N1)


def node(name: NodeName) -> Node:
    device = Device(uuid=DeviceUuid(f"GPU-{name}"), index=0, name="GPU", memory_bytes=1)
    info = NodeInfo(devices=(device,))
    return Node(name=name, agent_id="a", incarnation=1, boot_id="b", info=info, registered_at=Instant(0))


async def test_a_beat_with_older_readings_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freshness, "FRESH_SECONDS_MAX", 3600.0)
    world = World()
    waiting = asyncio.create_task(world.freshness.of([N1, N2]))
    (message,) = await world.connection.next_messages()
    assert message.WhichOneof("command") == "refresh_samples"
    world.beat(taken_at=99)
    await asyncio.sleep(0)
    assert not waiting.done()
    world.beat(taken_at=100)
    await waiting
    assert not world.links.beat_listeners


async def test_nobody_is_waited_for_who_is_not_connected() -> None:
    await World().freshness.of([N2])


async def test_a_node_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freshness, "FRESH_SECONDS_MAX", 0.01)
    world = World()
    await world.freshness.of([N1])
    assert not world.links.beat_listeners
