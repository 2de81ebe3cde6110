"""`submit --file`: what the scheduler does not have is uploaded before the job is submitted, and nothing else."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.blob_upload import TRIES_MAX
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler, Fault

DATA = b"one file\n"
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture(autouse=True)
def data() -> Path:
    """A file in the folder in which gpuctl is."""
    path = Path("data.txt")
    path.write_bytes(DATA)
    return path


def test_what_is_missing_is_uploaded_once_and_then_the_job_is_submitted(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    for expected in (b"1\n", b"2\n"):
        done = gpuctl("submit", "--file", "data.txt=in/a.txt", "--", "true")
        assert (done.code, done.out, done.err) == (0, expected, "")
    names = [name for name, _ in fake.calls if name in ("UploadBlob", "Submit")]
    assert names == ["UploadBlob", "Submit", "Submit"]
    assert fake.blobs == {DIGEST: DATA}
    (file,) = fake.asked("Submit")[0].specs[0].files
    assert (file.path, file.digest, file.size_bytes, file.is_executable) == ("in/a.txt", DIGEST, len(DATA), False)


def test_a_dry_run_uploads_nothing(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    assert gpuctl("submit", "--dry-run", "--file", "data.txt", "--", "true").code == 0
    assert not fake.asked("UploadBlob") and not fake.blobs


def test_an_upload_that_was_cut_goes_on_where_it_stood(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.blobs[DIGEST] = DATA[:4]
    fake.faults["UploadBlob"].append(Fault.UNAVAILABLE)
    assert gpuctl("submit", "--file", "data.txt", "--", "true").code == 0
    assert [each.offset for each in fake.asked("UploadBlob")] == [4, 4]
    assert fake.blobs == {DIGEST: DATA}


def test_several_files_go_in_one_stream_and_after_a_cut_those_that_are_missing(
    fake: FakeScheduler, gpuctl: Gpuctl
) -> None:
    Path("other").write_bytes(b"other")
    fake.faults["UploadBlob"].append(Fault.LOST_ANSWER)
    options = [word for name in ("data.txt", "other") for word in ("--file", name)]
    assert gpuctl("submit", *options, "--", "true").code == 0
    assert len(fake.asked("UploadBlob")) == 1  # the answer was lost, and nothing is missing
    assert set(fake.blobs.values()) == {DATA, b"other"}


def test_a_file_that_became_shorter_is_told_and_no_job_is_submitted(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.before["FindMissingBlobs"] = lambda _: os.truncate("data.txt", 4)
    done = gpuctl("submit", "--file", "data.txt", "--", "true")
    assert done.code != 0 and "data.txt became shorter while it was uploaded" in done.err
    fake.before["FindMissingBlobs"] = lambda _: Path("data.txt").unlink()
    Path("data.txt").write_bytes(DATA + b"more")
    done = gpuctl("submit", "--file", "data.txt", "--", "true")
    assert done.code != 0 and "data.txt cannot be read: No such file or directory" in done.err
    assert not fake.asked("Submit")


def test_an_upload_that_is_cut_each_time_is_given_up_and_no_job_is_submitted(
    fake: FakeScheduler, gpuctl: Gpuctl
) -> None:
    fake.faults["UploadBlob"] += [Fault.UNAVAILABLE] * TRIES_MAX
    assert gpuctl("submit", "--file", "data.txt", "--", "true").code != 0
    assert len(fake.asked("UploadBlob")) == TRIES_MAX
    assert not fake.asked("Submit")


def test_what_the_scheduler_refuses_is_told_at_once(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.faults["UploadBlob"].append(GpufleetError(Reason.QUOTA_EXCEEDED, "ada has too many files"))
    done = gpuctl("submit", "--file", "data.txt", "--", "true")
    assert done.code != 0 and "ada has too many files" in done.err
    assert len(fake.asked("UploadBlob")) == 1 and not fake.asked("Submit")


def test_a_folder_brings_what_is_below_it_and_a_link_to_a_folder_is_refused(
    fake: FakeScheduler, gpuctl: Gpuctl, tmp_path: Path
) -> None:
    (Path("src") / "inner").mkdir(parents=True)
    (Path("src") / "inner" / "a").write_bytes(b"a")
    (Path("src") / "link").symlink_to(Path("inner") / "a")
    assert gpuctl("submit", "--file", "src", "--", "true").code == 0
    assert [each.path for each in fake.asked("Submit")[0].specs[0].files] == ["src/inner/a", "src/link"]
    (Path("src") / "inner" / "etc").symlink_to(tmp_path)
    done = gpuctl("submit", "--file", "src", "--", "true")
    assert done.code != 0 and "link to a folder" in done.err
    assert len(fake.asked("Submit")) == 1


def test_a_folder_without_a_name_is_refused_and_nothing_of_where_one_stands_is_sent(
    fake: FakeScheduler, gpuctl: Gpuctl
) -> None:
    """A script's `--upload "$FOLDER"` where that is not set."""
    done = gpuctl("submit", "--upload", "", "--", "true")
    assert done.code == 2 and "--upload: it is empty" in done.err and "--upload ." in done.err
    assert not fake.blobs and not fake.asked("Submit")
