"""Output on its way: appended in order, synced in batches, announced when durable, handed to followers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from scheduler import output_hub
from scheduler.output_hub import FOLLOWER_BYTES, SYNC_BYTES, OutputFollower, OutputHub
from scheduler.outputs.errors import OutputHole, OutputStoreUnavailable
from scheduler.outputs.files import FileShelf
from scheduler.outputs.layout import OutputLimits
from scheduler.outputs.segmented import SegmentedOutputStore
from scheduler.state.attempts import OutputEnd, OutputStream
from scheduler.state.ids import JobId, RankKey
from scheduler.store.errors import TermSuperseded
from tests.e2e.processes import until

OUT, ERR = OutputStream.STDOUT, OutputStream.STDERR
KEY = RankKey(JobId(7), 1, 0)
Ends = tuple[OutputEnd, ...]
BLOCKED_SECONDS_MAX = 120.0


class KnobbedStore(SegmentedOutputStore):
    """Output in files. While `may_sync` is not set a sync blocks; `errors` are raised by the next calls of a name."""

    def __init__(self, folder: Path) -> None:
        super().__init__(FileShelf(folder), OutputLimits())
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.errors: dict[str, list[Exception]] = {}
        self.syncs = 0

    def _meet(self, name: str) -> None:
        if waiting := self.errors.get(name):
            raise waiting.pop(0)

    def append(self, key: RankKey, stream: OutputStream, offset: int, data: bytes) -> int:
        self._meet("append")
        return super().append(key, stream, offset, data)

    def synced(self, key: RankKey, stream: OutputStream) -> int:
        self._meet("synced")
        return super().synced(key, stream)

    def sync(self) -> list[tuple[RankKey, OutputStream, int]]:
        assert self.may_sync.wait(BLOCKED_SECONDS_MAX)
        self._meet("sync")
        self.syncs += 1
        return super().sync()


class Bench:
    """A hub over such a store, and what it announced."""

    def __init__(self, folder: Path) -> None:
        self.store = KnobbedStore(folder)
        self.announced: list[tuple[RankKey, Ends]] = []
        self.hub = OutputHub(self.store, lambda key, ends: self.announced.append((key, ends)))
        self.running = asyncio.create_task(self.hub.run())

    async def append(self, offset: int, data: bytes, *, key: RankKey = KEY, is_end: bool = False) -> None:
        await self.hub.append([(key, OUT, offset, data, is_end)])

    async def all_calls_are_done(self) -> None:
        """What was handed to the store's thread before is done, and what follows from it on the loop."""
        await self.hub.on_thread(lambda: None)
        await asyncio.gather(*self.hub._checks)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Bench]:
    bench = Bench(folder)
    try:
        yield bench
    finally:
        bench.store.may_sync.set()
        bench.running.cancel()
        await asyncio.gather(bench.running, return_exceptions=True)
        bench.hub.close()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(tmp_path) as bench:
        yield bench


def ends(stdout: int, stderr: int = 0) -> Ends:
    return (OutputEnd(rank=0, stream=OUT, end_offset=stdout), OutputEnd(rank=0, stream=ERR, end_offset=stderr))


async def test_followers_see_bytes_before_they_are_synced_and_ends_are_announced_after(bench: Bench) -> None:
    bench.store.may_sync.clear()
    mine, of_another = bench.hub.follow(KEY.job), bench.hub.follow(JobId(8))
    appending = asyncio.create_task(bench.append(0, b"last words", is_end=True))
    await appending
    assert mine.take() == ([((KEY, OUT), 0, b"last words")], False)
    assert of_another.take() == ([], False)
    bench.hub.await_end(KEY, ends(10))
    await asyncio.sleep(0)
    assert bench.announced == []
    bench.store.may_sync.set()
    await until("the end is announced", lambda: bench.announced)
    assert bench.announced == [(KEY, ends(10))]
    assert bench.store.synced(KEY, OUT) == 10


async def test_an_end_is_announced_only_when_every_byte_below_it_has_come(bench: Bench) -> None:
    bench.hub.await_end(KEY, ends(6))
    await bench.append(0, b"abc", is_end=True)
    await until("the first half is synced", lambda: bench.store.syncs)
    await bench.all_calls_are_done()
    assert bench.announced == []
    await bench.append(3, b"def", is_end=True)
    await until("the end is announced", lambda: bench.announced)


async def test_where_more_is_stored_than_was_written_how_far_it_goes_is_announced(bench: Bench) -> None:
    await bench.append(0, b"abcdef", is_end=True)
    bench.hub.await_end(KEY, ends(3, 1))
    await until("it is synced", lambda: bench.store.syncs)
    await bench.all_calls_are_done()
    assert bench.announced == []
    await bench.hub.append([(KEY, ERR, 0, b"!", True)])
    await until("the end is announced", lambda: bench.announced)
    assert bench.announced == [(KEY, ends(6, 1))]


async def test_a_rank_without_output_has_its_end_at_once(bench: Bench) -> None:
    bench.hub.await_end(KEY, ends(0))
    assert bench.announced == [(KEY, ends(0))]


async def test_after_a_restart_an_end_that_is_stored_is_announced_without_a_new_byte(tmp_path: Path) -> None:
    async with opened(tmp_path) as before:
        await before.append(0, b"abc", is_end=True)
        await until("it is synced", lambda: before.store.syncs)
    async with opened(tmp_path) as bench:
        bench.hub.await_end(KEY, ends(3))
        await until("the end is announced", lambda: bench.announced)


async def test_nothing_is_announced_of_a_job_that_has_ended_otherwise(bench: Bench) -> None:
    bench.store.may_sync.clear()
    await bench.append(0, b"abc")
    bench.hub.await_end(KEY, ends(3))
    bench.hub.stop_awaiting(JobId(8))
    bench.hub.stop_awaiting(KEY.job)
    bench.store.may_sync.set()
    await bench.append(3, b"d", is_end=True)
    await until("it is synced", lambda: bench.store.synced(KEY, OUT) == 4)
    await bench.all_calls_are_done()
    assert bench.announced == []


async def test_nodes_are_told_what_is_synced(bench: Bench) -> None:
    told: list[tuple[RankKey, OutputStream, int]] = []
    bench.hub.synced_listeners.add(told.extend)
    await bench.append(0, b"abc", is_end=True)
    await until("it is told", lambda: told)
    assert told == [(KEY, OUT, 3)]


@pytest.mark.parametrize(
    ("data", "is_end"), [(b"the end", True), (b"x" * SYNC_BYTES, False)], ids=["end", "SYNC_BYTES"]
)
async def test_an_end_and_so_many_bytes_are_synced_without_the_pause(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, data: bytes, is_end: bool
) -> None:
    monkeypatch.setattr(output_hub, "SYNC_SECONDS", 10**6)
    await bench.append(0, data, is_end=is_end)
    await until("it is synced", lambda: bench.store.synced(KEY, OUT) == len(data))


async def test_a_follower_never_holds_more_than_the_bound_and_is_then_told_to_read_the_store() -> None:
    follower = OutputFollower()
    piece = b"x" * (FOLLOWER_BYTES // 4)
    for number in range(4):
        follower.put((KEY, OUT), number * len(piece), piece)
    assert follower.pending_bytes == FOLLOWER_BYTES and not follower.is_behind
    follower.put((KEY, OUT), FOLLOWER_BYTES, b"y")
    follower.put((KEY, OUT), FOLLOWER_BYTES + 1, b"z")
    assert (list(follower.pieces), follower.pending_bytes) == ([], 0)
    assert follower.wakeup.is_set()
    assert follower.take() == ([], True)
    assert not follower.wakeup.is_set()
    follower.put((KEY, OUT), FOLLOWER_BYTES + 2, b"and on")
    assert follower.take() == ([((KEY, OUT), FOLLOWER_BYTES + 2, b"and on")], False)


async def test_bytes_that_could_not_be_stored_reach_no_follower_and_the_error_is_told_until_it_is_over(
    bench: Bench,
) -> None:
    follower = bench.hub.follow(KEY.job)
    bench.store.errors["append"] = [OutputStoreUnavailable("the disk is full")]
    with pytest.raises(OutputStoreUnavailable):
        await bench.append(0, b"abc")
    assert follower.take() == ([], False)
    assert bench.hub.error == "the disk is full"
    await bench.append(0, b"abc", is_end=True)
    await until("it is over", lambda: not bench.hub.error)
    assert follower.take() == ([((KEY, OUT), 0, b"abc")], False)


async def test_a_sync_of_what_was_stored_before_does_not_hide_that_nothing_more_is_taken(bench: Bench) -> None:
    bench.store.may_sync.clear()
    await bench.append(0, b"abc", is_end=True)
    bench.store.errors["append"] = [OutputStoreUnavailable("the disk is full")]
    refused = asyncio.create_task(bench.append(3, b"def"))
    bench.store.may_sync.set()
    with pytest.raises(OutputStoreUnavailable):
        await refused
    syncs = bench.store.syncs
    bench.hub._sync_is_due.set()
    await until("it was synced again", lambda: bench.store.syncs > syncs)
    assert bench.hub.error == "the disk is full"
    await bench.append(3, b"def")
    assert bench.hub.error == ""


async def test_a_sync_that_fails_is_tried_again(bench: Bench) -> None:
    bench.store.errors["sync"] = [OutputStoreUnavailable("no space")] * 2
    bench.hub.await_end(KEY, ends(3))
    await bench.append(0, b"abc", is_end=True)
    await until("the end is announced", lambda: bench.announced)
    assert bench.hub.error == ""


async def test_a_hole_is_the_nodes_mistake_and_not_the_stores_trouble(bench: Bench) -> None:
    with pytest.raises(OutputHole):
        await bench.append(5, b"abc")
    assert bench.hub.error == ""


def at_a_sync(bench: Bench) -> asyncio.Task[None]:
    return asyncio.create_task(bench.append(0, b"abc", is_end=True))


def at_an_append(bench: Bench) -> asyncio.Task[None]:
    return asyncio.create_task(bench.append(0, b"abc"))


def at_a_look_at_an_end(bench: Bench) -> asyncio.Task[None]:
    bench.hub.await_end(KEY, ends(3))
    return asyncio.create_task(asyncio.sleep(0))


@pytest.mark.parametrize(
    ("name", "begin"), [("sync", at_a_sync), ("append", at_an_append), ("synced", at_a_look_at_an_end)]
)
async def test_a_store_that_another_scheduler_has_ends_the_hub_naming_it_whatever_found_it_out(
    bench: Bench, name: str, begin: Callable[[Bench], asyncio.Task[None]]
) -> None:
    bench.store.errors[name] = [TermSuperseded("another scheduler has opened the store in term 2")]
    begun = begin(bench)
    with pytest.raises(TermSuperseded, match="in term 2"):
        await asyncio.wait_for(bench.running, BLOCKED_SECONDS_MAX)
    await asyncio.gather(begun, return_exceptions=True)
    assert bench.announced == []


async def test_who_leaves_leaves_nothing_behind(bench: Bench) -> None:
    one, other = bench.hub.follow(KEY.job), bench.hub.follow(KEY.job)
    bench.hub.unfollow(KEY.job, one)
    bench.hub.unfollow(KEY.job, one)
    await bench.append(0, b"abc")
    assert one.take() == ([], False) and other.take()[0]
    bench.hub.unfollow(KEY.job, other)
    bench.hub.unfollow(JobId(8), other)
    assert bench.hub._followers == {}


async def test_a_call_for_soon_comes_after_those_that_wait(bench: Bench) -> None:
    done: list[str] = []
    bench.store.may_sync.clear()
    await bench.append(0, b"abc", is_end=True)
    waiting = asyncio.create_task(bench.hub.on_thread(lambda: done.append("waiting")))
    await asyncio.sleep(0)
    bench.hub.on_thread_soon(lambda: done.append("soon"))
    bench.store.may_sync.set()
    await waiting
    await bench.all_calls_are_done()
    assert done == ["waiting", "soon"]
