"""Output is synced after a while, or once there is enough of it, or at the end of a stream: whichever comes first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from scheduler import output_hub
from scheduler.output_hub import SYNC_BYTES, OutputHub
from scheduler.state.attempts import OutputStream
from scheduler.state.ids import JobId, RankKey

KEY = RankKey(JobId(1), 1, 0)
NEVER_SECONDS = 1e6
CHUNK_BYTES = 256 * 1024
WAIT_SECONDS_MAX = 60.0


class CountedStore:
    """An output store that remembers no bytes: how far it was written, and how far it was synced."""

    def __init__(self) -> None:
        self.end = 0
        self.synced_to: list[int] = []

    def append(self, key: RankKey, stream: OutputStream, offset: int, data: bytes) -> int:
        assert offset == self.end
        self.end += len(data)
        return self.end

    def sync(self) -> list[tuple[RankKey, OutputStream, int]]:
        self.synced_to.append(self.end)
        return [(KEY, OutputStream.STDOUT, self.end)]

    def close(self) -> None:
        pass


class Bench:
    """A hub that runs over such a store, and what its listeners heard."""

    def __init__(self) -> None:
        self.store = CountedStore()
        self.hub = OutputHub(self.store, lambda key, ends: None)  # type: ignore[arg-type]
        self.heard: asyncio.Queue[int] = asyncio.Queue()
        self.hub.synced_listeners.add(lambda risen: self.heard.put_nowait(risen[0][2]))

    async def append(self, count: int, *, is_end: bool = False) -> None:
        await self.hub.append([(KEY, OutputStream.STDOUT, self.store.end, bytes(count), is_end)])

    async def turns(self) -> None:
        """Let everything happen that waits for no clock: the hub's one thread answers in the order it was asked."""
        for _ in range(5):
            await self.hub.on_thread(lambda: None)
            await asyncio.sleep(0)

    async def next_synced(self) -> int:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            return await self.heard.get()


@asynccontextmanager
async def running() -> AsyncIterator[Bench]:
    bench = Bench()
    task = asyncio.create_task(bench.hub.run())
    try:
        yield bench
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        bench.hub.close()


def test_the_numbers_are_those_of_the_rule() -> None:
    assert (output_hub.SYNC_SECONDS, SYNC_BYTES) == (0.1, 4 * 1024 * 1024)


async def test_a_little_output_waits_for_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_hub, "SYNC_SECONDS", NEVER_SECONDS)
    async with running() as bench:
        await bench.append(SYNC_BYTES - 1)
        await bench.turns()
        assert not bench.store.synced_to


async def test_after_the_interval_it_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_hub, "SYNC_SECONDS", 0.0)
    async with running() as bench:
        await bench.append(1)
        assert await bench.next_synced() == 1


async def test_enough_output_is_synced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_hub, "SYNC_SECONDS", NEVER_SECONDS)
    async with running() as bench:
        for _ in range(SYNC_BYTES // CHUNK_BYTES - 1):
            await bench.append(CHUNK_BYTES)
        await bench.turns()
        assert not bench.store.synced_to
        await bench.append(CHUNK_BYTES)
        assert await bench.next_synced() == SYNC_BYTES
        await bench.append(1)
        await bench.turns()
        assert bench.store.synced_to == [SYNC_BYTES], "the count begins anew"


async def test_the_end_of_a_stream_is_synced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_hub, "SYNC_SECONDS", NEVER_SECONDS)
    async with running() as bench:
        await bench.append(5, is_end=True)
        assert await bench.next_synced() == 5
