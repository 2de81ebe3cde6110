"""Files that go with a job, with real programs: uploaded once, in a folder of each attempt alone, and gone after it."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from gpufleet.v1 import files_pb2, job_pb2

from gpufleet.errors import Reason
from gpufleet.net.status import from_rpc_error
from tests.e2e.client import Client
from tests.e2e.files import file, upload
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until

PROGRAM = (
    b'#!/bin/sh\npwd; echo "$GPUFLEET_FILES"; cat data/words.txt; echo changed >data/words.txt; cat data/words.txt\n'
)
WORDS = b"as uploaded\n"
FILES = [file("bin/run", PROGRAM, is_executable=True), file("data/words.txt", WORDS)]


def _is_gone(find: Callable[[str], Iterable[Path]], name: str) -> bool:
    return not list(find(name))


async def test_a_job_runs_among_its_files_and_each_has_a_copy_of_its_own(shared_fleet: Fleet, person: Client) -> None:
    for data in (PROGRAM, WORDS):
        assert await upload(person, data) == len(data)
    for _ in range(2):
        job = await person.submit("./bin/run", cwd="", files=FILES)
        ended = await person.wait(job)
        assert ended.state == job_pb2.JOB_STATE_SUCCEEDED, (ended.exit_reason, ended.exit_message)
        folder, named, before, after = (await person.stdout(job)).decode().splitlines()
        assert (folder, before, after) == (named, "as uploaded", "changed")
        (agent,) = (each for each in shared_fleet.agents.values() if folder.startswith(str(each.data)))
        left = (agent.data / "files" / "attempts").glob
        await until("the folder is removed", partial(_is_gone, left, f"{job}.*"))


async def test_every_item_of_an_array_has_a_copy_of_its_own(shared_fleet: Fleet, person: Client) -> None:
    for data in (PROGRAM, WORDS):
        await upload(person, data)
    items = job_pb2.ArraySpec(indices="1-2")
    submitted = await person.submit_specs([person.spec("./bin/run", cwd="", files=FILES, array=items)])
    array = submitted.first_job_id
    assert (await person.wait(array)).state == job_pb2.JOB_STATE_SUCCEEDED
    said = [(await person.stdout(array + number)).decode().splitlines() for number in (1, 2)]
    assert [(before, after) for _, _, before, after in said] == [("as uploaded", "changed")] * 2
    assert len({folder for folder, *_ in said}) == 2


async def test_an_agent_that_is_killed_while_it_fetches_goes_on_where_it_stood(fleet: Fleet, admin: Client) -> None:
    data = bytes(range(256)) * 4_096
    agent = await fleet.add_node("n1")
    assert await upload(admin, data, piece=len(data) // 2) == len(data)
    digest = hashlib.sha256(data).hexdigest()
    (stored,) = (fleet.scheduler.data / "blobs").glob(f"*/{digest}")
    stored.write_bytes(data[:1_000])
    job = await admin.submit("sha256sum", "big", cwd="", files=[file("big", data)])
    part = agent.data / "files" / "cache" / f"{digest}.part"
    await until("a part of it has come", lambda: part.exists() and part.stat().st_size == 1_000)
    agent.kill()
    stored.write_bytes(data)
    agent.spawn()
    ended = await admin.wait(job)
    assert ended.state == job_pb2.JOB_STATE_SUCCEEDED, (ended.exit_reason, ended.exit_message)
    assert (await admin.stdout(job)).decode() == f"{digest}  big\n"
    assert not part.exists()


async def test_many_files_come_in_one_stream_and_each_is_checked(shared_fleet: Fleet, person: Client) -> None:
    files = {hashlib.sha256(each).hexdigest(): each for each in (b"first", b"", b"third" * 5_000)}
    wrong = hashlib.sha256(b"never sent").hexdigest()

    async def pieces(*digests: str) -> AsyncIterator[files_pb2.UploadBlobRequest]:
        for digest in digests:
            data = files.get(digest, b"other bytes")
            yield files_pb2.UploadBlobRequest(digest=digest, size_bytes=len(data), data=data[:10_000])
            for offset in range(10_000, len(data), 10_000):
                yield files_pb2.UploadBlobRequest(offset=offset, data=data[offset : offset + 10_000])

    async def missing() -> list[str]:
        request = files_pb2.FindMissingBlobsRequest(digests=[*files, wrong])
        return list((await person.stub.FindMissingBlobs(request)).missing_digests)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await person.stub.UploadBlob(pieces(*files, wrong))
    error = from_rpc_error(caught.value)
    assert (error.reason, error.metadata["digest"]) == (Reason.DIGEST_MISMATCH, wrong)
    assert await missing() == [wrong]
    answer: Any = await person.stub.UploadBlob(pieces(*files))
    assert answer.stored_bytes == 25_005
    for digest, data in files.items():
        call = person.stub.DownloadBlob(files_pb2.DownloadBlobRequest(digest=digest))
        assert b"".join([piece.data async for piece in call]) == data


async def test_a_file_that_is_not_uploaded_is_refused(shared_fleet: Fleet, person: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await person.submit("true", cwd="", files=[file("a", b"nobody uploaded this")])
    error = from_rpc_error(caught.value)
    assert error.reason is Reason.FILE_NOT_UPLOADED
    assert error.violations[0].field == "specs[0].files[0]"


async def test_other_bytes_than_were_said_are_refused(shared_fleet: Fleet, person: Client) -> None:
    wrong = hashlib.sha256(b"other").hexdigest()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await upload(person, b"bytes", wrong)
    assert from_rpc_error(caught.value).reason is Reason.DIGEST_MISMATCH
    missing = await person.stub.FindMissingBlobs(files_pb2.FindMissingBlobsRequest(digests=[wrong]))
    assert (list(missing.missing_digests), list(missing.stored_bytes)) == ([wrong], [0])
