"""`ingest`: who takes a file is asked before anything is uploaded; a command's job has its id printed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from gpufleet.v1 import ingest_pb2

from gpufleet.errors import GpufleetError, Reason, invalid
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler, Fault

DIGEST = hashlib.sha256(b"hello").hexdigest()


@pytest.fixture(autouse=True)
def _file() -> None:
    Path("talk.mp3").write_bytes(b"hello")


def test_a_file_is_uploaded_and_the_jobs_id_printed_once_though_an_answer_is_lost(
    fake: FakeScheduler, gpuctl: Gpuctl
) -> None:
    fake.faults["Ingest"].append(Fault.LOST_ANSWER)
    done = gpuctl("ingest", "talk.mp3", "--gpu", "--content-type", "audio/mpeg", "--request-id", "r1")
    assert (done.code, done.text, done.err) == (0, "7\n", "")
    assert fake.blobs == {DIGEST: b"hello"}
    look, _, asked = fake.asked("Ingest")
    assert look.dry_run and not asked.dry_run and asked.request_id == "r1"
    assert (asked.file.path, asked.file.digest, asked.file.size_bytes) == ("talk.mp3", DIGEST, 5)
    assert asked.gpu and asked.content_type == "audio/mpeg"
    assert json.loads(gpuctl("ingest", "talk.mp3", "-o", "json").text)["job_id"] == "7"


def test_a_dry_run_says_what_would_take_it_and_uploads_nothing(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    done = gpuctl("ingest", "talk.mp3", "--dry-run")
    assert done.code == 0 and "matches 'audio/*'" in done.text
    assert "It would become a job, on a GPU, or else a CPU: transcribe ./talk.mp3" in done.text
    assert not fake.blobs and [each.dry_run for each in fake.asked("Ingest")] == [True]


@pytest.mark.parametrize(
    ("takes", "how"),
    [
        ("image", "gpuctl infer faces talk.mp3 --as bytes"),
        ("", "-F 'file=@talk.mp3;type=audio/mpeg' GATEWAY/api/v1/ingest/file"),
    ],
)
def test_a_file_for_a_model_is_not_uploaded_and_told_how_to_ask(
    fake: FakeScheduler, gpuctl: Gpuctl, takes: str, how: str
) -> None:
    fake.ingested = ingest_pb2.IngestResponse(content_type="audio/mpeg", pattern="audio/*")
    fake.ingested.model.name, fake.ingested.model.input = "faces", takes
    done = gpuctl("ingest", "talk.mp3")
    assert done.code == 2 and not done.text and not fake.blobs
    assert "is for the model faces" in " ".join(done.err.split()) and how in " ".join(done.err.split())
    dry = gpuctl("ingest", "talk.mp3=other.mp3", "--dry-run")
    assert dry.code == 0 and how in dry.text


def test_what_is_refused_names_what_was_typed_and_what_is_taken(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.faults["Ingest"].append(
        GpufleetError(Reason.CONTENT_TYPE_UNHANDLED, "nothing takes audio/mpeg; what is taken is text/*, image/*")
    )
    refused = gpuctl("ingest", "talk.mp3")
    assert refused.code == 4 and "what is taken is text/*, image/*" in refused.err and "[handlers]" in refused.err
    fake.faults["Ingest"].append(invalid("content_type", "'x' is not a content type"))
    assert "--content-type" in gpuctl("ingest", "talk.mp3", "--content-type", "x").err
    missing = gpuctl("ingest", "none.mp3")
    assert missing.code == 3 and "there is no file none.mp3" in missing.err
    Path("folder").mkdir()
    for name in "ab":
        (Path("folder") / name).write_text(name)
    assert gpuctl("ingest", "folder").code == 2
    assert not fake.blobs


def test_a_job_that_nobody_answered_for_is_not_made_twice(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.before["Ingest"] = lambda asked: None if asked.dry_run else fake.faults["Ingest"].append(Fault.HANG)
    done = gpuctl("ingest", "talk.mp3", "--connection-timeout", "200ms", "--request-id", "r2")
    assert done.code == 5 and "--request-id r2" in done.err
