"""A folder of a job on its node: checked again, fetched chunk by chunk, and nothing is written through anything."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest
from gpufleet.v1 import node_agent_pb2 as pb

from gpufleet.jobs.folders import Entry, EntryKind, Folder, FolderChunk, folder_of, manifest_of
from gpufleet.jobs.runs import JobId, RankKey
from node_agent.core.launch import InputFolder, Refusal, RefusalReason
from node_agent.files import file_cache
from node_agent.files.job_files import JobFiles
from tests.gpufleet_lib.hostile_manifests import BYTES, HOSTILE
from tests.node_agent.files.test_job_files import Call

KEY, OTHER = RankKey(JobId(7), 1, 0), RankKey(JobId(8), 1, 0)


class Stub:
    """A scheduler that has these blobs, and counts what was fetched."""

    def __init__(self, *blobs: bytes) -> None:
        self.blobs = {hashlib.sha256(each).hexdigest(): each for each in blobs}
        self.fetched: list[str] = []

    def FetchBlob(self, request: pb.FetchBlobRequest) -> Call:
        self.fetched.append(request.digest)
        return Call(self.blobs[request.digest], request.offset)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_cache, "RETRY_SECONDS_MIN", 0.0)


def asked(manifest: bytes, entries: int, content: int) -> InputFolder:
    digest = hashlib.sha256(manifest).hexdigest()
    return InputFolder(digest=digest, size_bytes=len(manifest), entry_count=entries, content_bytes=content)


async def laid_out(files: JobFiles, stub: Stub, folder: InputFolder, key: RankKey = KEY) -> Refusal | None:
    holding = asyncio.create_task(files.hold(stub))  # type: ignore[arg-type]
    try:
        return await files.lay_out(key, (), folder)
    finally:
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)


def chunk(data: bytes) -> FolderChunk:
    return FolderChunk(hashlib.sha256(data).hexdigest(), len(data))


PARTS = (b"ab" + b"cde", b"fgh", b"fgh", b"i")
FOLDER = Folder(
    (
        Entry("a", size_bytes=2),
        Entry("b/large", size_bytes=9, is_executable=True),
        Entry("b/last", size_bytes=1),
        Entry("empty", size_bytes=0),
        Entry("l", EntryKind.LINK, target="b"),
        Entry("out", EntryKind.EMPTY_FOLDER),
    ),
    tuple(map(chunk, PARTS)),
)
MANIFEST = manifest_of(FOLDER)


def seen(folder: Path) -> dict[str, Any]:
    """What lies there: a file's bytes, a link's target, None for a folder."""
    found: dict[str, Any] = {}
    for path in folder.rglob("*"):
        what = str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[path.relative_to(folder).as_posix()] = what
    return found


async def test_a_folder_is_laid_out_from_its_chunks_and_each_rank_has_its_own(tmp_path: Path) -> None:
    files, stub = JobFiles("n1", 1, tmp_path, lambda: 10**6), Stub(MANIFEST, *PARTS)
    folder = asked(MANIFEST, 6, 12)
    assert await laid_out(files, stub, folder) is None
    whole = {"a": b"ab", "b": None, "b/large": b"cdefghfgh", "b/last": b"i", "empty": b"", "l": "b", "out": None}
    assert seen(files.folder_of(KEY)) == whole
    assert (files.folder_of(KEY) / "b/large").stat().st_mode & 0o777 == 0o700
    assert (files.folder_of(KEY) / "a").stat().st_mode & 0o777 == 0o600
    assert len(stub.fetched) == len(set(stub.fetched)) == 4  # a chunk that is there twice comes once
    (files.folder_of(KEY) / "b/large").write_bytes(b"changed")
    assert await laid_out(files, stub, folder, OTHER) is None
    assert seen(files.folder_of(OTHER)) == whole
    assert len(stub.fetched) == 4


async def test_what_was_not_used_for_longest_gives_way_and_no_rank_misses_it(tmp_path: Path) -> None:
    files, stub = JobFiles("n1", 1, tmp_path, lambda: 0), Stub(MANIFEST, *PARTS)
    for key in (KEY, OTHER):
        assert await laid_out(files, stub, asked(MANIFEST, 6, 12), key) is None
        assert not list((tmp_path / "cache").iterdir())
    assert seen(files.folder_of(KEY)) == seen(files.folder_of(OTHER))


async def test_several_ranks_of_one_folder_wait_for_each_chunk_together(tmp_path: Path) -> None:
    files, stub = JobFiles("n1", 1, tmp_path, lambda: 10**6), Stub(MANIFEST, *PARTS)
    keys = [RankKey(JobId(number), 1, 0) for number in range(1, 9)]
    holding = asyncio.create_task(files.hold(stub))  # type: ignore[arg-type]
    done = await asyncio.gather(*(files.lay_out(key, (), asked(MANIFEST, 6, 12)) for key in keys))
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)
    assert done == [None] * 8
    assert len(stub.fetched) == 4
    assert all(seen(files.folder_of(key)) == seen(files.folder_of(keys[0])) for key in keys)


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_manifest_is_refused_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    data, _ = HOSTILE[name]
    files = JobFiles("n1", 1, tmp_path / "files", lambda: 10**9)
    monster = asked(data, 1, 4)
    refusal = await laid_out(files, Whole(data, BYTES), monster)
    assert refusal is not None
    assert refusal.reason is RefusalReason.BAD_REQUEST, refusal
    assert not seen(files.folder_of(KEY))
    assert {each.partition("/")[0] for each in seen(tmp_path)} == {"files"}


class Whole(Stub):
    """One that sends each blob in a single piece."""

    def FetchBlob(self, request: pb.FetchBlobRequest) -> Any:
        call = Call(b"", 0)
        data = self.blobs[request.digest][request.offset :]
        call._pieces = iter([pb.FetchBlobResponse(data=data, offset=request.offset)] if data else [])
        return call


async def test_a_manifest_that_says_otherwise_than_the_launch_is_refused(tmp_path: Path) -> None:
    files, stub = JobFiles("n1", 1, tmp_path, lambda: 10**6), Stub(MANIFEST, *PARTS)
    refusal = await laid_out(files, stub, asked(MANIFEST, 6, 11))
    assert refusal is not None
    assert "what the launch says" in refusal.detail
    assert folder_of(MANIFEST) == FOLDER
