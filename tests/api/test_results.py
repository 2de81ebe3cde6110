"""What jobs left at a real scheduler: brought by the node that they ran on, once, and nothing that is not right."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gpufleet.v1 import files_pb2, node_agent_pb2, scheduler_pb2

from gpufleet.errors import Reason
from gpufleet.jobs.folders import Entry, EntryKind, Folder, FolderChunk, manifest_of
from node_agent.credential import CREDENTIAL_FILE
from node_agent.identity import IDENTITY_FILE
from tests.api.test_own_node import agent, why
from tests.e2e.client import Client, refusal
from tests.e2e.fleet import Fleet
from tests.e2e.jobs.test_results import stored
from tests.e2e.processes import DEADLINE_SECONDS

pb = node_agent_pb2
DATA = b"a result"
DIGEST = hashlib.sha256(DATA).hexdigest()
MANIFEST = manifest_of(Folder((Entry("r", size_bytes=len(DATA)),), (FolderChunk(DIGEST, len(DATA)),)))


async def test_nobody_brings_what_no_attempt_of_theirs_left_and_what_is_stored_stays(
    fleet: Fleet, admin: Client
) -> None:
    job = (await admin.run("/bin/sh", "-c", "echo first >r", cwd="", results=["r"])).id
    plain = (await admin.run("true")).id
    assert [each.size_bytes for each in (await stored(admin, job)).files] == [6]
    data = fleet.agents["n1"].data
    lineage = (await admin.job(job)).attempts[-1].lineage
    key = pb.AttemptKey(job_id=job, attempt=1, lineage=lineage)
    incarnation = int(json.loads((data / IDENTITY_FILE).read_text())["incarnation"])

    def first(**changed: Any) -> pb.StoreResultsRequest:
        usual: dict[str, Any] = {"node": "n1", "incarnation": incarnation, "key": key, "manifest": MANIFEST}
        return pb.StoreResultsRequest(**(usual | changed))

    async def sent(*requests: pb.StoreResultsRequest) -> AsyncIterator[pb.StoreResultsRequest]:
        for each in requests:
            yield each

    link = manifest_of(Folder((Entry("a", size_bytes=0), Entry("l", EntryKind.LINK, target="a")), ()))
    async with agent(fleet, (data / CREDENTIAL_FILE).read_text().strip()) as node:
        for changed in (
            {"key": pb.AttemptKey(job_id=plain, attempt=1, lineage=lineage)},
            {"key": pb.AttemptKey(job_id=job, attempt=2, lineage=lineage)},
            {"key": pb.AttemptKey(job_id=job, attempt=1, rank=1, lineage=lineage)},
            {"key": pb.AttemptKey(job_id=job, attempt=1, lineage="0" * 16)},
            {"incarnation": incarnation + 1},
            {"node": "elsewhere"},
        ):
            call = node.StoreResults(sent(first(**changed)), timeout=DEADLINE_SECONDS)
            assert await why(call) is Reason.PERMISSION_DENIED, changed
        for wrong in ({"manifest": b"x"}, {"manifest": link}, {"problems": ["x"] * 101}):
            call = node.StoreResults(sent(first(**wrong)), timeout=DEADLINE_SECONDS)
            assert await why(call) is Reason.INVALID_ARGUMENT, wrong
        again = [each async for each in node.StoreResults(sent(first()), timeout=DEADLINE_SECONDS)]
        assert [each.is_stored for each in again] == [True]
    assert [each.size_bytes for each in (await stored(admin, job)).files] == [6]
    for request, reason in (
        (files_pb2.DownloadFileRequest(job_id=job, path="other"), Reason.FILE_NOT_FOUND),
        (files_pb2.DownloadFileRequest(job_id=job, path="r", offset=7), Reason.OFFSET_OUT_OF_RANGE),
        (files_pb2.DownloadFileRequest(job_id=job, path="r", offset=-1), Reason.OFFSET_OUT_OF_RANGE),
        (files_pb2.DownloadFileRequest(job_id=job, path="r", rank=1), Reason.INVALID_ARGUMENT),
        (files_pb2.DownloadFileRequest(job_id=plain, path="r"), Reason.FILE_NOT_FOUND),
    ):
        assert await why(admin.stub.DownloadFile(request, timeout=DEADLINE_SECONDS)) is reason
    assert not (await admin.stub.ListFiles(files_pb2.ListFilesRequest(job_id=plain))).ranks


@pytest.mark.parametrize("line", ["", " ", "# all", "a\nb", "x" * 1_025, "!"])
async def test_a_line_that_chooses_nothing_is_refused(fleet: Fleet, admin: Client, line: str) -> None:
    spec = admin.spec("true", cwd="", results=[line])
    error = await refusal(admin.stub.Submit(scheduler_pb2.SubmitRequest(specs=[spec])))
    assert (error.reason, error.violations[0].field) == (Reason.INVALID_ARGUMENT, "specs[0].results[0]")
