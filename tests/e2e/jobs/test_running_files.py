"""The folder of a job that runs, with real programs: listed, read and written, and nothing outside of it."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from gpufleet.v1 import files_pb2, job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.status import from_rpc_error
from tests.e2e.client import Client
from tests.e2e.fleet import Fleet
from tests.e2e.jobs.test_folders import gpuctl
from tests.e2e.processes import DEADLINE_SECONDS, until

MAKES = (
    "mkdir -p out/deep empty && printf model >out/model.pt && head -c 3000000 /dev/urandom >out/deep/large && "
    "ln -s /etc/passwd out/link && ln -s / out/root && mkfifo pipe && touch ready; sleep 600"
)


@asynccontextmanager
async def running(person: Client, shell: str = MAKES) -> AsyncIterator[int]:
    job = await person.submit("/bin/sh", "-c", shell, cwd="", results=["*"])
    await person.wait(job, job_pb2.JOB_STATE_RUNNING)
    try:
        yield job
    finally:
        await person.cancel(job)
        await person.wait(job)


async def until_there(fleet: Fleet, here: Path, job: int, path: str) -> None:
    async def is_there() -> bool:
        return path in (await gpuctl(fleet, here, "files", str(job), "-o", "name")).stdout.split()

    await until(f"{path} is in its folder", is_there)


async def test_files_come_out_of_a_job_that_runs_and_go_into_it(
    shared_fleet: Fleet, person: Client, tmp_path: Path
) -> None:
    async with running(person) as job:
        await until_there(shared_fleet, tmp_path, job, "ready")
        listed = await gpuctl(shared_fleet, tmp_path, "files", str(job))
        assert "out/link -> /etc/passwd" in listed.stdout
        assert "'pipe' is neither a file nor a link" in listed.stdout
        one = await gpuctl(shared_fleet, tmp_path, "cp", f"{job}:out/model.pt", ".")
        assert (one.returncode, (tmp_path / "model.pt").read_text()) == (0, "model"), one.stderr
        folder = await gpuctl(shared_fleet, tmp_path, "cp", f"{job}:out", "here")
        assert folder.returncode == 0, folder.stderr
        assert (tmp_path / "here/out/deep/large").stat().st_size == 3_000_000
        assert "'out/link' is a link" in folder.stderr
        assert sorted(each.name for each in (tmp_path / "here/out").iterdir()) == ["deep", "model.pt"]

        data = tmp_path / "data"
        (data / "inner").mkdir(parents=True)
        (data / "inner/a.bin").write_bytes(os.urandom(700_000))
        (data / "run").write_text("#!/bin/sh\n")
        (data / "run").chmod(0o755)
        into = await gpuctl(shared_fleet, tmp_path, "cp", "data", f"{job}:")
        assert into.returncode == 0, into.stderr
        renamed = await gpuctl(shared_fleet, tmp_path, "cp", "data/run", f"{job}:out/other")
        assert renamed.returncode == 0, renamed.stderr
        back = await gpuctl(shared_fleet, tmp_path, "cp", f"{job}:data", "back")
        assert back.returncode == 0, back.stderr
        assert (tmp_path / "back/data/inner/a.bin").read_bytes() == (data / "inner/a.bin").read_bytes()
        assert (tmp_path / "back/data/run").stat().st_mode & 0o111
        assert not left_over(tmp_path)
        assert sum("reached into the folder" in line for line in await person.story(job)) == 1


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("out/link", "is a link, and no plain file"),
        ("out/root/etc/passwd", "lies behind"),
        ("../1.1.0/x", "the path"),
        ("/etc/passwd", "is not there"),
        ("pipe", "is a named pipe"),
        ("out", "is a folder"),
    ],
)
async def test_nothing_but_plain_files_of_the_folder_comes_out(
    shared_fleet: Fleet, person: Client, tmp_path: Path, path: str, why: str
) -> None:
    async with running(person) as job:
        await until_there(shared_fleet, tmp_path, job, "ready")
        with pytest.raises(GpufleetError) as refused:
            await asked(person, job, read=files_pb2.ReadFile(path=path))
        assert why in refused.value.message


@pytest.mark.parametrize("path", ["out/root/tmp/x", "../x", "out/link/x", "empty", "a\nb", ".", ""])
async def test_nothing_is_written_outside_of_the_folder(
    shared_fleet: Fleet, person: Client, tmp_path: Path, path: str
) -> None:
    async with running(person) as job:
        await until_there(shared_fleet, tmp_path, job, "ready")
        digest = hashlib.sha256(b"hostile").hexdigest()
        with pytest.raises(GpufleetError):
            await asked(person, job, b"hostile", write=files_pb2.WriteFile(path=path, size_bytes=7, digest=digest))
        assert not os.path.lexists("/tmp/x")  # noqa: ASYNC240 - one look


async def test_a_copy_that_its_node_refuses_ends_and_says_why(
    shared_fleet: Fleet, person: Client, tmp_path: Path
) -> None:
    (tmp_path / "mine").write_text("mine")
    os.mkfifo(tmp_path / "pipe")
    async with running(person) as job:
        await until_there(shared_fleet, tmp_path, job, "ready")
        for source, target, why in (
            (f"{job}:out/model.pt/x", ".", "lies behind what is no folder"),
            (f"{job}:out/root/etc/passwd", ".", "lies behind what is no folder, or a link"),
            ("mine", f"{job}:out/model.pt/x", "lies behind what is no folder"),
            ("mine", f"{job}:out/root/tmp/x", "lies behind what is no folder, or a link"),
            ("/dev/zero", f"{job}:zero", "'/dev/zero' is no plain file"),
            ("pipe", f"{job}:zero", "'pipe' is no plain file"),
        ):
            done = await gpuctl(shared_fleet, tmp_path, "cp", source, target)
            assert done.returncode != 0 and why in done.stderr, (source, target, done.stderr)


async def test_other_bytes_than_were_said_are_not_put_in_place_and_a_link_is_replaced_and_not_followed(
    shared_fleet: Fleet, person: Client, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("untouched")
    async with running(person, f"printf old >a; ln -s {outside} link; touch ready; sleep 600") as job:
        await until_there(shared_fleet, tmp_path, job, "ready")
        digest = hashlib.sha256(b"new").hexdigest()
        with pytest.raises(GpufleetError) as refused:
            await asked(person, job, b"odd", write=files_pb2.WriteFile(path="a", size_bytes=3, digest=digest))
        assert refused.value.reason is Reason.DIGEST_MISMATCH
        await asked(person, job, b"new", write=files_pb2.WriteFile(path="link", size_bytes=3, digest=digest))
        brought = await gpuctl(shared_fleet, tmp_path, "cp", f"{job}:", "here")
        assert brought.returncode == 0, brought.stderr
        assert {each.name: each.read_text() for each in (tmp_path / "here").iterdir()} == {
            "a": "old",
            "link": "new",
            "ready": "",
        }
        assert outside.read_text() == "untouched"


async def test_only_the_owner_and_admins_write_into_a_folder_and_only_while_the_job_runs(
    shared_fleet: Fleet, person: Client
) -> None:
    async def made(user: str) -> str:
        request = scheduler_pb2.CreateTokenRequest(user=user, role=scheduler_pb2.ROLE_USER)
        return (await person.stub.CreateToken(request)).secret

    async with shared_fleet.client(await made("ann")) as ann, shared_fleet.client(await made("mallory")) as mallory:
        async with running(ann, "touch a; sleep 600") as job:
            write = files_pb2.WriteFile(path="a", size_bytes=1, digest=hashlib.sha256(b"x").hexdigest())
            with pytest.raises(GpufleetError) as refused:
                await asked(mallory, job, b"x", write=write)
            assert refused.value.reason is Reason.NOT_YOUR_JOB
            assert not (await asked(person, job, list=files_pb2.ListFolder())).problem
        with pytest.raises(GpufleetError) as over:
            await asked(ann, job, list=files_pb2.ListFolder())
        assert over.value.reason is Reason.JOB_FINISHED


async def test_a_copy_goes_on_where_it_stood_when_the_agent_or_the_scheduler_is_killed(
    fleet: Fleet, admin: Client, tmp_path: Path
) -> None:
    agent = await fleet.add_node("n1")
    makes = "head -c 50000000 /dev/urandom >b; for each in 1 2 3 4 5 6 7 8; do cat b >>a; done; touch ready; sleep 600"
    async with running(admin, makes) as job:
        await until_there(fleet, tmp_path, job, "ready")
        (source,) = (agent.data / "files/attempts").glob(f"{job}.*")
        for killed in (agent, fleet.scheduler):
            place = tmp_path / f"copied-{killed is agent}"
            copying = asyncio.create_task(gpuctl(fleet, tmp_path, "cp", f"{job}:a", str(place)))

            def has_begun(folder: Path = tmp_path) -> bool:
                return any(each.stat().st_size > 20_000_000 for each in folder.glob(".gpufleet-*.part"))

            await until("some of it is here", has_begun)
            killed.kill()
            assert not place.exists()
            if killed is agent:
                killed.spawn()
            else:
                await fleet.scheduler.start()
            done = await copying
            assert done.returncode == 0, done.stderr
            assert digest_of(place) == digest_of(source / "a")
            assert not left_over(tmp_path)


def left_over(folder: Path) -> list[Path]:
    return list(folder.rglob(".gpufleet-*"))


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def asked(person: Client, job: int, data: bytes = b"", **question: Any) -> files_pb2.FolderAnswer:
    """The last part of the answer to one question; raises what is refused."""
    call: Any = person.stub.AccessFiles()
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await call.write(files_pb2.AccessFilesRequest(target=files_pb2.AccessedFiles(job_id=job)))
            if await call.read() is grpc.aio.EOF:
                await call
            await call.write(files_pb2.AccessFilesRequest(question=files_pb2.FolderQuestion(**question)))
            if data:
                await call.write(files_pb2.AccessFilesRequest(data=data))
            while True:
                answer: files_pb2.FolderAnswer = (await call.read()).answer
                if answer.problem:
                    raise GpufleetError(Reason[answer.reason], answer.problem)
                if answer.is_end:
                    return answer
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        code, details = await call.code(), await call.details()
        raise from_rpc_error(
            grpc.aio.AioRpcError(code, await call.initial_metadata(), await call.trailing_metadata(), details)
        ) from None
    finally:
        call.cancel()
