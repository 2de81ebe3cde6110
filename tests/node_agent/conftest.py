"""A scheduler made for tests, and a real agent that is connected to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.node_agent.agent_process import AgentProcess
from tests.node_agent.fake_scheduler import FakeScheduler


@pytest.fixture
async def scheduler() -> AsyncIterator[FakeScheduler]:
    async with FakeScheduler() as scheduler:
        yield scheduler


@pytest.fixture
async def agent(scheduler: FakeScheduler, tmp_path: Path) -> AsyncIterator[AgentProcess]:
    async with AgentProcess(scheduler, tmp_path) as agent:
        await scheduler.wait_connected()
        yield agent
