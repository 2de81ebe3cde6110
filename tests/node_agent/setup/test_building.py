"""A build with its real process: what it sees, how it ends, and what is left of it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from node_agent.core.launch import RefusalReason
from node_agent.keeper.processes import children
from node_agent.setup.building import OUTPUT_BYTES_MAX, Build
from node_agent.setup.recipes import NotMade, Recipe
from tests.e2e.processes import until

SECONDS = 60.0


def build_of(folder: Path, script: str) -> Build:
    recipe = Recipe(key="key", script=script, in_words="the setup", files={"requirements.txt": b"words\n"})
    (folder / "made").mkdir(exist_ok=True)
    return Build(folder / "made" / "key", folder / "lock", folder / "stage", recipe)


async def made(build: Build, files: Path, seconds_max: float = SECONDS) -> float:
    return await build.make(files, None, None, seconds_max=seconds_max)


async def has_begun(pid: Path) -> None:
    await until("it runs", lambda: asyncio.to_thread(lambda: pid.exists() and bool(pid.read_text())))


async def is_gone(pid: Path) -> None:
    await until("it has ended", lambda: asyncio.to_thread(lambda: not Path("/proc", pid.read_text().strip()).exists()))


def builders() -> list[int]:
    return [each for each in children(os.getpid()) if "builder" in Path(f"/proc/{each}/cmdline").read_text()]


async def test_it_sees_its_files_and_none_of_the_agents_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid:1")
    build = build_of(tmp_path, 'env > "$GPUFLEET_ENVIRONMENT/env"; ls -A > "$GPUFLEET_ENVIRONMENT/ls"; echo done')
    assert 0 < await made(build, tmp_path) < SECONDS
    env = (tmp_path / "made/key/env/env").read_text()
    assert "hidden" not in env and "HTTPS_PROXY=http://proxy.invalid:1" in env
    assert (tmp_path / "made/key/env/ls").read_text() == "requirements.txt\n"
    assert build.said == "done"
    assert sorted(each.name for each in (tmp_path / "made/key").iterdir()) == ["env", "output"]


async def test_one_that_fails_says_its_code_and_its_last_lines(tmp_path: Path) -> None:
    with pytest.raises(NotMade) as failed:
        await made(build_of(tmp_path, "echo one; echo two >&2; exit 3"), tmp_path)
    assert failed.value.refusal.reason is RefusalReason.SETUP_FAILED
    assert failed.value.refusal.detail == "the setup: it failed with code 3: one\ntwo"


async def test_one_that_hangs_is_ended_with_all_that_it_began(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with pytest.raises(NotMade, match="it was not done after 2s, the node's limit for it: hanging"):
        await made(build_of(tmp_path, f"setsid sleep 1000 & echo $! > {pid}; echo hanging; sleep 1000"), tmp_path, 2)
    await is_gone(pid)


async def test_cancelled_it_ends_at_once(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    making = asyncio.create_task(made(build_of(tmp_path, f"echo $$ > {pid}; sleep 1000"), tmp_path))

    await has_begun(pid)
    making.cancel()
    await asyncio.gather(making, return_exceptions=True)
    await is_gone(pid)


async def test_a_builder_that_is_killed_takes_its_build_with_it_and_the_next_one_waits_for_that(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    making = asyncio.create_task(made(build_of(tmp_path, f"echo $$ > {pid}; sleep 1000"), tmp_path))

    await has_begun(pid)
    for builder in builders():
        os.kill(builder, signal.SIGKILL)
    with pytest.raises(NotMade, match="ended by signal 9"):
        await making
    await made(build_of(tmp_path, "true"), tmp_path)
    await is_gone(pid)


async def test_one_that_ends_before_anybody_looks_is_seen(tmp_path: Path) -> None:
    for _ in range(5):
        assert await made(build_of(tmp_path, "true"), tmp_path) < SECONDS


async def test_a_flood_of_output_is_kept_up_to_its_bound_and_holds_nobody_up(tmp_path: Path) -> None:
    build = build_of(tmp_path, f"head -c {3 * OUTPUT_BYTES_MAX} /dev/zero | tr '\\0' x; echo; echo end")
    await made(build, tmp_path)
    assert (tmp_path / "made/key/output").stat().st_size == OUTPUT_BYTES_MAX
    assert build.said.endswith("\nend") and len(build.said) <= 2_000
