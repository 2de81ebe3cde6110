"""A folder that goes along with a job, with real programs: `gpuctl run --upload`, to the files that the job sees."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpufleet.v1 import job_pb2

from tests.e2e.client import Client
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS, clean_environment, until

LISTED = "find . -type d -empty -print -o -type f -printf '%p %m %s\\n' -o -type l -printf '%p -> %l\\n' | sort"


async def gpuctl(fleet: Fleet, folder: Path, *arguments: str, token: str = "") -> subprocess.CompletedProcess[str]:
    """What a command prints that somebody types in a folder; an admin, unless a token is given."""
    known = {"GPUCTL_SCHEDULER": fleet.scheduler.address, "GPUCTL_TOKEN": token or fleet.scheduler.token("admin")}

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "gpufleet.cli", *arguments],
            env=clean_environment(fleet.folder, known),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
        )

    return await asyncio.to_thread(run)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder as people have one: code, data, a link, an environment, and what git leaves out."""
    folder = tmp_path / "project"
    for path, text in {
        "train.py": "print(open('data/words.txt').read().strip())\n",
        "data/words.txt": "as it is now\n",
        "data/empty.txt": "",
        "big.bin": "0123456789abcdef" * 100_000,
        ".gitignore": "*.log\nbig.bin\n",
        ".gpufleetignore": "!big.bin\n",
        "noise.log": "left here\n",
        ".git/config": "left here\n",
        "env/pyvenv.cfg": "left here\n",
        "pkg/__pycache__/a.pyc": "left here\n",
        "pkg/a.py": "\n",
    }.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (folder / "out").mkdir()
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "pkg" / "link").symlink_to("../data/words.txt")
    return folder


async def test_a_folder_goes_along_and_the_second_time_only_what_changed(shared_fleet: Fleet, project: Path) -> None:
    done = await gpuctl(shared_fleet, project, "run", "--upload", ".", "--", LISTED)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "./.gitignore 600 14",
        "./.gpufleetignore 600 9",
        "./big.bin 600 1600000",
        "./data/empty.txt 600 0",
        "./data/words.txt 600 13",
        "./out",
        "./pkg/a.py 600 1",
        "./pkg/link -> ../data/words.txt",
        "./run.sh 700 10",
        "./train.py 600 45",
    ]
    assert "10 files, 1.6MB; sends 552kB in 4 chunks" in done.stderr  # three of its chunks are alike
    assert "largest: big.bin 1.6MB, " in done.stderr
    assert "left out: 'env/', 'pkg/__pycache__/'" in done.stderr or "'pkg/__pycache__/', 'env/'" in done.stderr

    (project / "data" / "words.txt").write_text("one line changed\n")
    again = await gpuctl(shared_fleet, project, "run", "--upload", ".", "--", sys.executable, "train.py")
    assert (again.returncode, again.stdout) == (0, "one line changed\n"), again.stderr
    assert "in 1 chunk\n" in again.stderr
    same = await gpuctl(shared_fleet, project, "run", "--upload", ".", "--", "sha256sum < big.bin; cat pkg/link")
    assert "nothing of it is new" in same.stderr
    assert "one line changed" in same.stdout


async def test_two_submits_of_one_folder_at_once_both_run_in_it_and_a_folder_inside_can_be_named(
    shared_fleet: Fleet, project: Path
) -> None:
    (project / "large.bin").write_bytes(os.urandom(3 * 2**20))  # what nobody has sent
    both = await asyncio.gather(
        *(
            gpuctl(shared_fleet, project, "run", "--upload", ".", "--cwd", "pkg", "--", "cat ../large.bin | wc -c; pwd")
            for _ in range(2)
        )
    )
    for done in both:
        assert done.returncode == 0, done.stderr
        assert done.stdout.split()[0] == str(3 * 2**20)
        assert done.stdout.split()[1].endswith("/pkg")
    wrong = await gpuctl(shared_fleet, project, "submit", "--upload", ".", "--cwd", "../out", "--", "true")
    assert wrong.returncode != 0 and "--cwd" in wrong.stderr


async def test_a_folder_that_comes_again_is_laid_out_before_its_job_and_each_has_its_own(
    fleet: Fleet, project: Path
) -> None:
    agent = await fleet.add_node("n1", "--cpus", "2")
    spares = agent.data / "files" / "spares"
    said: list[list[str]] = []
    ready: set[str] = set()
    for number in range(3):
        if number == 2:
            await until("a copy lies ready", lambda: any(spares.glob("*")))
            ready = {str(each.stat().st_ino) for each in spares.iterdir()}
        line = "stat -c %i .; cat data/words.txt pkg/link; ls -A | wc -l; echo changed > data/words.txt"
        done = await gpuctl(fleet, project, "run", "--upload", ".", "--", line)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.split("\n"))
    assert said[2][0] in ready and said[1][0] not in ready
    assert said[0][1:] == said[1][1:] == said[2][1:] == ["as it is now", "as it is now", "8", ""]


async def test_a_folder_belongs_to_the_jobs_user_where_jobs_are_isolated(fleet: Fleet, project: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only an agent that is root runs jobs as other accounts")
    agent = await fleet.add_node("n1", "--cpus", "2", environment={"GPUCTL_AGENT_ISOLATION_USERS": "range"})
    spares = agent.data / "files" / "spares"
    line = "stat -c '%u %a' train.py data pkg/link; echo more >> train.py && rm data/words.txt && pwd"
    for number in range(3):  # what the first one changed, the others do not see; the third one was laid out beforehand
        if number == 2:
            await until("a copy lies ready", lambda: any(spares.glob("*")))
        done = await gpuctl(fleet, project, "run", "--upload", ".", "--", line)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == [
            *("1900000000", "600", "1900000000", "700", "1900000000", "777"),
            "/run/gpufleet/files",
        ]


async def test_a_job_that_is_submitted_again_by_its_line_has_the_same_folder(
    shared_fleet: Fleet, person: Client, project: Path
) -> None:
    done = await gpuctl(shared_fleet, project, "submit", "--upload", ".", "--", "cat", "data/words.txt")
    job = await person.wait(int(done.stdout))
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED, job.exit_message
    (project / "data" / "words.txt").write_text("changed since\n")
    folder = job.spec.folder
    named = f"sha256:{folder.digest}:{folder.size_bytes}:{folder.entry_count}:{folder.content_bytes}"
    again = await gpuctl(shared_fleet, project, "run", "--upload", named, "--", "cat", "data/words.txt")
    assert (again.stdout, again.returncode) == ("as it is now\n", 0), again.stderr
