"""The simulated network: streams that keep their order, are late, stall, and break with what was under way lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.simulation.world import World

TICK_SECONDS = 1e-6
"""Messages of one stream arrive at least this far apart, so that their order is kept."""


class Pipe:
    """One direction of a stream."""

    def __init__(self, world: World, deliver: Callable[[Any], None]) -> None:
        self._world = world
        self._deliver = deliver
        self._last_arrival = 0.0
        self._waiting: list[Any] = []
        self.is_stalled = False
        self.is_cut = False

    def send(self, message: Any) -> None:
        if self.is_cut:
            return
        if self.is_stalled:
            self._waiting.append(message)
            return
        arrival = self._world.now + self._world.network.delay()
        self._last_arrival = max(arrival, self._last_arrival + TICK_SECONDS)
        self._world.at(self._last_arrival, self._arrive, message)

    def _arrive(self, message: Any) -> None:
        if not self.is_cut:
            self._deliver(message)

    def stall(self) -> None:
        self.is_stalled = True

    def go_on(self) -> None:
        """What waited arrives late, in order."""
        self.is_stalled = False
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            self.send(message)

    def cut(self) -> None:
        """What is under way is lost."""
        self.is_cut = True
        self._waiting.clear()


END = object()


class Call:
    """A stream of one agent to the scheduler, as both ends see it. Each end learns of a break in its own time."""

    def __init__(self, world: World, node: str, on_message: Callable[[Any], None], on_end: Callable[[], None]) -> None:
        self._world = world
        self.node = node
        self.token = ""
        """Of a worker that the fleet started: the one of its launch."""
        self.requests: asyncio.Queue[Any] = asyncio.Queue()
        self.up = Pipe(world, self.requests.put_nowait)
        self.down = Pipe(world, self._at_agent)
        self._on_message = on_message
        self._on_end = on_end
        self._agent_has_left = False
        self.server_has_left = False

    # --- the agent's end

    def send(self, message: Any) -> None:
        self.up.send(message)

    def done_writing(self) -> None:
        """The agent has no more to say, and listens."""
        self.up.send(END)

    def _at_agent(self, message: Any) -> None:
        if self._agent_has_left:
            return
        if message is END:
            self._end_at_agent()
        else:
            self._on_message(message)

    def _end_at_agent(self) -> None:
        if not self._agent_has_left:
            self._agent_has_left = True
            self._on_end()

    def hang_up(self) -> None:
        """The agent leaves, or dies: what it sent before may still arrive, or be lost with a suffix."""
        self._agent_has_left = True
        self.down.cut()
        if self._world.network.chance(0.5):
            self.up.cut()
            self._world.after(self._world.network.notice_seconds(soon=0.4), self._end_at_server)
        else:
            self.up.send(END)

    # --- the scheduler's end

    def __aiter__(self) -> Call:
        return self

    async def __anext__(self) -> Any:
        message = await self.requests.get()
        if message is END:
            raise StopAsyncIteration
        return message

    def _end_at_server(self) -> None:
        if not self.server_has_left:
            self.requests.put_nowait(END)

    def server_ends(self) -> None:
        """The servicer's method returned: the agent sees the end behind what was sent before."""
        if not self.server_has_left:
            self.server_has_left = True
            self.up.cut()
            self.down.send(END)

    # --- the network

    def break_(self) -> None:
        """The connection is gone; either end notices after a while of its own."""
        self.up.cut()
        self.down.cut()
        self._world.after(self._world.network.notice_seconds(), self._end_at_agent)
        self._world.after(self._world.network.notice_seconds(soon=0.4), self._end_at_server)


class Network:
    """Delays, stalls and partitions."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng("network")
        self.calls: dict[str, list[Call]] = {}
        self.cut_off: set[str] = set()
        self.is_healed = False

    def chance(self, probability: float) -> bool:
        return not self.is_healed and self._rng.random() < probability

    def delay(self) -> float:
        """Mostly a millisecond, sometimes much more."""
        roll = self._rng.random()
        if roll < 0.97 or self.is_healed:
            return 0.0002 + roll * 0.003
        return self._rng.uniform(0.05, 3.0)

    def notice_seconds(self, *, soon: float = 0.8) -> float:
        """How long an end takes to see that the other is gone; `soon` is the chance that it is told at once."""
        return self._rng.uniform(0.0, 0.05) if self._rng.random() < soon else self._rng.uniform(0.5, 20.0)

    def is_reachable(self, node: str) -> bool:
        return node not in self.cut_off

    def open(self, call: Call) -> None:
        calls = self.calls.setdefault(call.node, [])
        calls[:] = [each for each in calls if not (each.up.is_cut and each.down.is_cut)]
        calls.append(call)

    def break_streams(self, node: str) -> None:
        for call in self.calls.pop(node, []):
            call.break_()

    def cut_off_node(self, node: str, seconds: float) -> None:
        """Nothing gets through, or nothing in one direction; later it all goes on, or turns out to be broken."""
        if node in self.cut_off:
            return
        self.cut_off.add(node)
        way = self._rng.choice(("both", "both", "up", "down", "down"))
        for call in self.calls.get(node, []):
            if way != "down":
                call.up.stall()
            if way != "up":
                call.down.stall()
        self._world.after(seconds, self.reconnect, node)

    def reconnect(self, node: str) -> None:
        if node not in self.cut_off:
            return
        self.cut_off.discard(node)
        if self._rng.random() < 0.2:
            self.break_streams(node)
        for call in self.calls.get(node, []):
            call.up.go_on()
            call.down.go_on()

    def heal(self) -> None:
        """From now on everything arrives, soon."""
        self.is_healed = True
        for node in sorted(self.cut_off):
            self.reconnect(node)
