"""Files as a stream brings them: whole and durable at its end, in groups on the way, whatever is cut or wrong."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Mapping

import pytest

from gpufleet.errors import GpufleetError, Reason
from scheduler.blobs import receiving
from scheduler.blobs.receiving import Receiving
from scheduler.blobs.store import BlobLimits, BlobStore
from scheduler.state.ids import UserName
from tests.outputs.conftest import BlobPlaces

ANN = UserName("ann")
FILES = {hashlib.sha256(each).hexdigest(): each for each in (b"one", b"three", b"", b"seven")}


@pytest.fixture
def store(blobs: BlobPlaces) -> BlobStore:
    return blobs.open(BlobLimits(file_bytes=10_000, user_bytes=1_000_000, user_files=100, free_bytes=0))


async def receive(store: BlobStore, files: Mapping[str, bytes]) -> int:
    async with Receiving(store, ANN) as stream:
        for digest, data in files.items():
            await stream.begin(digest, len(data))
            for offset in range(0, len(data), 2):
                await stream.take(offset, data[offset : offset + 2])
            if not data:
                await stream.take(0, b"")
        return await stream.finish()


@pytest.mark.parametrize("files_max", [1, 2, 256])
async def test_all_files_of_a_stream_are_stored_at_its_end(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch, files_max: int
) -> None:
    monkeypatch.setattr(receiving, "GROUP_FILES_MAX", files_max)
    for _ in range(2):  # what is there already is passed over
        assert await receive(store, FILES) == 13
        assert [store.size_of(ANN, each) for each in FILES] == [3, 5, 0, 5]


async def test_a_group_is_synced_while_the_next_one_comes_and_never_two(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "GROUP_BYTES_MAX", 5)
    groups: list[list[str]] = []
    lock, finish_all = threading.Lock(), store.finish_all

    def alone(user: UserName, sizes: Mapping[str, int]) -> int:
        assert lock.acquire(blocking=False), "two groups are synced at the same time"
        try:
            groups.append(list(sizes))
            return finish_all(user, sizes)
        finally:
            lock.release()

    monkeypatch.setattr(store, "finish_all", alone)
    assert await receive(store, FILES) == 13
    one, three, empty, seven = FILES
    assert groups == [[one, three], [empty, seven]]


async def test_a_wrong_file_fails_its_stream_and_those_before_it_are_stored(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "GROUP_FILES_MAX", 1)
    wrong = hashlib.sha256(b"another").hexdigest()
    with pytest.raises(GpufleetError) as caught:
        await receive(store, {**FILES, wrong: b"wrong", hashlib.sha256(b"last").hexdigest(): b"last"})
    assert (caught.value.reason, caught.value.metadata) == (Reason.DIGEST_MISMATCH, {"digest": wrong})
    assert [store.size_of(ANN, each) for each in (*FILES, wrong)] == [3, 5, 0, 5, None]


async def test_a_file_that_is_too_large_is_refused_before_any_of_it_is_written(store: BlobStore) -> None:
    digest = hashlib.sha256(b"large").hexdigest()
    with pytest.raises(GpufleetError) as caught:
        async with Receiving(store, ANN) as stream:
            await stream.begin(digest, 10_001)
            await stream.take(0, b"large")
            await stream.finish()
    assert caught.value.reason is Reason.FILE_TOO_LARGE
    assert store.stored_bytes(ANN, digest) == 0


async def test_what_came_of_a_stream_that_was_cut_is_a_part_that_the_next_one_goes_on_with(store: BlobStore) -> None:
    (digest, data), *_ = FILES.items()

    async def cut() -> None:
        async with Receiving(store, ANN) as stream:
            await stream.begin(digest, len(data))
            await stream.take(0, data)
            await asyncio.Event().wait()

    cutting = asyncio.create_task(cut())
    async with asyncio.timeout(10):
        while store.stored_bytes(ANN, digest) < len(data):  # noqa: ASYNC110 - a thread writes it
            await asyncio.sleep(0)
    cutting.cancel()
    await asyncio.gather(cutting, return_exceptions=True)
    assert store.size_of(ANN, digest) is None
    async with Receiving(store, ANN) as stream:
        await stream.begin(digest, len(data))
        await stream.take(len(data), b"")
        assert await stream.finish() == len(data)
    assert store.size_of(ANN, digest) == len(data)
