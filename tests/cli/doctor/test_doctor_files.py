"""`doctor --files`: which way works for each node, how fast, and what to do where one does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration
from gpufleet.v1 import files_pb2, node_pb2

from cli.doctor import files
from gpufleet.errors import GpufleetError, Reason
from gpufleet.jobs.shared_root import MARKER
from tests.cli import cluster
from tests.cli.conftest import Gpuctl
from tests.cli.doctor.test_doctor import healthy
from tests.cli.fake_scheduler import FakeScheduler

SECOND = Duration(seconds=1)
WIRE = files_pb2.FilesOnNode(node="n1", wire_duration=SECOND)


@pytest.fixture(autouse=True)
def _fleet(fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    healthy(fake)
    monkeypatch.setattr(files, "PROBE_BYTES", 2_000_000)


def told(gpuctl: Gpuctl, *more: str) -> tuple[int, dict[str, tuple[str, str]]]:
    done = gpuctl("doctor", "--files", "-o", "json", *more)
    found = [each for each in json.loads(done.text) if each["what"].startswith(("file", "shared", "uploads"))]
    return done.code, {each["what"]: (each["verdict"], each["sentence"]) for each in found}


def test_each_way_is_tried_and_how_fast_it_is_told(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    Path("team").mkdir()
    fake.nodes.append(cluster.node("n2", node_pb2.NODE_STATE_LOST, 2, {}))
    seen = files_pb2.FilesOnNode()
    seen.CopyFrom(WIRE)
    seen.is_same_root, seen.root_duration.nanos = True, 100_000_000
    fake.files_on_nodes = [seen]
    _, found = told(gpuctl, "--shared-root", "team")
    assert found["files n1"] == ("OK", "from the scheduler 2 MB/s, in team 20 MB/s")
    assert found["uploads"][1].startswith("to the scheduler ") and "files n2" not in found
    of_store, asked = fake.asked("CheckFiles")
    assert of_store.by_store and of_store.size_bytes == 2_000_000
    assert (list(asked.nodes), asked.by_wire, asked.size_bytes) == (["n1"], True, 2_000_000)
    assert [each.name for each in Path("team").iterdir()] == [MARKER], "the probe is gone"


def test_what_does_not_work_is_told_with_what_to_do(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    Path("team").mkdir()
    blind = files_pb2.FilesOnNode()
    blind.CopyFrom(WIRE)
    blind.root_problem = "its agent has no --shared-root"
    fake.files_on_nodes = [blind]
    assert told(gpuctl, "--shared-root", "team")[1]["files n1"] == (
        "WARNING",
        "from the scheduler 2 MB/s; it does not see team: its agent has no --shared-root",
    )
    fake.files_on_nodes = [files_pb2.FilesOnNode(node="n1", wire_problem="its agent did not answer within 75 s")]
    code, found = told(gpuctl)
    assert code == 1 and found["files n1"][0] == "FAILED" and "did not answer" in found["files n1"][1]
    fake.files_on_nodes = [WIRE]
    (Path("team") / MARKER).write_text("no id")
    code, found = told(gpuctl, "--shared-root", "team")
    assert found["shared root"][0] == "WARNING" and found["files n1"] == ("OK", "from the scheduler 2 MB/s")
    fake.faults["CheckFiles"].append(GpufleetError(Reason.METHOD_UNKNOWN, "no such call"))
    assert "the scheduler is older" in str(told(gpuctl)[1])
    fake.faults["UploadBlob"].append(GpufleetError(Reason.QUOTA_EXCEEDED, "ada has too many files"))
    code, found = told(gpuctl)
    assert code == 1 and found["uploads"] == ("FAILED", "nothing can be uploaded: ada has too many files")


def test_where_the_scheduler_stores_files_is_told_and_how_fast_that_is(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.files_on_nodes = [WIRE]
    fake.file_store = files_pb2.CheckFilesResponse(
        store="s3://team/blobs", store_write_duration=SECOND, store_read_duration=Duration(nanos=100_000_000)
    )
    assert told(gpuctl)[1]["file store"] == ("OK", "s3://team/blobs: written 2 MB/s, read 20 MB/s")
    fake.file_store = files_pb2.CheckFilesResponse(store="s3://team/blobs", store_problem="the store of files is away")
    code, found = told(gpuctl)
    assert code == 1 and found["file store"] == ("FAILED", "the store of files is away")


def test_that_stored_files_are_away_is_told_without_being_asked(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.server.file_store, fake.server.file_store_error = "s3://team/blobs", "s3://team/blobs is away"
    done = gpuctl("doctor")
    assert done.code == 1 and "s3://team/blobs is away" in done.text and "doctor --files" in done.text
