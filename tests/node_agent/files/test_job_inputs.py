"""What other jobs left for a rank, on its node: chosen by its lines, beside its files, over and through none."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from gpufleet.v1 import node_agent_pb2 as pb

from gpufleet.errors import Reason
from gpufleet.jobs.folders import Entry, EntryKind, Folder, FolderChunk, manifest_of
from gpufleet.jobs.runs import JobId, RankKey
from node_agent.core.launch import InputFolder, JobInput, Refusal, RefusalReason
from node_agent.files import job_inputs
from node_agent.files.job_files import JobFiles
from tests.node_agent.files.test_job_files import Call
from tests.node_agent.files.test_job_folders import Stub
from tests.node_agent.files.test_results import refusal

KEY = RankKey(JobId(7), 1, 0)
DATA = b"model" + b"log" + b"secret"
LEFT = Folder(
    (
        Entry("out/empty", size_bytes=0),
        Entry("out/model.pt", size_bytes=5),
        Entry("out/run", size_bytes=3, is_executable=True),
        Entry("secret", size_bytes=6),
    ),
    (FolderChunk(hashlib.sha256(DATA).hexdigest(), len(DATA)),),
)
MANIFEST = manifest_of(LEFT)
OTHER = manifest_of(
    Folder((Entry("out/model.pt", size_bytes=5),), (FolderChunk(hashlib.sha256(b"other").hexdigest(), 5),))
)
UPLOADED = Folder(
    (Entry("data", size_bytes=0), Entry("link", EntryKind.LINK, target="real"), Entry("real/a", size_bytes=0)), ()
)
TAKEN = manifest_of(Folder((Entry("real/a", size_bytes=5),), (FolderChunk(hashlib.sha256(b"other").hexdigest(), 5),)))


class Refused(Call):
    """One that ends with this reason."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(b"", 0)
        self.reason = reason

    async def read(self) -> Any:
        raise refusal(self.reason)


class Scheduler(Stub):
    """One that says where inputs are."""

    def __init__(self, *sources: pb.InputSource, refuses: Sequence[Reason] = ()) -> None:
        super().__init__(DATA, MANIFEST, OTHER, TAKEN, b"other", manifest_of(UPLOADED))
        self.refuses = list(refuses)
        self.sources = pb.InputSources(sources=sources).SerializeToString()

    def FetchBlob(self, request: pb.FetchBlobRequest) -> Call:
        if request.wants_inputs and self.refuses:
            return Refused(self.refuses.pop(0))
        if request.wants_inputs:
            return Call(self.sources, 0)
        return super().FetchBlob(request)


def source(number: int = 0, folder: str = "", manifest: bytes = MANIFEST) -> pb.InputSource:
    digest = hashlib.sha256(manifest).hexdigest()
    return pb.InputSource(input=number, digest=digest, size_bytes=len(manifest), folder=folder, words="job 41")


async def laid_out(
    tmp_path: Path, inputs: tuple[JobInput, ...], *sources: pb.InputSource, refuses: Sequence[Reason] = ()
) -> Refusal | None:
    files, manifest = JobFiles("n1", 1, tmp_path, lambda: 2**30), manifest_of(UPLOADED)
    digest = hashlib.sha256(manifest).hexdigest()
    folder = InputFolder(digest=digest, size_bytes=len(manifest), entry_count=3, content_bytes=0)
    holding = asyncio.create_task(files.hold(Scheduler(*sources, refuses=refuses)))  # type: ignore[arg-type]
    try:
        return await files.lay_out(KEY, (), folder, inputs=inputs)
    finally:
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)


def found(tmp_path: Path) -> dict[str, bytes]:
    top = tmp_path / "attempts" / KEY.name
    return {path.relative_to(top).as_posix(): path.read_bytes() for path in top.rglob("*") if path.is_file()}


async def test_chosen_files_lie_beside_those_that_went_along_in_the_folder_of_their_name(tmp_path: Path) -> None:
    wanted = (JobInput(job=41, pattern="out/**"), JobInput(job=41, pattern="*.pt", name="models"))
    assert await laid_out(tmp_path, wanted, source(), source(1, "models/rank-1")) is None
    files = found(tmp_path)
    assert files == {
        "data": b"",
        "real/a": b"",
        "out/empty": b"",
        "out/model.pt": b"model",
        "out/run": b"log",
        "models/rank-1/out/model.pt": b"model",
    }
    assert (tmp_path / "attempts" / KEY.name / "out/run").stat().st_mode & 0o111


async def test_the_same_file_by_two_lines_comes_once(tmp_path: Path) -> None:
    wanted = (JobInput(job=41, pattern="out/**"), JobInput(job=41, pattern="*.pt"))
    assert await laid_out(tmp_path, wanted, source(), source(1)) is None
    assert found(tmp_path)["out/model.pt"] == b"model"


@pytest.mark.parametrize(
    ("pattern", "sources", "why"),
    [
        ("*.bin", [source()], "job 41 left no file that '*.bin' chooses"),
        ("out/**", [], "job 41 left no file"),
        (
            "*.pt",
            [source(), source(manifest=OTHER)],
            "'out/model.pt' of --input cannot be laid out, as another --input",
        ),
        ("real/**", [source(manifest=TAKEN)], "'real/a' of --input cannot be laid out, as --upload or --file brings"),
        ("*.pt", [source(folder="link")], "'link' of --input cannot be laid out, as a file or a link"),
        ("*.pt", [source(folder="data")], "'data' of --input cannot be laid out, as a file or a link"),
    ],
)
async def test_nothing_is_written_over_or_through_a_link_and_a_line_must_choose_something(
    tmp_path: Path, pattern: str, sources: list[pb.InputSource], why: str
) -> None:
    refusal = await laid_out(tmp_path, (JobInput(job=41, pattern=pattern),), *sources)
    assert refusal is not None and refusal.reason is RefusalReason.INPUT_UNUSABLE
    assert why in refusal.detail


async def test_what_is_still_coming_is_waited_for_and_the_job_is_placed_again_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_inputs, "RETRY_SECONDS", 0.0)
    wanted = (JobInput(job=41, pattern="*.pt"),)
    assert await laid_out(tmp_path, wanted, source(), refuses=[Reason.CONFLICT] * 3) is None
    assert found(tmp_path)["out/model.pt"] == b"model"
    monkeypatch.setattr(job_inputs, "INPUTS_PATIENCE_SECONDS", -1.0)
    overdue = await laid_out(tmp_path, wanted, source(), refuses=[Reason.CONFLICT])
    assert overdue is not None and overdue.reason is RefusalReason.FILES_UNAVAILABLE
    unusable = await laid_out(tmp_path, wanted, source(), refuses=[Reason.INPUT_UNUSABLE])
    assert unusable is not None and unusable.reason is RefusalReason.INPUT_UNUSABLE
