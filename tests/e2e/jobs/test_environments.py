"""Jobs that begin in a Python environment, with real programs: made once, by pip from wheels of the folder."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import sys
import time
from pathlib import Path

import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

from tests.e2e.client import Client
from tests.e2e.environments import PROGRAM, project, wheel
from tests.e2e.fleet import Fleet
from tests.e2e.jobs.test_folders import gpuctl
from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.node_agent.namespaces import needs_namespaces

DOCS = Path(__file__).parents[3] / "docs"
UPLOADED = ("--upload", ".", "--requirements", "requirements.txt", "--", "python", "train.py")


async def test_a_job_begins_in_what_its_requirements_file_says_and_the_next_one_finds_it_made(
    shared_fleet: Fleet, tmp_path: Path
) -> None:
    folder = project(tmp_path / "project", "good day")
    done = await gpuctl(shared_fleet, folder, "run", *UPLOADED)
    assert (done.returncode, done.stdout) == (0, "good day True\n"), done.stderr
    again = await gpuctl(shared_fleet, folder, "run", *UPLOADED)
    assert (again.returncode, again.stdout) == (0, "good day True\n"), again.stderr
    async with shared_fleet.client() as client:
        jobs = sorted((await client.queue(include_finished=True, page_size=2)).jobs, key=lambda job: job.id)
        first, second = [await client.story(job.id) for job in jobs[-2:]]
    assert any("Successfully installed greeting-1.0" in line for line in first), first
    assert any("made before" in line for line in second), second
    for job in jobs[-2:]:
        said = await gpuctl(shared_fleet, folder, "logs", "--setup", str(job.id))
        assert said.stdout.rstrip().endswith("Successfully installed greeting-1.0"), said.stderr
    last = await gpuctl(shared_fleet, folder, "logs", "--setup", "--tail", "1", str(jobs[-1].id))
    assert last.stdout == "Successfully installed greeting-1.0\n", last.stderr


def answers(folder: Path, line: str) -> tuple[str, ...]:
    return ("--upload", str(folder), "--setup", line, "--", "python", "-c", "print('ran')")


async def test_what_cannot_be_made_fails_the_job_with_what_was_written_last(
    shared_fleet: Fleet, tmp_path: Path
) -> None:
    folder = project(tmp_path / "project", "good day")
    (folder / "wheels" / "greeting-1.0-py3-none-any.whl").unlink()
    failed = await gpuctl(shared_fleet, folder, "run", *UPLOADED)
    assert failed.returncode != 0
    assert "SETUP_FAILED" in failed.stderr and "No matching distribution found for greeting==1.0" in failed.stderr
    said = await gpuctl(shared_fleet, folder, "logs", "--setup", "last")
    assert "No matching distribution found for greeting==1.0" in said.stdout, said.stderr
    missing = await gpuctl(shared_fleet, folder, "run", "--upload", ".", "--requirements", "other.txt", "--", "true")
    assert "--requirements: there is no other.txt in the folder" in missing.stderr


@pytest.mark.nightly
async def test_two_jobs_that_want_the_same_at_once_have_it_made_once_and_its_time_is_not_theirs(
    shared_fleet: Fleet, tmp_path: Path
) -> None:
    folder, count = project(tmp_path / "project", "once"), tmp_path / "made"
    line = f"echo made >> {count}; echo from the setup; sleep 3; pip install --no-index --find-links wheels greeting"
    said = await asyncio.gather(
        *(
            gpuctl(
                shared_fleet,
                folder,
                *("run", "--time-limit", "2s", "--upload", ".", "--setup", line, "--", "python", "train.py"),
            )
            for _ in range(2)
        )
    )
    assert [(each.returncode, each.stdout) for each in said] == [(0, "once True\n")] * 2, said
    assert count.read_text() == "made\n"


async def test_a_job_is_shown_setting_up_and_cancelled_at_once(shared_fleet: Fleet, tmp_path: Path) -> None:
    folder = project(tmp_path / "project", "never")
    asked = await gpuctl(shared_fleet, folder, "submit", "-o", "name", *answers(folder, "echo begun; sleep 1000"))
    job_id = int(asked.stdout)
    async with shared_fleet.client() as client:

        async def is_setting_up() -> bool:
            return bool((await client.job(job_id)).setting_up)

        await until("it is set up", is_setting_up)
        job = await client.job(job_id)
        assert (job.state, job.setting_up) == (job_pb2.JOB_STATE_STARTING, "echo begun; sleep 1000")

        async def is_told() -> bool:
            return (await gpuctl(shared_fleet, folder, "logs", "--setup", str(job_id))).stdout == "begun\n"

        await until("what it wrote so far is shown", is_told)
        table = await gpuctl(shared_fleet, folder, "queue")
        assert "setting up" in table.stdout
        began = time.monotonic()
        await client.cancel(job_id)
        job = await client.wait(job_id)
        assert (job.state, job.setting_up) == (job_pb2.JOB_STATE_CANCELLED, "")
        assert time.monotonic() - began < 10


async def test_what_makes_an_environment_is_followed_until_the_job_runs(shared_fleet: Fleet, tmp_path: Path) -> None:
    folder, gate = project(tmp_path / "project", "never"), tmp_path / "gate"
    line = f"echo one; until [ -e {gate} ]; do sleep 0.1; done; echo two"
    asked = await gpuctl(shared_fleet, folder, "submit", "-o", "name", *answers(folder, line))
    following = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "gpufleet.cli", "logs", "--setup", "-f", asked.stdout.strip()),
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "GPUCTL_SCHEDULER": shared_fleet.scheduler.address,
            "GPUCTL_TOKEN": shared_fleet.scheduler.token("admin"),
        },
        cwd=folder,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert following.stdout is not None
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert await following.stdout.readline() == b"one\n", "while it is made"
        gate.touch()
        rest, said = await following.communicate()
    assert (following.returncode, rest) == (0, b"two\n"), said
    failed = await gpuctl(shared_fleet, folder, "submit", "-o", "name", *answers(folder, "echo three; exit 4"))
    followed = await gpuctl(shared_fleet, folder, "logs", "--setup", "-f", failed.stdout.strip())
    assert followed.stdout == "three\n" and "SETUP_FAILED" in followed.stderr, followed.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("users", ["shared", pytest.param("range", marks=needs_namespaces)])
async def test_an_agent_killed_while_it_makes_one_leaves_no_half_of_it_and_makes_it_again(
    users: str, fleet: Fleet, admin: Client, tmp_path: Path
) -> None:
    agent = await fleet.add_node("n1", environment={"GPUCTL_AGENT_ISOLATION_USERS": users})
    folder = project(tmp_path / "project", "after all")
    (folder / "setup.sh").write_text(
        "touch half $GPUFLEET_ENVIRONMENT/half\n"
        'echo "until 9: $0"\n'
        "for i in 1 2 3 4 5 6 7 8; do sleep 1; done\n"
        "pip install -q --no-index --find-links wheels greeting\n"
    )
    asked = await gpuctl(
        fleet,
        folder,
        *("submit", "-o", "name", "--upload", ".", "--setup", "sh setup.sh", "--", "python", "train.py"),
    )
    job_id = int(asked.stdout)
    made = agent.data / "environments" / "made"

    async def has_begun() -> bool:
        return any(made.glob("*/env/half"))

    await until("it is being made", has_begun)
    agent.kill()
    agent.spawn()
    job = await admin.wait(job_id)
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED, (job.exit_reason, job.exit_message)
    assert await admin.stdout(job_id) == b"after all True\n"
    assert len([*made.iterdir()]) == 1


@needs_namespaces
async def test_where_users_are_kept_apart_they_share_what_none_of_them_can_change(
    fleet: Fleet, admin: Client, tmp_path: Path
) -> None:
    agent = await fleet.add_node("n1", environment={"GPUCTL_AGENT_ISOLATION_USERS": "range"})
    folder = project(tmp_path / "project", "for all")
    tokens = {}
    for name in ("ann", "bob"):
        request = scheduler_pb2.CreateTokenRequest(user=name, role=scheduler_pb2.ROLE_USER)
        tokens[name] = (await admin.stub.CreateToken(request)).secret
    spoil = (
        "echo evil > $GPUFLEET_ENVIRONMENT/lib/python3*/site-packages/greeting.py; "
        "rm -rf $GPUFLEET_ENVIRONMENT/bin; mount -o remount,rw,bind $GPUFLEET_ENVIRONMENT; python train.py; id -u"
    )
    spoiled = await gpuctl(
        fleet, folder, "run", "--upload", ".", "--requirements", "requirements.txt", "--", spoil, token=tokens["ann"]
    )
    assert spoiled.stdout.splitlines()[0] == "for all True", spoiled.stderr
    assert "Read-only file system" in spoiled.stderr
    found = await gpuctl(fleet, folder, "run", *UPLOADED, token=tokens["bob"])
    assert (found.returncode, found.stdout) == (0, "for all True\n"), found.stderr
    (mark,) = (agent.data / "environments" / "made").glob("*/made")
    assert json.loads(mark.read_text())["user"] == ""
    builder = json.loads((agent.data / "uids.json").read_text())["environments of all"]
    assert {each.stat().st_uid for each in mark.parent.glob("env/bin")} == {builder}


@pytest.mark.nightly
@needs_namespaces
async def test_a_setup_of_one_user_sees_and_changes_nothing_of_others(
    fleet: Fleet, admin: Client, tmp_path: Path
) -> None:
    agent = await fleet.add_node("n1", environment={"GPUCTL_AGENT_ISOLATION_USERS": "range"})
    folder = project(tmp_path / "project", "mine")
    first = await gpuctl(fleet, folder, "run", *UPLOADED)
    assert first.returncode == 0, first.stderr
    secret = agent.data / "uids.json"
    line = (
        f"id -u > $GPUFLEET_ENVIRONMENT/seen; cat {secret} >> $GPUFLEET_ENVIRONMENT/seen || true; "
        f"ls {agent.data}/environments/made >> $GPUFLEET_ENVIRONMENT/seen || true; env >> $GPUFLEET_ENVIRONMENT/seen"
    )
    command = ("--env", "OWN=of-the-job", "--", "cat $GPUFLEET_ENVIRONMENT/seen")
    seen = await gpuctl(fleet, folder, "run", "--upload", ".", "--setup", line, *command)
    assert seen.returncode == 0, seen.stderr
    assert int(seen.stdout.splitlines()[0]) >= 1_900_000_000
    assert "environments of all" not in seen.stdout and "of-the-job" not in seen.stdout
    assert "GPUFLEET_ENVIRONMENT=/run/gpufleet/environment" in seen.stdout


@pytest.mark.nightly
async def test_what_was_not_used_for_longest_gives_way_and_nothing_that_a_job_has(
    fleet: Fleet, admin: Client, tmp_path: Path
) -> None:
    agent = await fleet.add_node("n1", environment={"GPUCTL_AGENT_SETUP_CACHE_LIMIT": "60MB"})
    folder, go = project(tmp_path / "project", "kept"), tmp_path / "go"
    holds = await gpuctl(
        fleet,
        folder,
        *("submit", "-o", "name", "--upload", ".", "--requirements", "requirements.txt", "--"),
        f"until [ -e {go} ]; do sleep 0.1; done; python train.py",
    )
    await admin.wait(int(holds.stdout), job_pb2.JOB_STATE_RUNNING)
    made = agent.data / "environments" / "made"
    (first,) = made.iterdir()
    for number in (1, 2):
        done = await gpuctl(fleet, folder, "run", *answers(folder, f"echo {number}"))
        assert done.returncode == 0, done.stderr

    async def has_given_way() -> bool:
        return len([*made.iterdir()]) == 2

    await until("one has given way", has_given_way)
    assert first.exists()
    go.touch()
    job = await admin.wait(int(holds.stdout))
    assert await admin.stdout(job.id) == b"kept True\n"
    big = await gpuctl(
        fleet, folder, "run", *answers(folder, "head -c 70000000 /dev/urandom > $GPUFLEET_ENVIRONMENT/big")
    )
    assert "SETUP_FAILED" in big.stderr and "more than the 60MB" in big.stderr


MICROMAMBA = """#!/bin/sh
# Speaks like micromamba as far as a node asks it: create -y -p FOLDER -f FILE.
[ "$1" = --version ] && echo 9.9.9 && exit
[ "$1 $2 $3 $5" = "create -y -p -f" ] || exit 64
mkdir -p "$4/bin" "$4/conda-meta"
grep -q 'name: trainer' "$6" || { echo "EnvironmentFileNotValid: $6"; exit 1; }
ln -s /usr/bin/env "$4/bin/of-conda"
"""


async def test_conda_makes_one_of_an_environment_file_and_the_job_begins_in_it(
    fleet: Fleet, admin: Client, tmp_path: Path
) -> None:
    (programs := tmp_path / "programs").mkdir()
    (programs / "micromamba").write_text(MICROMAMBA)
    (programs / "micromamba").chmod(0o755)
    await fleet.add_node("n1", environment={"PATH": f"{programs}:{os.environ['PATH']}"})
    (folder := tmp_path / "project").mkdir()
    (folder / "environment.yml").write_text("name: trainer\n")
    line = (
        "run",
        "--upload",
        ".",
        "--conda",
        "environment.yml",
        "--",
        'of-conda | grep CONDA_PREFIX; [ -z "$VIRTUAL_ENV" ]',
    )
    done = await gpuctl(fleet, folder, *line)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"CONDA_PREFIX={fleet.agents['n1'].data}/environments/made/")
    (folder / "environment.yml").write_text("name: other\n")
    failed = await gpuctl(fleet, folder, *line)
    assert "SETUP_FAILED" in failed.stderr and "EnvironmentFileNotValid" in failed.stderr


async def test_uv_makes_one_of_a_lock_without_the_project_itself(fleet: Fleet, admin: Client, tmp_path: Path) -> None:
    programs = Path(sys.executable).parent
    await fleet.add_node("n1", environment={"PATH": f"{programs}:{os.environ['PATH']}"})
    wheels = wheel(tmp_path / "wheels", "by uv").parent
    (folder := tmp_path / "project").mkdir()
    (folder / "train.py").write_text(PROGRAM)
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "trainer"\nversion = "1.0"\nrequires-python = ">=3.9"\ndependencies = ["greeting==1.0"]\n'
        f'[tool.uv]\nno-index = true\nfind-links = ["{wheels}"]\n'
    )
    missing = await gpuctl(fleet, folder, "run", "--upload", ".", "--uv", "--", "true")
    assert "--uv: there is no uv.lock in the folder" in missing.stderr
    locked = await asyncio.create_subprocess_exec(programs / "uv", "lock", "--quiet", cwd=folder)
    assert await locked.wait() == 0
    done = await gpuctl(fleet, folder, "run", "--upload", ".", "--uv", "--", "python", "train.py")
    assert (done.returncode, done.stdout) == (0, "by uv True\n"), done.stderr


@pytest.mark.nightly
async def test_a_project_file_says_all_that_is_typed_each_time(shared_fleet: Fleet, tmp_path: Path) -> None:
    folder = project(tmp_path / "project", "as the file says")
    (folder / "gpufleet.toml").write_text(
        'upload = "."\nrequirements = "requirements.txt"\ndownload = ["out/**"]\nignore = ["large/"]\n'
        "[env]\nEPOCHS = 20\n"
    )
    (folder / "large").mkdir()
    (folder / "large" / "data").touch()
    line = "python train.py; mkdir out; echo $EPOCHS > out/epochs; ls -d large 2>&1 || true"
    done = await gpuctl(shared_fleet, folder, "run", "--", line)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("as the file says True\n") and "No such file" in done.stdout
    assert (folder / "out" / "epochs").read_text() == "20\n"


async def test_the_pages_on_environments_and_the_project_file_do_as_they_say(
    shared_fleet: Fleet, tmp_path: Path
) -> None:
    folder = project(tmp_path / "project", "as the pages say")
    (line,) = blocks("environments.md", "sh")
    done = await gpuctl(shared_fleet, folder, *shlex.split(line)[1:])
    assert (done.returncode, done.stdout) == (0, "as the pages say True\n"), done.stderr
    (said,) = blocks("your-code.md", "toml")
    (folder / "gpufleet.toml").write_text(said)
    page = (DOCS / "your-code.md").read_text()
    (whole,) = re.findall(r"Then `gpuctl (run -- .*)` is the whole line", page)
    done = await gpuctl(shared_fleet, folder, *shlex.split(whole))
    assert (done.returncode, done.stdout) == (0, "as the pages say True\n"), done.stderr
    assert "gpuctl: gpufleet.toml: --gpus=2 --time-limit=4h " in done.stderr


def blocks(page: str, kind: str) -> list[str]:
    """What stands in the blocks of this kind of a page."""
    return re.findall(rf"```{kind}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)[-1:]
