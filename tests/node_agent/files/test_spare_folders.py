"""Copies of folders that are made beforehand: each given to one job, made where it is worth it, never in the way."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpufleet.jobs.folders import Entry, Folder, manifest_of
from gpufleet.jobs.runs import JobId, RankKey
from node_agent.core.launch import InputFolder
from node_agent.files import spare_folders
from node_agent.files.job_files import JobFiles
from node_agent.files.job_folders import Cache, lay_out_folder
from node_agent.files.placing import FS_TOPDIR_FL, flags_of, place_apart_below
from tests.node_agent.files.test_job_folders import MANIFEST, PARTS, Stub, asked, chunk, seen

FOLDER = asked(MANIFEST, 6, 12)


def key(job: int) -> RankKey:
    return RankKey(JobId(job), 1, 0)


class Node:
    """One that lays folders out for job after job."""

    def __init__(self, files: JobFiles, data: Path) -> None:
        self.files = files
        self.data = data

    async def starts(self, job: int, folder: InputFolder = FOLDER, *, makes_spare: bool = True) -> Path:
        """The folder of a job, as it finds it."""
        assert await self.files.lay_out(key(job), (), folder) is None
        if makes_spare:
            await self.files.make_spare(key(job), folder)
        return self.files.folder_of(key(job))

    def spares(self) -> list[Path]:
        return list((self.data / "spares").glob("*"))


@asynccontextmanager
async def node_with(data: Path, *blobs: bytes, cache_bytes: int = 10**6) -> AsyncIterator[Node]:
    files = JobFiles("n1", 1, data, lambda: cache_bytes)
    holding = asyncio.create_task(files.hold(Stub(*blobs)))  # type: ignore[arg-type]
    try:
        yield Node(files, data)
    finally:
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with node_with(tmp_path, MANIFEST, *PARTS) as made:
        yield made


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """No copy is made beforehand until it is set."""
    opened = asyncio.Event()

    async def behind_the_gate(cache: Cache, key: RankKey, folder: InputFolder, place: Path) -> None:
        await opened.wait()
        await lay_out_folder(cache, key, folder, place)

    monkeypatch.setattr(spare_folders, "lay_out_folder", behind_the_gate)
    return opened


async def turns() -> None:
    """Let everything go as far as it can without a thread."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_from_its_second_job_on_a_folder_is_there_beforehand_and_each_job_has_its_own(node: Node) -> None:
    first = await node.starts(1)
    assert not node.spares()
    await node.starts(2)
    (spare,) = node.spares()
    inode = spare.stat().st_ino
    (node.files.folder_of(key(2)) / "a").write_bytes(b"changed")
    third = await node.starts(3)
    assert third.stat().st_ino == inode
    assert seen(third) == seen(first)
    assert third.stat().st_mode & 0o777 == 0o700
    (third / "a").write_bytes(b"changed, too")
    assert [seen(each) for each in node.spares()] == [seen(first)]


async def test_a_job_waits_for_the_copy_that_is_being_made_and_another_one_makes_its_own(
    node: Node, gate: asyncio.Event
) -> None:
    whole = seen(await node.starts(1))
    await node.starts(2, makes_spare=False)
    making = asyncio.create_task(node.files.make_spare(key(2), FOLDER))
    await turns()
    waiting = asyncio.create_task(node.starts(3, makes_spare=False))
    await turns()
    own = await node.starts(4, makes_spare=False)
    assert not waiting.done()
    gate.set()
    taken, _ = await asyncio.gather(waiting, making)
    assert seen(own) == seen(taken) == whole
    assert not node.spares()


async def test_a_launch_that_is_given_up_while_it_waits_leaves_the_copy_to_the_next_one(
    node: Node, gate: asyncio.Event
) -> None:
    for job in (1, 2):
        await node.starts(job, makes_spare=False)
    making = asyncio.create_task(node.files.make_spare(key(2), FOLDER))
    await turns()
    waiting = asyncio.create_task(node.starts(3, makes_spare=False))
    await turns()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    gate.set()
    await making
    (spare,) = node.spares()
    inode = spare.stat().st_ino
    assert (await node.starts(4, makes_spare=False)).stat().st_ino == inode


async def test_only_one_copy_of_a_folder_is_made_at_a_time(node: Node) -> None:
    for job in (1, 2):
        await node.starts(job, makes_spare=False)
    await asyncio.gather(*(node.files.make_spare(key(2), FOLDER) for _ in range(5)))
    assert len(node.spares()) == 1


async def test_of_what_is_not_in_the_cache_no_copy_is_made(node: Node) -> None:
    for job in (1, 2):
        await node.starts(job, makes_spare=False)
    next(node.data.glob(f"cache/{chunk(PARTS[0]).digest}")).unlink()
    await node.files.make_spare(key(2), FOLDER)
    assert not node.spares()
    await node.starts(3)
    assert len(node.spares()) == 1


@pytest.mark.parametrize(
    ("bound", "value"), [("SPARE_BYTES_MAX", 11), ("SPARE_ENTRIES_MAX", 5), ("FREE_BYTES_MIN", 2**62)]
)
async def test_of_a_large_folder_or_on_a_full_disk_no_copy_is_made(
    node: Node, monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    monkeypatch.setattr(spare_folders, bound, value)
    for job in (1, 2, 3):
        await node.starts(job)
    assert not node.spares()


async def test_a_small_cache_has_no_copies_beside_it(tmp_path: Path) -> None:
    async with node_with(tmp_path, MANIFEST, *PARTS, cache_bytes=40) as node:
        for job in (1, 2, 3):
            await node.starts(job)
        assert not node.spares()


async def test_a_disk_that_takes_no_copy_keeps_no_job_from_its_own(node: Node) -> None:
    for job in (1, 2):
        await node.starts(job, makes_spare=False)
    (node.data / "spares").write_bytes(b"no folder can be made in it")
    await node.files.make_spare(key(2), FOLDER)
    assert seen(await node.starts(3, makes_spare=False)) == seen(node.files.folder_of(key(1)))


async def test_of_many_folders_the_last_ones_have_a_copy(tmp_path: Path) -> None:
    contents = [str(number).encode() for number in range(spare_folders.SPARES_MAX + 2)]
    manifests = [manifest_of(Folder((Entry("a", size_bytes=1),), (chunk(each),))) for each in contents]
    async with node_with(tmp_path, *contents, *manifests) as node:
        for number, manifest in enumerate(manifests):
            for turn in range(2):
                await node.starts(10 * (number + 1) + turn, asked(manifest, 1, 1))
        kept = {(each / "a").read_bytes() for each in node.spares()}
        assert kept == set(contents[-spare_folders.SPARES_MAX :])


async def test_an_agent_that_starts_removes_the_copies_of_the_one_before(node: Node) -> None:
    for job in (1, 2):
        await node.starts(job)
    assert node.spares()
    async with node_with(node.data, MANIFEST, *PARTS) as again:
        await again.files.sweep([key(1), key(2)])
        assert not again.spares() and not list((node.data / "removed").iterdir())
        assert seen(node.files.folder_of(key(1)))
        shutil.rmtree(node.files.folder_of(key(1)))
        await again.starts(1)


def is_marked(folder: Path) -> bool:
    """Whether folders in it are placed apart."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return bool(flags_of(descriptor) & FS_TOPDIR_FL)
    except OSError:
        return False
    finally:
        os.close(descriptor)


async def test_folders_of_jobs_are_placed_apart_where_the_file_system_knows_of_it(node: Node) -> None:
    probe = node.data / "probe"
    probe.mkdir()
    place_apart_below(probe)
    if not is_marked(probe):
        pytest.skip(f"the file system of {node.data} knows nothing of it")
    for job in (1, 2):
        await node.starts(job)
    assert is_marked(node.data / "attempts") and is_marked(node.data / "spares")


def test_a_folder_that_cannot_be_marked_is_left_as_it_is(tmp_path: Path) -> None:
    place_apart_below(Path("/proc/self"))
    place_apart_below(tmp_path / "missing")
    assert not list(tmp_path.iterdir())
