"""`submit --upload`: what the scheduler lacks is sent before the job is submitted, and nothing else."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.blob_upload import TRIES_MAX
from gpufleet.jobs.folders import folder_of
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler, Fault
from tests.cli.folders.test_scanning import made


@pytest.fixture(autouse=True)
def root() -> Path:
    """The folder in which gpuctl is."""
    return made(Path(), {"train.py": "print(1)\n", "data/a": "a" * 1_000, ".gitignore": "*.log\n", "x.log": "x"})


def test_what_is_missing_is_sent_once_and_the_manifest_last(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    for expected in ("sends 1.01kB in 1 chunk", "nothing of it is new"):
        done = gpuctl("submit", "--upload", ".", "--", "python", "train.py")
        assert done.code == 0, done.err
        assert f"gpuctl: --upload .: 3 files, 1.01kB; {expected}\n" in done.err
        assert "gpuctl: largest: data/a 1kB, train.py 9B, .gitignore 6B\n" in done.err
    spec = fake.asked("Submit")[1].specs[0]
    assert (spec.cwd, len(spec.files), spec.folder.entry_count, spec.folder.content_bytes) == ("", 0, 3, 1_015)
    assert list(fake.blobs)[-1] == spec.folder.digest
    folder = folder_of(fake.blobs[spec.folder.digest])
    assert [each.path for each in folder.entries] == [".gitignore", "data/a", "train.py"]
    assert fake.blobs[folder.chunks[0].digest] == b"*.log\n" + b"a" * 1_000 + b"print(1)\n"
    names = [name for name, _ in fake.calls if name in ("UploadBlob", "Submit")]
    assert names == ["UploadBlob", "Submit", "Submit"]


def test_a_dry_run_sends_nothing(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    assert gpuctl("submit", "--dry-run", "--upload", ".", "--", "true").code == 0
    assert not fake.asked("UploadBlob")
    assert fake.asked("Submit")[0].specs[0].folder.entry_count == 3


def test_a_folder_that_cannot_go_along_submits_nothing(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    done = gpuctl("submit", "--upload", "missing", "--", "true")
    assert done.code != 0 and "there is no folder missing" in done.err
    done = gpuctl("check", "--upload", "missing")
    assert "missing" not in done.err  # there is room or not, whatever goes along
    assert not fake.asked("Submit") and not fake.asked("UploadBlob")


def test_a_file_that_changes_behind_its_description_is_told_and_nothing_is_submitted(
    fake: FakeScheduler, gpuctl: Gpuctl
) -> None:
    def change(request: Any) -> None:
        Path("train.py").write_text("print(2)\n")

    fake.before["FindMissingBlobs"] = change
    done = gpuctl("submit", "--upload", ".", "--", "true")
    assert done.code != 0
    assert "'train.py' changed while the folder was read; nothing was submitted" in done.err
    assert not fake.asked("Submit") and not fake.blobs
    fake.before.clear()
    assert gpuctl("submit", "--upload", ".", "--", "true").code == 0


def test_a_chunk_that_was_cut_goes_on_where_it_stood_and_is_given_up_in_the_end(
    fake: FakeScheduler, gpuctl: Gpuctl
) -> None:
    fake.faults["UploadBlob"] += [Fault.UNAVAILABLE] * TRIES_MAX
    assert gpuctl("submit", "--upload", ".", "--", "true").code != 0
    assert len(fake.asked("UploadBlob")) == TRIES_MAX
    assert not fake.asked("Submit")
    fake.faults["UploadBlob"].append(Fault.UNAVAILABLE)
    assert gpuctl("submit", "--upload", ".", "--", "true").code == 0


def test_a_file_whose_change_shows_in_its_bytes_alone_is_told_and_read_again_the_next_time(
    fake: FakeScheduler, gpuctl: Gpuctl
) -> None:
    chunk = hashlib.sha256(b"*.log\n" + b"a" * 1_000 + b"print(1)\n").hexdigest()
    wrong = GpufleetError(Reason.DIGEST_MISMATCH, "other bytes came", metadata={"digest": chunk})
    fake.faults["UploadBlob"].append(wrong)
    done = gpuctl("submit", "--upload", ".", "--", "true")
    assert done.code != 0
    assert "'.gitignore' changed while the folder was read; nothing was submitted" in done.err
    assert len(fake.asked("UploadBlob")) == 1 and not fake.asked("Submit")
    assert gpuctl("submit", "--upload", ".", "--", "true").code == 0


def test_what_the_scheduler_refuses_is_told_at_once(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.faults["UploadBlob"].append(GpufleetError(Reason.QUOTA_EXCEEDED, "ada has too many files"))
    done = gpuctl("submit", "--upload", ".", "--", "true")
    assert done.code != 0 and "ada has too many files" in done.err
    assert not fake.asked("Submit")


@pytest.mark.parametrize("text", ["sha256:", f"sha256:{'a' * 64}:1:2", f"sha256:{'a' * 64}:1:2:x", "sha256:a:1:2:3"])
def test_a_name_that_is_none_is_refused(fake: FakeScheduler, gpuctl: Gpuctl, text: str) -> None:
    done = gpuctl("submit", "--upload", text, "--", "true")
    assert done.code != 0 and "names no folder that was uploaded" in done.err
    assert not fake.asked("Submit")
