"""Who knows both addresses goes over to the one that leads: people's commands, followers, agents and their jobs."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from scheduler.__main__ import SUPERSEDED
from tests.e2e.processes import DEADLINE_SECONDS, clean_environment
from tests.leading.pair import Pair

pytestmark = pytest.mark.postgres

COUNTS = """
import os, pathlib, time
print("begun", os.environ["GPUFLEET_SCHEDULER"], flush=True)
number = 0
while not pathlib.Path("go on").exists():
    print("line", number, flush=True)
    number += 1
    time.sleep(0.01)
print("lines", number)
raise SystemExit(7)
"""
"""Prints numbered lines until the file `go on` is there, then how many there were, and exits with 7."""


@pytest.fixture
async def pair(tmp_path: Path, url: str) -> AsyncIterator[Pair]:
    """A scheduler and a standby, each with its port, and a node that knows both."""
    async with Pair(tmp_path / "fleet", url, silence_max="2s", has_own_port=True) as own:
        await own.add_node("n1", "--cpus", "4", "--scheduler", both(own))
        yield own


def both(pair: Pair) -> str:
    return f"{pair.scheduler.address},{pair.other.address}"


@asynccontextmanager
async def gpuctl(pair: Pair, *words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A command of the admin, who knows both addresses."""
    known = {"GPUCTL_SCHEDULER": both(pair), "GPUCTL_TOKEN_FILE": str(pair.scheduler.data / "admin.token")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "gpufleet.cli", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=clean_environment(pair.work, known),
        cwd=pair.work,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("trouble", [signal.SIGKILL, signal.SIGSTOP])
async def test_commands_followers_and_nodes_go_over_to_the_standby(pair: Pair, trouble: signal.Signals) -> None:
    script = pair.work / "counts.py"
    script.write_text(COUNTS)
    async with (
        gpuctl(pair, "run", "--cpus", "1", "--", sys.executable, str(script)) as run,
        asyncio.timeout(2 * DEADLINE_SECONDS),
    ):
        assert run.stdout is not None
        begun = await run.stdout.readline()
        assert begun.decode().split() == ["begun", both(pair)], "a job is told of all addresses"
        assert await run.stdout.readline() == b"line 0\n"
        pair.scheduler.signal(trouble)
        async with gpuctl(pair, "submit", "--cpus", "1", "--", "true") as submit:
            out, err = await submit.communicate()
        assert submit.returncode == 0, err
        assert out.strip(), "its id"
        await pair.serves(pair.other)
        (pair.work / "go on").touch()
        rest, told = await run.communicate()
        *lines, last = rest.decode().splitlines()
        assert lines == [f"line {number}" for number in range(1, len(lines) + 1)], told
        assert last == f"lines {len(lines) + 1}"
        assert run.returncode == 7, told
        async with gpuctl(pair, "wait", out.decode().split()[-1]) as waited:
            assert await waited.wait() == 0
    if trouble is signal.SIGSTOP:
        pair.scheduler.signal(signal.SIGCONT)
        assert await pair.scheduler.ended() == SUPERSEDED
