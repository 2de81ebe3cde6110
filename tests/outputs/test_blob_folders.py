"""What is in a folder is kept as long as a job needs the folder, and is dropped with it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from gpufleet.errors import GpufleetError, Reason
from gpufleet.jobs.folders import Entry, Folder, FolderChunk, ManifestError, manifest_of
from scheduler.blobs import folders
from scheduler.blobs.opening import chunks_of, folders_needed_by, left_by_jobs, needed_by
from scheduler.blobs.results import EMPTY_DIGEST, Stored
from scheduler.blobs.store import BlobLimits, BlobStore
from scheduler.state.durable import Durable, load
from scheduler.state.ids import JobId, RankKey
from scheduler.state.specs import InputFolder, JobInput
from tests.outputs.conftest import BlobClock, BlobPlaces
from tests.outputs.test_blob_store import ANN, BOB, upload
from tests.store.samples import job

PARTS = [b"one", b"two", b"one"]


def folder(parts: list[bytes] = PARTS) -> bytes:
    chunks = tuple(FolderChunk(hashlib.sha256(each).hexdigest(), len(each)) for each in parts)
    return manifest_of(Folder((Entry("a", size_bytes=sum(map(len, parts))),), chunks))


def jobs(*manifests: tuple[Any, bytes]) -> Durable:
    """What is durable, with a job for each of these."""
    found = []
    for number, (user, data) in enumerate(manifests, 1):
        given = InputFolder(
            digest=hashlib.sha256(data).hexdigest(), size_bytes=len(data), entry_count=1, content_bytes=9
        )
        one = job(number, user=user)
        found.append(replace(one, spec=replace(one.spec, folder=given)))
    return load(iter(found))


def test_what_is_in_a_folder_that_a_job_needs_is_never_dropped(
    blobs: BlobPlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = BlobLimits(file_bytes=100_000, user_bytes=200_000, user_files=10, free_bytes=0)
    store = blobs.open(limits)
    for user in (ANN, BOB):
        for data in (*PARTS[:2], folder(), b"of no folder"):
            upload(store, user, data)
    monkeypatch.setattr(BlobClock, "now", BlobClock.now + 1_000)
    durable = jobs((ANN, folder()), (ANN, b"a manifest that somebody removed"))
    needed = needed_by(durable) | set(chunks_of(store, folders_needed_by(durable)))
    assert store.prune(500, needed) == 5
    assert store.size_of(ANN, hashlib.sha256(b"two").hexdigest()) == 3
    monkeypatch.setattr(BlobClock, "now", BlobClock.now + 2_000)
    assert store.prune(500, needed_by(jobs())) == 3


def test_a_manifest_is_read_once_and_of_many_the_last_ones_are_known(
    blobs: BlobPlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = blobs.open(BlobLimits(file_bytes=100_000, user_bytes=200_000, user_files=10, free_bytes=0))
    monkeypatch.setattr(folders, "CHUNKS_KEPT_MAX", 5)
    first, second = upload(store, ANN, folder()), upload(store, ANN, folder([b"x", b"y"]))
    known = store.folders.contents(ANN, first)
    assert (known.entry_count, known.content_bytes, sorted(known.chunks.values())) == (1, 9, [3, 3])
    assert store.folders.contents(ANN, first) is known
    store.folders.contents(ANN, second)
    assert store.folders.contents(ANN, first) is not known
    with pytest.raises(GpufleetError) as caught:
        store.folders.contents(BOB, first)
    assert caught.value.reason is Reason.FILE_NOT_UPLOADED


def test_who_asks_for_one_file_after_another_has_the_manifest_read_once(
    blobs: BlobPlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand files of a job would else be as many times ten thousand entries that are read."""
    store = blobs.open(BlobLimits(file_bytes=100_000, user_bytes=200_000, user_files=10, free_bytes=0))
    monkeypatch.setattr(folders, "INDEXED_KEPT_MAX", 5)
    first, second = upload(store, ANN, folder()), upload(store, ANN, folder([b"x", b"y"]))
    known = store.folders.indexed(ANN, first)
    assert (known.entries["a"][0].size_bytes, known.entries["a"][1], known.chunk_begins) == (9, 0, (0, 3, 6))
    assert store.folders.indexed(ANN, first) is known
    store.folders.indexed(ANN, second)
    assert store.folders.indexed(ANN, first) is not known
    monkeypatch.setattr(folders, "INDEXED_KEPT_MAX", 2)
    assert store.folders.indexed(ANN, second) is not store.folders.indexed(ANN, second)
    with pytest.raises(GpufleetError) as caught:
        store.folders.indexed(BOB, first)
    assert caught.value.reason is Reason.FILE_NOT_UPLOADED


def test_a_chunk_of_two_sizes_is_refused(blobs: BlobPlaces) -> None:
    store = blobs.open()
    chunks = (FolderChunk("ab" * 32, 3), FolderChunk("ab" * 32, 4))
    digest = upload(store, ANN, manifest_of(Folder((Entry("a", size_bytes=7),), chunks)))
    with pytest.raises(ManifestError, match="two sizes"):
        store.folders.contents(ANN, digest)
    assert isinstance(store, BlobStore)


def test_what_a_job_left_is_kept_as_long_as_is_said_and_its_contents_with_it(blobs: BlobPlaces) -> None:
    now = [10.0**9]
    limits = BlobLimits(file_bytes=100_000, user_bytes=200_000, user_files=10, free_bytes=0)
    store = blobs.open(limits, wall_clock=lambda: now[0])
    for data in (*PARTS[:2], folder()):
        upload(store, ANN, data)
    key = RankKey(JobId(7), 1, 0, "0123456789abcdef")
    digest = hashlib.sha256(folder()).hexdigest()
    store.results.add(key, Stored(ANN, digest, ("one is a link",)))
    again = blobs.open(limits, wall_clock=lambda: now[0])
    assert again.results.of(key) == Stored(ANN, digest, ("one is a link",))
    assert again.results.of(RankKey(JobId(7), 1, 0)) is None
    (note,) = again.place.notes()
    written = note.at
    now[0] = written + 1_000
    assert again.results.prune(2_000) == 0
    left = left_by_jobs(again)
    assert again.prune(500, left | set(chunks_of(again, left))) == 0
    now[0] = written + 3_000
    assert again.results.prune(2_000) == 1
    left = left_by_jobs(again)
    assert not left
    assert again.prune(500, left) == 3
    assert again.results.of(key) is None


def test_what_a_waiting_job_is_given_is_kept_for_so_much_longer_and_no_more(blobs: BlobPlaces) -> None:
    now = [10.0**9]
    store = blobs.open(wall_clock=lambda: now[0])
    given, other = (RankKey(JobId(number), 1, 0, "0123456789abcdef") for number in (7, 8))
    for key in (given, other):
        store.results.add(key, Stored(ANN, EMPTY_DIGEST, ()))
    input_ = JobInput(job=JobId(5), pattern="*", item_count=2)  # of an array, whose second item is job 7
    now[0] = min(each.at for each in store.place.notes()) + 3_000
    assert store.results.prune(2_000, input_.names, needed_s=5_000) == 1
    assert (store.results.of(given) is not None, store.results.of(other)) == (True, None)
    now[0] += 5_000
    assert store.results.prune(2_000, input_.names, needed_s=5_000) == 1
