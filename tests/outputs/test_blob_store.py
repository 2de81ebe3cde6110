"""Files that people upload: whole or not there, each one's for their own jobs, whatever is cut, wrong or full."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from gpufleet.errors import GpufleetError, Reason
from gpufleet.host.whole_file import sync_path
from scheduler.blobs import store as store_module
from scheduler.blobs.backends import folder as folder_module
from scheduler.blobs.store import USED_GRAIN_SECONDS, BlobLimits, BlobStore
from scheduler.state.ids import UserName
from tests.outputs.conftest import BlobClock, BlobPlaces

ANN, BOB = UserName("ann"), UserName("bob")
DATA = b"0123456789" * 1_000
DIGEST = hashlib.sha256(DATA).hexdigest()


def upload(store: BlobStore, user: UserName, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    store.write(user, digest, 0, data)
    assert store.finish(user, digest, len(data)) == len(data)
    return digest


def content_of(store: BlobStore, user: UserName, digest: str) -> bytes:
    reader = store.open(user, digest)
    assert reader is not None
    with closing(reader):
        assert reader.read(reader.size, 10) == b""
        return reader.read(0, 10) + reader.read(10, reader.size)


def reason(act: Callable[[], object]) -> Reason:
    with pytest.raises(GpufleetError) as caught:
        act()
    return caught.value.reason


def test_a_file_is_there_for_its_user_alone_and_after_a_restart(blobs: BlobPlaces) -> None:
    upload(blobs.open(), ANN, DATA)
    store = blobs.open()
    assert (store.size_of(ANN, DIGEST), store.size_of(BOB, DIGEST)) == (len(DATA), None)
    assert store.stored_bytes(BOB, DIGEST) == 0
    assert store.open(BOB, DIGEST) is None


@pytest.mark.parametrize("restarts", [False, True])
def test_an_upload_that_was_cut_goes_on_where_it_stood(blobs: BlobPlaces, restarts: bool) -> None:
    store = blobs.open()
    store.write(ANN, DIGEST, 0, DATA[:4_000])
    assert store.finish(ANN, DIGEST, len(DATA)) == 4_000
    assert store.size_of(ANN, DIGEST) is None
    store = blobs.open() if restarts else store
    assert store.stored_bytes(ANN, DIGEST) == 4_000
    assert reason(lambda: store.write(ANN, DIGEST, 4_001, DATA[4_001:])) is Reason.OFFSET_OUT_OF_RANGE
    store.write(ANN, DIGEST, 3_000, DATA[3_000:])
    assert store.finish(ANN, DIGEST, len(DATA)) == len(DATA)
    assert content_of(blobs.open(), ANN, DIGEST) == DATA


@pytest.mark.parametrize("restarts", [False, True])
def test_other_bytes_than_were_said_are_not_kept(blobs: BlobPlaces, restarts: bool) -> None:
    store = blobs.open()
    store.write(ANN, DIGEST, 0, b"x" + DATA[1:])
    store = blobs.open() if restarts else store
    assert reason(lambda: store.finish(ANN, DIGEST, len(DATA))) is Reason.DIGEST_MISMATCH
    assert store.stored_bytes(ANN, DIGEST) == 0
    assert not blobs.names()
    assert not list((blobs.data / "ann").iterdir())
    upload(store, ANN, DATA)


def test_of_files_that_came_together_the_wrong_one_is_dropped_and_all_others_are_stored(blobs: BlobPlaces) -> None:
    store = blobs.open()
    files = {hashlib.sha256(each).hexdigest(): each for each in (b"one", b"two")}
    for digest, data in files.items():
        store.write(ANN, digest, 0, data)
    store.write(ANN, DIGEST, 0, b"wrong")
    with pytest.raises(GpufleetError) as caught:
        store.finish_all(ANN, {DIGEST: 5, **{digest: len(data) for digest, data in files.items()}})
    assert (caught.value.reason, caught.value.metadata) == (Reason.DIGEST_MISMATCH, {"digest": DIGEST})
    assert [blobs.open().size_of(ANN, each) for each in (*files, DIGEST)] == [3, 3, None]


def test_a_file_is_whole_only_once_its_name_is_on_the_disk(blobs: BlobPlaces, monkeypatch: pytest.MonkeyPatch) -> None:
    store = blobs.open()

    def broken(path: Path) -> None:
        if path.name == "ann":
            raise OSError(errno.EIO, "Input/output error")
        sync_path(path)

    for module in (store_module, folder_module):
        monkeypatch.setattr(module, "sync_path", broken)
    store.write(ANN, DIGEST, 0, DATA)
    assert reason(lambda: store.finish(ANN, DIGEST, len(DATA))) is Reason.STORE_UNAVAILABLE
    assert (store.size_of(ANN, DIGEST), store.stored_bytes(ANN, DIGEST)) == (None, len(DATA))
    store.keep([(ANN, DIGEST)])
    monkeypatch.undo()
    assert store.write(ANN, DIGEST, len(DATA), b"") == len(DATA)
    assert store.finish(ANN, DIGEST, len(DATA)) == len(DATA)
    assert store.size_of(ANN, DIGEST) == len(DATA)


def test_when_a_file_was_needed_is_known_to_the_minute_after_a_restart(
    blobs: BlobPlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = blobs.open()
    digest = upload(store, ANN, b"a")
    for _ in range(3):
        monkeypatch.setattr(BlobClock, "now", BlobClock.now + USED_GRAIN_SECONDS / 2 + 1)
        store.keep([(ANN, digest)])
    assert blobs.open().prune(2 * USED_GRAIN_SECONDS, ()) == 0
    if blobs.kind == "bucket":
        return  # objects cannot tell: all of them count as needed when the scheduler started
    root = blobs.folder if blobs.kind == "folder" else blobs.data
    noted = (root / "ann" / digest).stat().st_mtime
    assert BlobClock.now - USED_GRAIN_SECONDS <= noted < BlobClock.now


def test_an_empty_file_is_a_file(blobs: BlobPlaces) -> None:
    store = blobs.open()
    assert store.size_of(ANN, upload(store, ANN, b"")) == 0


def test_a_user_has_so_many_bytes_and_files_and_others_have_theirs(blobs: BlobPlaces) -> None:
    store = blobs.open()
    assert reason(lambda: store.check_room(ANN, DIGEST, 100_001)) is Reason.FILE_TOO_LARGE
    upload(store, ANN, b"a" * 100_000)
    upload(store, ANN, b"b" * 90_000)
    assert reason(lambda: store.check_room(ANN, DIGEST, len(DATA) + 1)) is Reason.QUOTA_EXCEEDED
    assert reason(lambda: store.write(ANN, DIGEST, 0, DATA + b"x")) is Reason.QUOTA_EXCEEDED
    store.check_room(BOB, DIGEST, 100_000)
    upload(store, ANN, b"c")
    assert reason(lambda: store.check_room(ANN, DIGEST, 1)) is Reason.QUOTA_EXCEEDED


def test_a_disk_that_is_nearly_full_takes_no_more_and_keeps_what_is_there(blobs: BlobPlaces) -> None:
    upload(blobs.open(), ANN, b"a")
    full = BlobLimits(file_bytes=100_000, user_bytes=200_000, user_files=3, free_bytes=2**62)
    store = blobs.open(full)
    assert reason(lambda: store.check_room(ANN, DIGEST, 10)) is Reason.STORE_UNAVAILABLE
    assert reason(lambda: store.write(ANN, DIGEST, 0, DATA)) is Reason.STORE_UNAVAILABLE
    assert (store.stored_bytes(ANN, DIGEST), store.size_of(ANN, hashlib.sha256(b"a").hexdigest())) == (0, 1)


def test_what_no_job_needs_goes_and_what_one_needs_stays(blobs: BlobPlaces, monkeypatch: pytest.MonkeyPatch) -> None:
    store = blobs.open()
    needed, unused, lately = (upload(store, ANN, data) for data in (b"a", b"b", b"c"))
    store.keep([(ANN, needed), (ANN, unused), (ANN, lately)])
    monkeypatch.setattr(BlobClock, "now", BlobClock.now + 100.0)
    store.keep([(ANN, lately)])
    assert store.prune(60.0, {(ANN, needed)}) == 1
    assert [store.size_of(ANN, each) for each in (needed, unused, lately)] == [1, None, 1]
    assert blobs.names() == sorted(f"ann/{each}" for each in (needed, lately))
    store.check_room(ANN, DIGEST, 1)  # its place is free
