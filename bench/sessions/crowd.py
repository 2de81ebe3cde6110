"""Lines: what thousands who wait cost, and how soon somebody whose worker is killed hears of it.

Scheduler, gateway and workers run as a user starts them; the people are WebSockets of this process.
"""

import asyncio
import itertools
import os
import signal
import time
from contextlib import suppress

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from ..measures import cpu_seconds
from ..rows import Row, Run
from .people import Person, Stage, person

WAITING = 5_000
AT_ONCE = 50
SPAN_S = 20.0
"""How long the crowd is watched: four rounds of news."""

PING_S = 5.0
"""A page pings as often."""

PING_SLICES = 50
NEAR_THE_FRONT = 20
CHANGE_S = 1.0
"""So often somebody leaves and somebody comes, so that everybody has news in each round of it."""

ADDRESSES = 100
"""The crowd comes from so many addresses, as a crowd does; a gateway takes only so many of one."""

KILLS = 5


class Crowd:
    """People who wait and do nothing else: read what they are told, and ping."""

    def __init__(self, gateway: str, model: str) -> None:
        self._gateway = gateway
        self._model = model
        self._numbers = itertools.count()
        self._people: list[Person] = []
        self._reading: list[asyncio.Task[None]] = []
        self.told = 0

    async def come(self) -> None:
        """One more, at the end of the line."""
        number = next(self._numbers) % ADDRESSES
        address = (f"127.0.1.{number + 1}", 0)
        socket = await connect(
            f"ws://{self._gateway}/ws", compression=None, proxy=None, local_addr=address, max_queue=None
        )
        ann = Person(socket)
        await ann.join(self._model)
        self._people.append(ann)
        self._reading.append(asyncio.create_task(self._read(ann)))

    async def _read(self, ann: Person) -> None:
        with suppress(ConnectionClosed):
            async for text in ann.socket:
                self.told += isinstance(text, str) and '"place"' in text
        if ann in self._people:  # who has had a turn is gone
            self._people.remove(ann)

    async def ping(self) -> None:
        """As pages do, each at its time, for ever."""
        begin = time.perf_counter()
        for tick in itertools.count(1):
            for ann in self._people[tick % PING_SLICES :: PING_SLICES]:
                with suppress(ConnectionClosed):
                    await ann.say(type="ping", number=tick)
            await asyncio.sleep(max(0.0, begin + tick * PING_S / PING_SLICES - time.perf_counter()))

    async def change(self, seconds: float) -> None:
        """Now and then somebody near the front leaves, and another one comes."""
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            gone = self._people.pop(NEAR_THE_FRONT)
            with suppress(ConnectionClosed):
                await gone.say(type="leave")
            await self.come()
            await asyncio.sleep(CHANGE_S)

    async def leave(self) -> None:
        """All of them."""
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        for ann in self._people:
            ann.socket.transport.abort()


async def waiting_percent(stage: Stage, scheduler_pid: int, model: str) -> tuple[float, float, float]:
    """What the scheduler and the gateway take of a core while so many wait, and the news a second that people get."""
    crowd = Crowd(stage.gateway, model)
    pinging = asyncio.create_task(crowd.ping())
    for _ in range(WAITING // AT_ONCE):
        await asyncio.gather(*(crowd.come() for _ in range(AT_ONCE)))
    await crowd.change(PING_S)
    pids = (scheduler_pid, stage.gateway_pid)
    before, told, begin = [cpu_seconds(pid) for pid in pids], crowd.told, time.perf_counter()
    await crowd.change(SPAN_S)
    seconds = time.perf_counter() - begin
    scheduler, gateway = ((cpu_seconds(pid) - was) / seconds * 100 for pid, was in zip(pids, before, strict=True))
    told = crowd.told - told
    pinging.cancel()
    await crowd.leave()
    return scheduler, gateway, told / seconds


async def killed_ms(stage: Stage, model: str, count: int) -> tuple[list[float], list[float]]:
    """From the kill of a worker to the news of it, and to the turn on another one that has a free seat."""
    told: list[float] = []
    seated: list[float] = []
    for _ in range(count):
        with stage.worker(model, seats=1) as pid:
            ann = await person(stage.gateway)
            await ann.turn(model)
            with stage.worker(model, seats=1):
                begin = time.perf_counter()
                os.kill(pid, signal.SIGKILL)
                while (await ann.text("notice"))["reason"] != "WORKER_LOST":
                    pass
                told.append((time.perf_counter() - begin) * 1e3)
                await ann.text("turn")
                seated.append((time.perf_counter() - begin) * 1e3)
                await ann.leave()
    return told, seated


async def _measure(run: Run) -> list[Row]:
    with Stage(run.folder / "crowd").running() as stage:
        told, seated = await killed_ms(stage, "killed", KILLS)
        rows = [
            Row("worker killed -9 to its person told and in front, slowest", max(told), "ms"),
            Row("worker killed -9 to its person's turn on a free seat, slowest", max(seated), "ms"),
        ]
        with stage.worker("line", seats=1):
            holder = await person(stage.gateway)
            await holder.turn("line")
            scheduler, gateway, news = await waiting_percent(stage, stage.scheduler_pid, "line")
            await holder.socket.close()
    name = f"{WAITING:,} people waiting, {news:,.0f} news/s"
    rows += [Row(f"{name}: scheduler", scheduler, "% of a core"), Row(f"{name}: gateway", gateway, "% of a core")]
    return [*rows, Row(f"{name}: both", scheduler + gateway, "% of a core")]


def measure(run: Run) -> list[Row]:
    """The rows of the group `sessions`."""
    return asyncio.run(_measure(run))
