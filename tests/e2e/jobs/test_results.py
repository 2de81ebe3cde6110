"""What a job leaves, with real programs: stored behind its end, listed and brought here, and nothing but its own."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import pytest
from gpufleet.v1 import files_pb2, job_pb2

from tests.e2e.client import Client
from tests.e2e.fleet import Fleet
from tests.e2e.jobs.test_folders import gpuctl
from tests.e2e.processes import until

LEAVES = (
    "mkdir -p out/deep && echo model >out/model.pt && head -c 20000000 /dev/zero >out/deep/large && "
    "printf '#!/bin/sh\\n' >out/run && chmod +x out/run && echo no >out/a.tmp && echo no >other && "
    "ln -s /etc/passwd out/link && mkfifo out/pipe; exit 3"
)


async def test_what_a_job_leaves_is_stored_listed_and_brought_here(
    shared_fleet: Fleet, person: Client, tmp_path: Path
) -> None:
    done = await gpuctl(shared_fleet, tmp_path, "run", "--download", "out/**", "--download", "!*.tmp", "--", LEAVES)
    assert done.returncode == 3, done.stderr  # one that failed leaves what it has, too
    assert (tmp_path / "out/model.pt").read_text() == "model\n"
    assert not (tmp_path / "out/a.tmp").exists()
    job = "last"
    brought = await gpuctl(shared_fleet, tmp_path, "cp", f"{job}:", "here")
    assert brought.returncode == 0, brought.stderr
    assert "3 files, 20MB, of job " in brought.stderr
    assert "not among them: 'out/link' is a link" in brought.stderr
    assert "not among them: 'out/pipe' is no plain file" in brought.stderr
    found = {path.relative_to(tmp_path).as_posix(): path.stat() for path in (tmp_path / "here").rglob("*")}
    assert sorted(found) == ["here/out", "here/out/deep", "here/out/deep/large", "here/out/model.pt", "here/out/run"]
    assert found["here/out/deep/large"].st_size == 20_000_000
    assert found["here/out/run"].st_mode & 0o111
    (tmp_path / "here/out/model.pt").write_text("other\n")
    (tmp_path / "here/out/run").unlink()
    again = await gpuctl(shared_fleet, tmp_path, "cp", f"{job}:", "here")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "here/out/model.pt").read_text() == "model\n"
    assert (tmp_path / "here/out/run").exists()
    kept = (tmp_path / "here/out/deep/large").stat()
    assert kept.st_ino == found["here/out/deep/large"].st_ino, "what was here already came once more"
    listed = await gpuctl(shared_fleet, tmp_path, "files", job)
    assert [line.split() for line in listed.stdout.splitlines()[:4]] == [
        ["SIZE", "PATH"],
        ["20MB", "out/deep/large"],
        ["6B", "out/model.pt"],
        ["10B", "out/run"],
    ]
    one = await gpuctl(shared_fleet, tmp_path, "cp", f"{job}:out/model.pt", "best.pt")
    assert (one.returncode, (tmp_path / "best.pt").read_text()) == (0, "model\n")
    none = await gpuctl(shared_fleet, tmp_path, "cp", f"{job}:other", ".")
    assert none.returncode != 0 and "left no 'other'" in none.stderr


async def test_of_a_job_that_left_no_file_that_is_chosen_just_that_is_said(
    shared_fleet: Fleet, person: Client, tmp_path: Path
) -> None:
    done = await gpuctl(shared_fleet, tmp_path, "run", "--download", "out/**", "--", "true")
    assert done.returncode == 0, done.stderr
    assert "left no file that its --download chooses" in done.stderr and "Try again" not in done.stderr
    again = await gpuctl(shared_fleet, tmp_path, "cp", "last:", ".")
    assert again.returncode == 0 and "left no file that its --download chooses" in again.stderr, again.stderr


async def test_what_an_agent_that_is_killed_had_not_brought_comes_when_it_is_back(fleet: Fleet, admin: Client) -> None:
    agent = await fleet.add_node("n1")
    job = await admin.submit("/bin/sh", "-c", "echo left >a; sleep 600", cwd="", results=["a"])
    await admin.wait(job, job_pb2.JOB_STATE_RUNNING)
    agent.kill()
    await admin.cancel(job)
    agent.spawn()
    ended = await admin.wait(job)
    assert ended.state == job_pb2.JOB_STATE_CANCELLED
    listed = await stored(admin, job)
    assert [(each.path, each.size_bytes) for each in listed.files] == [("a", 5)]
    pieces = admin.stub.DownloadFile(files_pb2.DownloadFileRequest(job_id=job, path="a", offset=2))
    assert b"".join([piece.data async for piece in pieces]) == b"ft\n"


async def test_each_rank_of_a_gang_leaves_its_own_and_one_that_ends_first_does_not_lose_it(
    fleet: Fleet, tmp_path: Path
) -> None:
    for name in ("n1", "n2"):
        await fleet.add_node(name)
    leaves = "mkdir -p out; echo $NODE_RANK >out/r; [ $NODE_RANK = 1 ] || sleep 1"
    options = ("--nodes", "2", "--gpus-per-node", "1", "--download", "out/**")
    done = await gpuctl(fleet, tmp_path, "run", *options, "--", leaves)
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"rank-{rank}/out/r").read_text() for rank in (0, 1)] == ["0\n", "1\n"]
    assert "1 file, 2B, of rank 1 of job 1" in done.stderr
    again = await gpuctl(fleet, tmp_path, "cp", "1:out/r", "copied")
    assert again.returncode == 0, again.stderr
    assert [(tmp_path / f"copied/rank-{rank}/r").read_text() for rank in (0, 1)] == ["0\n", "1\n"]
    one = await gpuctl(fleet, tmp_path, "cp", "--rank", "1", "1:out/r", "one")
    assert (one.returncode, (tmp_path / "one").read_text()) == (0, "1\n"), one.stderr
    given = await gpuctl(fleet, tmp_path, "run", "--input", "1:out/r", "--", "cat rank-0/out/r rank-1/out/r")
    assert (given.returncode, given.stdout) == (0, "0\n1\n"), given.stderr
    beyond = await gpuctl(fleet, tmp_path, "cp", "--rank", "2", "1:out/r", ".")
    assert beyond.returncode == 2 and "job 1 has ranks 0 to 1" in beyond.stderr


async def test_of_a_gang_that_runs_the_folder_of_each_rank_is_listed_and_copied(
    fleet: Fleet, admin: Client, tmp_path: Path
) -> None:
    for name in ("n1", "n2"):
        await fleet.add_node(name)
    line = "echo $NODE_RANK >r; sleep 600"
    job = await admin.submit("/bin/sh", "-c", line, cwd="", results=["r"], node_count=2)

    async def is_there() -> bool:
        listed = await gpuctl(fleet, tmp_path, "files", str(job))
        return [each.split() for each in listed.stdout.splitlines()] == [
            ["RANK", "SIZE", "PATH"],
            ["0", "2B", "r"],
            ["1", "2B", "r"],
        ]

    await until("each rank has made its file", is_there)
    done = await gpuctl(fleet, tmp_path, "cp", f"{job}:", "here")
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"here/rank-{rank}/r").read_text() for rank in (0, 1)] == ["0\n", "1\n"]
    await admin.cancel(job)
    await admin.wait(job)


async def test_a_copy_of_results_goes_on_when_the_scheduler_is_killed_in_the_middle(
    fleet: Fleet, admin: Client, tmp_path: Path
) -> None:
    await fleet.add_node("n1")
    makes = "head -c 50000000 /dev/urandom >b; for each in 1 2 3 4 5 6; do cat b >>a; done; sha256sum <a"
    job = await admin.submit("/bin/sh", "-c", makes, cwd="", results=["a"])
    await admin.wait(job)
    await stored(admin, job)
    said = (await admin.stdout(job)).split()[0].decode()
    copying = asyncio.create_task(gpuctl(fleet, tmp_path, "cp", f"{job}:a", "."))

    def has_begun() -> bool:
        return any(each.stat().st_size > 20_000_000 for each in tmp_path.glob(".a.*.part"))

    await until("some of it is here", has_begun)
    fleet.scheduler.kill()
    await fleet.scheduler.start()
    done = await copying
    assert done.returncode == 0, done.stderr
    with (tmp_path / "a").open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == said


async def stored(person: Client, job: int) -> files_pb2.RankFiles:
    """What rank 0 left, once it is stored."""
    found: list[files_pb2.RankFiles] = []

    async def look() -> bool:
        answer = await person.stub.ListFiles(files_pb2.ListFilesRequest(job_id=job))
        found[:] = [each for each in answer.ranks if each.is_stored]
        return bool(found)

    await until("what it left is stored", look)
    return found[0]


async def test_a_file_of_somebody_else_is_not_stored_however_it_came_there(fleet: Fleet, admin: Client) -> None:
    if os.geteuid() != 0:
        pytest.skip("only an agent that is root runs jobs as other accounts")
    await fleet.add_node("n1", "--cpus", "2", environment={"GPUCTL_AGENT_ISOLATION_USERS": "range"})
    job = await admin.submit("/bin/sh", "-c", "echo mine >a; ln -s /etc b", cwd="", results=["*"])
    await admin.wait(job)
    listed = await stored(admin, job)
    assert [each.path for each in listed.files] == ["a"]
