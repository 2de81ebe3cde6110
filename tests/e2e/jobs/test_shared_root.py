"""A folder that people and nodes see: its files are read there, once both have shown it, and nothing of it is lent."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from gpufleet.v1 import files_pb2, job_pb2, scheduler_pb2

from gpufleet.jobs.shared_root import MARKER, PROBE, new_probe
from tests.e2e.client import Client
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS, clean_environment

WIRE, CACHE, SHARED = job_pb2.FILE_WAY_WIRE, job_pb2.FILE_WAY_CACHE, job_pb2.FILE_WAY_SHARED_ROOT


async def gpuctl(fleet: Fleet, *arguments: str) -> tuple[str, str]:
    """What a command of the admin's prints, and says beside it."""
    known = {"GPUCTL_SCHEDULER": fleet.scheduler.address, "GPUCTL_TOKEN": fleet.scheduler.token("admin")}
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-P", "-m", "gpufleet.cli", *arguments],
        env=clean_environment(fleet.folder, known),
        cwd=fleet.work,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def ways(job: job_pb2.Job) -> list[tuple[int, int]]:
    return [(run.way, run.count) for run in job.attempts[-1].ranks[0].file_runs]


def uploaded(fleet: Fleet) -> int:
    return sum(1 for each in (fleet.scheduler.data / "blobs").glob("*/*") if each.is_file())


async def test_files_in_a_folder_that_every_node_sees_are_read_there_and_nothing_is_uploaded(
    fleet: Fleet, admin: Client, tmp_path: Path
) -> None:
    team = tmp_path / "team"
    (team / "data").mkdir(parents=True)
    (team / "data" / "a.txt").write_text("in the team's folder\n")
    # By another name there, as mounts have.
    (tmp_path / "mnt").symlink_to(team)
    agent = await fleet.add_node("n1", "--cpus", "2", "--shared-root", str(tmp_path / "mnt"))
    (fleet.work / "own.txt").write_text("elsewhere\n")
    line = ["submit", "--shared-root", str(team), "--file", str(team / "data")]
    job, said = await gpuctl(
        fleet, *line, "--", "sh", "-c", "cat data/a.txt; echo changed > data/a.txt; cat data/a.txt"
    )
    assert said == ""
    ended = await admin.wait(int(job))
    assert ended.state == job_pb2.JOB_STATE_SUCCEEDED, (ended.exit_reason, ended.exit_message)
    assert await admin.stdout(int(job)) == b"in the team's folder\nchanged\n"
    assert (team / "data" / "a.txt").read_text() == "in the team's folder\n"
    assert (ways(ended), uploaded(fleet)) == ([(SHARED, 1)], 0)
    assert [each.name for each in sorted(team.iterdir())] == [MARKER, "data"], "the probe is gone"
    assert "read in the shared folder: data/a.txt" in (await gpuctl(fleet, "job", job))[0]

    # What lies elsewhere goes by the scheduler, and then out of the node's cache.
    for way in (WIRE, CACHE):
        job, _ = await gpuctl(fleet, *line, "--file", "own.txt=data/z.txt", "--", "cat", "data/a.txt", "data/z.txt")
        ended = await admin.wait(int(job))
        assert ended.state == job_pb2.JOB_STATE_SUCCEEDED, (ended.exit_reason, ended.exit_message)
        assert (ways(ended), uploaded(fleet)) == ([(SHARED, 1), (way, 1)], 1)

    # A file that changes while its job waits is not run with; what a node found outlives both programs' restarts.
    held, _ = await gpuctl(fleet, *line, "--hold", "--", "cat", "data/a.txt")
    await fleet.scheduler.stop()
    await fleet.scheduler.start()
    agent.kill()
    agent.spawn()
    await fleet.node_is_ready("n1")
    (team / "data" / "a.txt").write_text("in the team's FOLDER\n")
    await gpuctl(fleet, "release", held)
    ended = await admin.wait(int(held))
    assert (ended.state, ended.exit_reason) == (job_pb2.JOB_STATE_FAILED, "FILES_CHANGED")
    assert "data/a.txt in the shared folder is no longer what was submitted" in ended.exit_message


async def test_where_a_node_does_not_see_the_folder_files_are_uploaded_and_it_is_told(
    fleet: Fleet, admin: Client, tmp_path: Path
) -> None:
    team, copy = tmp_path / "team", tmp_path / "copy"
    for each in (team, copy):
        each.mkdir()
        (each / "a.txt").write_text("the same bytes\n")
        (each / MARKER).write_text("ab" * 16)  # as a copy of a folder has it
    await fleet.add_node("n1", "--cpus", "2", "--shared-root", str(team))
    await fleet.add_node("n2", "--cpus", "2", "--shared-root", str(copy))
    line = ["submit", "--shared-root", str(team), "--file", str(team / "a.txt")]
    job, said = await gpuctl(fleet, *line, "--nodelist", "n2", "--", "cat", "a.txt")
    assert "no node sees" in said and "it is another folder" in said
    ended = await admin.wait(int(job))
    assert (ended.state, ways(ended), uploaded(fleet)) == (job_pb2.JOB_STATE_SUCCEEDED, [(WIRE, 1)], 1)
    job, said = await gpuctl(fleet, *line, "--nodelist", "n1", "--", "cat", "a.txt")
    assert said == ""
    assert ways(await admin.wait(int(job))) == [(SHARED, 1)]
    # Who says that a probe is there, and has written none, takes nothing from others.
    unwritten = files_pb2.CheckFilesRequest(root="ab" * 16, probe=new_probe(), digest="cd" * 32, size_bytes=1)
    asked = (await admin.stub.CheckFiles(unwritten, timeout=DEADLINE_SECONDS)).nodes
    assert [each.is_same_root for each in asked] == [False, False]
    nodes = (await admin.stub.ListNodes(scheduler_pb2.ListNodesRequest())).nodes
    assert [(each.name, each.shared_root_is_checked) for each in nodes] == [("n1", True), ("n2", False)]

    said, _ = await gpuctl(fleet, "doctor", "--files", "--shared-root", str(team), "-o", "json")
    found = {each["what"]: each for each in json.loads(said) if each["what"].startswith("files ")}
    rate = r"[\d,]+ MB/s"
    assert found["files n1"]["verdict"] == "OK"
    assert re.fullmatch(rf"from the scheduler {rate}, in {team} {rate}", found["files n1"]["sentence"])
    assert found["files n2"]["verdict"] == "WARNING"
    assert re.match(rf"from the scheduler {rate}; it does not see {team}: what was just", found["files n2"]["sentence"])
    assert not list(team.glob(f"{PROBE}*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only an agent that is root runs jobs as other accounts")
async def test_a_job_reads_nothing_there_that_its_user_may_not(fleet: Fleet, admin: Client, tmp_path: Path) -> None:
    team = tmp_path / "team"
    team.mkdir()
    for folder in (team, *team.parents):
        if folder.stat().st_uid == os.geteuid() and folder.name.startswith(("team", "test_")):
            folder.chmod(0o755)
    (team / "open.txt").write_text("for all\n")
    (team / "private.txt").write_text("of root alone\n")
    (team / "private.txt").chmod(0o600)
    range_ = {"GPUCTL_AGENT_ISOLATION_USERS": "range"}
    await fleet.add_node("n1", "--cpus", "2", "--shared-root", str(team), environment=range_)
    line = ["submit", "--shared-root", str(team), "--file", str(team / "open.txt")]
    job, said = await gpuctl(fleet, *line, "--file", str(team / "private.txt"), "--", "cat", "open.txt", "private.txt")
    assert "1 file uploaded, as private.txt cannot be read by the account that the job runs as" in said
    ended = await admin.wait(int(job))
    assert (ended.state, ways(ended)) == (job_pb2.JOB_STATE_SUCCEEDED, [(SHARED, 1), (WIRE, 1)])

    # Who knows its digest and names it, without the bytes, has not got it: not even where the node has them by now.
    stolen = (await admin.job(int(job))).spec.files[1]
    marker = (team / MARKER).read_text().strip()
    ada = await _user(fleet, "ada")
    async with fleet.client(ada) as thief:
        named = job_pb2.InputFile(
            path="private.txt",
            digest=stolen.digest,
            size_bytes=stolen.size_bytes,
            shared_root=marker,
            shared_path="private.txt",
        )
        number = await thief.submit("cat", "private.txt", cwd="", files=[named])
        ended = await thief.wait(number)
    assert (ended.state, ended.exit_reason) == (job_pb2.JOB_STATE_FAILED, "FILES_CHANGED")
    assert "cannot be read by the account that the job runs as" in ended.exit_message


async def _user(fleet: Fleet, name: str) -> str:
    said, _ = await gpuctl(fleet, "token", "create", name, "-o", "json")
    return str(json.loads(said)["secret"])
