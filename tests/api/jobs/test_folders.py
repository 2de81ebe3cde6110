"""Folders of jobs at a real scheduler: what a submit with one must be, and who fetches what is in it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from gpufleet.v1 import job_pb2, node_agent_pb2, scheduler_pb2

from gpufleet.errors import Reason
from gpufleet.jobs.folders import Entry, Folder, FolderChunk, manifest_of
from node_agent.credential import CREDENTIAL_FILE
from node_agent.identity import IDENTITY_FILE
from tests.api.test_own_node import agent, why
from tests.e2e.client import Client, refusal
from tests.e2e.files import file, upload
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS
from tests.gpufleet_lib.hostile_manifests import BYTES, HOSTILE

CHUNK = FolderChunk(hashlib.sha256(BYTES).hexdigest(), len(BYTES))
RIGHT = manifest_of(Folder((Entry("d/a", size_bytes=4),), (CHUNK,)))


def folder(manifest: bytes, entries: int = 1, content: int = 4) -> job_pb2.InputFolder:
    digest = hashlib.sha256(manifest).hexdigest()
    return job_pb2.InputFolder(digest=digest, size_bytes=len(manifest), entry_count=entries, content_bytes=content)


async def refused(admin: Client, **fields: Any) -> Any:
    spec = admin.spec("true", cwd="", **fields)
    return await refusal(admin.stub.Submit(scheduler_pb2.SubmitRequest(specs=[spec])))


async def test_every_hostile_manifest_is_refused_and_no_job_is_made(fleet: Fleet, admin: Client) -> None:
    await upload(admin, BYTES)
    before = await admin.submit("true")
    for name, (data, says) in HOSTILE.items():
        await upload(admin, data, piece=2**20)
        error = await refused(admin, folder=folder(data))
        assert error.reason is Reason.INVALID_ARGUMENT, name
        assert error.violations[0].field == "specs[0].folder.digest", name
        assert says in error.violations[0].why, (name, error.violations[0].why)
    assert await admin.submit("true") == before + 1


async def test_a_folder_is_taken_when_all_of_it_is_there_and_is_what_was_said(fleet: Fleet, admin: Client) -> None:
    chunk = b"only this test has it"
    manifest = manifest_of(
        Folder((Entry("d/b", size_bytes=len(chunk)),), (FolderChunk(hashlib.sha256(chunk).hexdigest(), len(chunk)),))
    )
    right = folder(manifest, content=len(chunk))
    error = await refused(admin, folder=right)
    assert (error.reason, error.violations[0].field) == (Reason.FILE_NOT_UPLOADED, "specs[0].folder.digest")
    await upload(admin, manifest, piece=2**20)
    error = await refused(admin, folder=right)
    assert (error.reason, error.violations[0].why) == (
        Reason.FILE_NOT_UPLOADED,
        "1 of its 1 chunks are not uploaded",
    )
    await upload(admin, chunk)
    for field, wrong in {
        "entry_count": folder(manifest, entries=2, content=len(chunk)),
        "content_bytes": folder(manifest, content=1),
        "size_bytes": job_pb2.InputFolder(digest=right.digest, size_bytes=1, entry_count=1, content_bytes=len(chunk)),
    }.items():
        error = await refused(admin, folder=wrong)
        assert error.violations[0].field == f"specs[0].folder.{field}"
    for path in ("d", "d/b", "d/b/c"):
        error = await refused(admin, folder=right, files=[file(path, chunk)])
        assert error.violations[0].field == "specs[0].folder"
        assert repr(path) in error.violations[0].why
    job = await admin.submit("cat", "d/b", "e", cwd="", folder=right, files=[file("e", chunk)])
    assert (await admin.wait(job)).state == job_pb2.JOB_STATE_SUCCEEDED
    assert await admin.stdout(job) == chunk * 2


async def test_an_environment_that_is_made_of_a_file_which_is_not_there_is_refused(fleet: Fleet, admin: Client) -> None:
    for data in (BYTES, RIGHT):
        await upload(admin, data)
    extra = file("extra.txt", BYTES)
    for environment, path, missing in (
        ({"requirements": "requirements.txt"}, "requirements", "requirements.txt"),
        ({"conda": "d"}, "conda", "d"),
        ({"uv": True}, "uv", "pyproject.toml"),
    ):
        made_of = job_pb2.JobEnvironment(**environment)
        for files in ({"folder": folder(RIGHT), "files": [extra]}, {"files": [extra]}):
            error = await refused(admin, environment=made_of, **files)
            assert error.violations[0].field == f"specs[0].environment.{path}"
            assert f"needs {missing!r}, which is not among the job's files" in error.violations[0].why
            assert "by its path in the folder" in error.next_step


async def test_a_node_fetches_what_is_in_the_folder_of_its_own_attempt_and_nothing_else(
    fleet: Fleet, admin: Client
) -> None:
    other = b"of no folder"
    for data in (BYTES, RIGHT, other):
        await upload(admin, data)
    job = await admin.submit("sleep", "600", cwd="", folder=folder(RIGHT))
    shown = await admin.wait(job, job_pb2.JOB_STATE_RUNNING)
    at_the_node = fleet.agents["n1"].data
    key = node_agent_pb2.AttemptKey(job_id=job, attempt=1, lineage=shown.attempts[-1].lineage)
    incarnation = int(json.loads((at_the_node / IDENTITY_FILE).read_text())["incarnation"])

    def wanted(data: bytes) -> node_agent_pb2.FetchBlobRequest:
        digest = hashlib.sha256(data).hexdigest()
        return node_agent_pb2.FetchBlobRequest(digest=digest, node="n1", incarnation=incarnation, key=key)

    async with agent(fleet, (at_the_node / CREDENTIAL_FILE).read_text().strip()) as node:
        for each in (RIGHT, BYTES):
            pieces = [piece.data async for piece in node.FetchBlob(wanted(each), timeout=DEADLINE_SECONDS)]
            assert b"".join(pieces) == each
        assert await why(node.FetchBlob(wanted(other), timeout=DEADLINE_SECONDS)) is Reason.PERMISSION_DENIED
    await admin.cancel(job)
    await admin.wait(job)
