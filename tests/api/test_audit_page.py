"""Each command of docs/audit.md does what the page says, typed at a real scheduler."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from gpufleet.v1 import scheduler_pb2

from tests.e2e.client import Client, refusal, select
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS

PAGE = (Path(__file__).parents[2] / "docs/audit.md").read_text()
BLOCK = PAGE.partition("```sh\n")[2].partition("```")[0]
TYPED = re.findall(r"^gpuctl (.*)$", BLOCK, re.MULTILINE)


async def typed(fleet: Fleet, words: list[str], token: str) -> str:
    """What a command prints, which must end well."""
    known = {"GPUCTL_SCHEDULER": fleet.scheduler.address, "GPUCTL_TOKEN": token, "HOME": str(fleet.folder)}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GPUCTL_")}

    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "gpufleet.cli", *words]
        return subprocess.run(
            command, env={**kept, **known}, cwd=fleet.work, capture_output=True, text=True, timeout=DEADLINE_SECONDS
        )

    done = await asyncio.to_thread(run)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout


@pytest.mark.parametrize("line", TYPED)
async def test_each_command_of_the_page_shows_something(fleet: Fleet, admin: Client, line: str) -> None:
    await refusal(admin.stub.Cancel(scheduler_pb2.CancelRequest(jobs=select(99_999_999))))
    assert await typed(fleet, shlex.split(line), fleet.scheduler.token("admin"))


async def test_what_was_done_stands_in_the_table(fleet: Fleet, admin: Client) -> None:
    job = await admin.submit("true", is_held=True)
    await admin.cancel(job)
    token = fleet.scheduler.token("admin")
    shown = (await typed(fleet, ["audit", "--on", f"job:{job}"], token)).splitlines()
    assert [line.split()[2] for line in shown] == ["CALL", "Submit", "Cancel"]
    told = json.loads(await typed(fleet, ["audit", "--on", f"job:{job}", "-o", "json"], token))
    assert [(each["action"], each["code"], each["peer"]) for each in told["entries"]] == [
        ("Submit", "OK", "127.0.0.1"),
        ("Cancel", "OK", "127.0.0.1"),
    ]
