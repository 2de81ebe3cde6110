"""Waiting for room: who waits is told by what changes, and asks nothing again."""

import asyncio
import time
from collections.abc import AsyncIterator

from ..engine import Engine
from ..links import Links
from ..policy.capacity import Capacity, capacity
from ..state.ids import NodeName
from ..state.jobs import Job
from ..watching import ChangeHub

LOOK_SECONDS_MIN = 0.1
REST_FACTOR = 20
"""Between two looks, however much changes; of many nodes, so many times as long as a look takes."""
LOOK_SECONDS_MAX = 2.0
"""What time alone changes (a device that was left out for a moment) is seen within this."""


async def until_available(
    engine: Engine, changes: ChangeHub, links: Links, job: Job, wait_seconds: float
) -> AsyncIterator[Capacity]:
    """Whether a job would start now; then each answer that differs, until it would, or the wait is over.

    The last answer after a wait in vain comes in any case.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_seconds
    has_beaten = asyncio.Event()

    def beaten(name: NodeName) -> None:
        has_beaten.set()

    told = capacity(engine.view, job, engine.now())
    yield told
    if told.is_available or wait_seconds <= 0:
        return
    watcher = changes.join()
    links.beat_listeners.add(beaten)
    try:
        rest_seconds = LOOK_SECONDS_MIN
        while loop.time() < deadline:
            await asyncio.sleep(min(rest_seconds, deadline - loop.time()))
            until = max(0.0, min(LOOK_SECONDS_MAX, deadline - loop.time()))
            await _first_of(watcher.wakeup, has_beaten, until)
            watcher.begin_anew()
            watcher.must_resync = False
            watcher.wakeup.clear()
            has_beaten.clear()
            began = time.perf_counter()
            found = capacity(engine.view, job, engine.now())
            rest_seconds = max(LOOK_SECONDS_MIN, REST_FACTOR * (time.perf_counter() - began))
            if found != told or loop.time() >= deadline:
                told = found
                yield told
            if told.is_available:
                return
    finally:
        changes.leave(watcher)
        links.beat_listeners.discard(beaten)


async def _first_of(one: asyncio.Event, other: asyncio.Event, timeout_seconds: float) -> None:
    """Wait until one of two is set, or the time is over."""
    waits = [asyncio.ensure_future(event.wait()) for event in (one, other)]
    try:
        await asyncio.wait(waits, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
