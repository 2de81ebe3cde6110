"""Streams that bring files have so many places together, and one user a part of them; others wait in their order."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from gpufleet.errors import GpufleetError, Reason
from scheduler.blobs import upload_places
from scheduler.blobs.upload_places import UploadPlaces
from scheduler.state.ids import UserName

ANN, BOB, EVE = UserName("ann"), UserName("bob"), UserName("eve")


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_places, "PLACES", 4)
    monkeypatch.setattr(upload_places, "PLACES_OF_USER", 2)


class Streams:
    """Streams that begin in the order in which they come, and end when they are told to."""

    def __init__(self) -> None:
        self.places = UploadPlaces()
        self.began: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def comes(self, user: UserName, name: str) -> None:
        self._ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._bring(user, name))
        await asyncio.sleep(0)

    async def ends(self, name: str) -> None:
        self._ends[name].set()
        await self.tasks[name]
        await asyncio.sleep(0)

    async def _bring(self, user: UserName, name: str) -> None:
        async with self.places.one(user):
            self.began.append(name)
            await self._ends[name].wait()

    async def end(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


async def test_one_user_has_a_part_of_the_places_and_nobody_passes_who_could_go() -> None:
    async with AsyncExitStack() as ended:
        streams = Streams()
        ended.push_async_callback(streams.end)
        for name in ("a1", "a2", "a3"):
            await streams.comes(ANN, name)
        for user, name in ((BOB, "b1"), (BOB, "b2"), (EVE, "e1")):
            await streams.comes(user, name)
        await asyncio.sleep(0)
        assert streams.began == ["a1", "a2", "b1", "b2"]
        await streams.ends("b1")
        assert streams.began[4:] == ["e1"], "ann has her part already"
        await streams.ends("a2")
        assert streams.began[5:] == ["a3"]


async def test_who_leaves_while_waiting_takes_no_place() -> None:
    async with AsyncExitStack() as ended:
        streams = Streams()
        ended.push_async_callback(streams.end)
        for name in ("a1", "a2", "a3", "a4"):
            await streams.comes(ANN, name)
        streams.tasks["a3"].cancel()
        await asyncio.gather(streams.tasks["a3"], return_exceptions=True)
        await streams.ends("a1")
        assert streams.began == ["a1", "a2", "a4"]


async def test_who_waits_for_long_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_places, "WAIT_SECONDS_MAX", 0.01)
    places = UploadPlaces()
    async with places.one(ANN), places.one(ANN):
        with pytest.raises(GpufleetError, match="2 streams bring files, 2 of them yours") as caught:
            async with places.one(ANN):
                pass
        assert caught.value.reason is Reason.TOO_MANY_STREAMS
        async with places.one(BOB):
            pass
