"""What an earlier attempt kept is laid over the files of a rank, and over nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gpufleet.jobs.folders import Entry, EntryKind, Folder, manifest_of
from node_agent.core.launch import InputFolder, Refusal
from node_agent.files.job_files import JobFiles
from tests.node_agent.files.test_job_folders import KEY, Stub, asked, chunk

UPLOADED = Folder(
    (
        Entry("ckpt", EntryKind.LINK, target="elsewhere"),
        Entry("elsewhere/a", size_bytes=3),
        Entry("file", size_bytes=3),
        Entry("folder/inner", size_bytes=3),
        Entry("stays", size_bytes=3),
    ),
    (chunk(b"oldoldoldold"),),
)
KEPT = Folder(
    (Entry("ckpt/a", size_bytes=3), Entry("file/inner", size_bytes=3), Entry("folder", size_bytes=3)),
    (chunk(b"newnewnew"),),
)


def folder_of(folder: Folder) -> tuple[bytes, InputFolder]:
    manifest = manifest_of(folder)
    return manifest, asked(manifest, len(folder.entries), folder.content_bytes)


async def laid_over(files: JobFiles, stub: Stub, kept: InputFolder) -> Refusal | None:
    holding = asyncio.create_task(files.hold(stub))  # type: ignore[arg-type]
    try:
        return await files.lay_out(KEY, (), folder_of(UPLOADED)[1], kept=kept)
    finally:
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)


async def test_what_was_kept_goes_over_what_was_uploaded_and_through_no_link(tmp_path: Path) -> None:
    files = JobFiles("n1", 1, tmp_path, lambda: 10**9)
    manifests = [folder_of(each)[0] for each in (UPLOADED, KEPT)]
    assert await laid_over(files, Stub(*manifests, b"oldoldoldold", b"newnewnew"), folder_of(KEPT)[1]) is None
    place = files.folder_of(KEY)
    found = {each.relative_to(place).as_posix(): each.read_bytes() for each in place.rglob("*") if each.is_file()}
    assert found == {
        "ckpt/a": b"new",
        "elsewhere/a": b"old",
        "file/inner": b"new",
        "folder": b"new",
        "stays": b"old",
    }
    assert not (place / "ckpt").is_symlink()
    assert [each.name for each in place.parent.iterdir()] == [place.name], "nothing is left beside it"
