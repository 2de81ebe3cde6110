"""Who has which environment of a node, and what becomes of those who wait for one that another has begun."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.config.agent_settings import IsolationSettings
from gpufleet.jobs.runs import JobId, RankKey
from node_agent.core.commands import LaunchAttempt
from node_agent.core.launch import EnvironmentTool, RefusalReason
from node_agent.isolation.accounts import Isolating
from node_agent.isolation.limits import Limiting
from node_agent.setup import environments
from node_agent.setup.environments import Environments, SetupLimits
from node_agent.setup.recipes import Recipe
from tests.e2e.processes import until
from tests.node_agent.setup.test_recipes import launch

Told = list[tuple[RankKey, bool, str]]


@pytest.fixture
def told() -> Told:
    return []


@pytest.fixture
def all_of(tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch) -> Environments:
    """Environments that are made by a line, the same for all users, on a node where nobody is kept apart."""

    def recipe(command: LaunchAttempt, folder: Path, *, is_shared: bool) -> Recipe:
        assert command.environment is not None
        return Recipe(key="key", script=command.environment.what, in_words="the setup")

    monkeypatch.setattr(environments, "recipe_of", recipe)
    settings = IsolationSettings()
    return Environments(
        tmp_path / "environments",
        Isolating(settings, tmp_path),
        Limiting(settings, isolates=False),
        SetupLimits,
        lambda key, is_ready, message: told.append((key, is_ready, message)),
    )


def of(user: str, job: int, line: str) -> LaunchAttempt:
    return replace(launch(EnvironmentTool.SETUP, line, user=user), key=RankKey(JobId(job), 1, 0))


async def test_that_anothers_build_failed_fails_nobody_else_who_waits_for_it(
    all_of: Environments, told: Told, tmp_path: Path
) -> None:
    fails_first = f"if mkdir {tmp_path}/first; then sleep 1; exit 3; fi; touch $GPUFLEET_ENVIRONMENT/made"
    launches = [of("ann", 1, fails_first), of("ann", 2, fails_first), of("bob", 3, fails_first)]
    hers, hers_too, his = await asyncio.gather(*(all_of.make(each, tmp_path) for each in launches))
    for refusal in (hers, hers_too):
        assert refusal is not None and refusal.reason is RefusalReason.SETUP_FAILED
    assert his is None
    place = all_of.folder_of(launches[2].key)
    assert place is not None and (place / "made").exists()
    assert [(key.job, is_ready) for key, is_ready, _ in told if is_ready] == [(3, True)]


async def test_who_gives_up_waiting_ends_it_for_nobody_else(all_of: Environments, tmp_path: Path) -> None:
    line = f"touch {tmp_path}/begun; until [ -e {tmp_path}/go ]; do sleep 0.1; done"
    first = asyncio.create_task(all_of.make(of("ann", 1, line), tmp_path))
    await until("it has begun", lambda: asyncio.to_thread((tmp_path / "begun").exists))
    second = asyncio.create_task(all_of.make(of("bob", 2, line), tmp_path))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await asyncio.to_thread((tmp_path / "go").touch)
    assert await second is None


async def test_what_nobody_waits_for_ends_and_nothing_of_it_is_left(
    all_of: Environments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "LINGER_SECONDS", 0.1)
    waiting = asyncio.create_task(all_of.make(of("ann", 1, f"touch {tmp_path}/begun; sleep 1000"), tmp_path))
    await until("it has begun", lambda: asyncio.to_thread((tmp_path / "begun").exists))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    made = tmp_path / "environments" / "made"
    await until("nothing of it is left", lambda: asyncio.to_thread(lambda: not any(made.iterdir())))
