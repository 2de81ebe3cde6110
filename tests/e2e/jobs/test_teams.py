"""docs/teams.md, typed line by line: an admin's lines by an admin, a member's by one with a token of their own."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from gpufleet.v1 import scheduler_pb2

from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS, clean_environment, until

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[3] / "docs/teams.md"
Typing = Callable[[str, str], Awaitable[subprocess.CompletedProcess[str]]]


def typed_lines() -> list[str]:
    return [
        line for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL) for line in block.splitlines()
    ]


def typist(fleet: Fleet, tokens: dict[str, str]) -> Typing:
    """Types a line as one of these users."""

    async def typing(user: str, line: str) -> subprocess.CompletedProcess[str]:
        program, *words = shlex.split(line)
        assert program == "gpuctl"
        known = {"GPUCTL_SCHEDULER": fleet.scheduler.address, "GPUCTL_TOKEN": tokens[user]}
        return await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-P", "-m", "gpufleet.cli", *words],
            env=clean_environment(fleet.folder, known),
            cwd=fleet.work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
        )

    return typing


async def tokens_of(fleet: Fleet, *users: str) -> dict[str, str]:
    found = {"admin": fleet.scheduler.token("admin")}
    async with fleet.client() as admin:
        for user in users:
            request = scheduler_pb2.CreateTokenRequest(user=user, role=scheduler_pb2.ROLE_USER)
            found[user] = (await admin.stub.CreateToken(request, timeout=DEADLINE_SECONDS)).secret
    return found


async def test_every_line_of_the_page_does_what_the_page_says(fleet: Fleet) -> None:
    await fleet.add_node("n1")
    typing = typist(fleet, await tokens_of(fleet, "ana", "ben", "eva"))
    said: dict[str, str] = {}
    for line in typed_lines():
        done = await typing("ana" if " submit " in line else "admin", line)
        assert done.returncode == 0, (line, done.stderr)
        assert "no token" not in done.stderr, (line, done.stderr)
        said[line] = done.stdout
    lines = list(said)
    listed = said["gpuctl group list"]
    assert [row.split()[0] for row in listed.splitlines()] == ["NAME", "ml", "vision"]
    assert "of 8" in listed and "of 500" in listed and "high" in listed and "ana, ben" in listed
    members = [row.split() for row in said["gpuctl group members ml"].splitlines()[1:]]
    assert [row[0] for row in members] == ["ana", "ben"] and all("yes" in row for row in members)
    jobs = [said[line].strip() for line in lines if " submit " in line]
    shown = [json.loads((await typing("ana", f"gpuctl job {job} -o json")).stdout) for job in jobs]
    assert [job["spec"]["group"] for job in shown] == ["speech", "vision"]
    assert [job.get("group_is_removed", False) for job in shown] == [True, False]
    assert "group speech (removed)" in (await typing("ana", f"gpuctl job {jobs[0]}")).stdout

    async def are_counted() -> bool:
        used = json.loads((await typing("admin", "gpuctl usage --by group -o json")).stdout)["rows"]
        return {row["name"] for row in used if row["job_count"]} == {"speech (removed)", "vision"}

    await until("what both groups used is counted", are_counted)


async def test_members_see_their_own_groups_and_change_none(fleet: Fleet) -> None:
    typing = typist(fleet, await tokens_of(fleet, "ana", "eva"))
    assert (await typing("admin", "gpuctl group set ml --gpus 1 --max-band low --add ana")).returncode == 0
    assert (await typing("admin", "gpuctl group set vision --add eva")).returncode == 0
    mine = await typing("ana", "gpuctl group list -o name")
    assert mine.stdout.split() == ["ml"]
    hidden = await typing("ana", "gpuctl group members vision")
    assert hidden.returncode == 3 and "you see no group 'vision'" in hidden.stderr
    for line in ("group set ml --gpus none", "group rename ml mine", "group remove ml", "group set mine --add ana"):
        refused = await typing("ana", f"gpuctl {line}")
        assert refused.returncode == 4, (line, refused.stderr)
        assert "a token of role user may not call" in refused.stderr, (line, refused.stderr)
    others = await typing("ana", "gpuctl submit --group vision -- true")
    assert others.returncode == 3 and "--group" in others.stderr and "one of yours: ml" in others.stderr
    above = await typing("ana", "gpuctl submit --band normal -- true")
    assert above.returncode == 4 and "--band low" in above.stderr
    for wrong in ("--gpus=-1", "--gpus=0", "--gpus=many", "--shares=0", "--max-band=top", "--gpu-hours-week=1.5"):
        bad = await typing("admin", f"gpuctl group set ml {wrong}")
        assert bad.returncode == 2 and wrong.partition("=")[0] in bad.stderr, (wrong, bad.stderr)
    kept = await typing("admin", "gpuctl group list -o json")
    (ml,) = [each for each in json.loads(kept.stdout)["groups"] if each["name"] == "ml"]
    assert (ml["gpus_max"], ml["max_band"], ml["shares"]) == (1, "BAND_LOW", 1)
