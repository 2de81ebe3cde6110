"""Fleets for tests: one that many harmless tests share, and one of a test's own for everything that does harm."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.e2e import fleet as fleet_module
from tests.e2e.client import Client
from tests.e2e.fleet import Fleet
from tests.outputs.object_server import ObjectServer
from tests.store.postgres_server import PostgresServer, shared_server


@pytest.fixture(scope="session")
def shared_fleet(
    long_lived: Callable[[str], AbstractContextManager[None]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """A scheduler and node n1 with two virtual GPUs, for tests that leave them as they were."""
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))

    async def start() -> None:
        await fleet.scheduler.start()
        await fleet.add_node("n1", environment={"GPUCTL_AGENT_NOTIFY_ALLOW_LOCAL": "true"})

    try:
        with long_lived("the shared fleet"):
            asyncio.run(start())
        yield fleet
    finally:
        asyncio.run(fleet.end())


@pytest.fixture(scope="session")
def postgres(long_lived: Callable[[str], AbstractContextManager[None]]) -> Iterator[PostgresServer]:
    """A PostgreSQL server that this session shares."""
    with shared_server(long_lived) as server:
        yield server


@pytest.fixture
def objects() -> Iterator[ObjectServer]:
    """An S3-compatible store of the test's own, without buckets."""
    server = ObjectServer()
    server.start()
    yield server
    server.stop()
    server.drop_buckets()


@pytest.fixture
async def person(shared_fleet: Fleet) -> AsyncIterator[Client]:
    """The admin of the shared fleet."""
    async with shared_fleet.client() as client:
        yield client


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    """A fleet of the test's own: a scheduler without nodes."""
    async with Fleet(tmp_path / "fleet") as own:
        yield own


@pytest.fixture
async def admin(fleet: Fleet) -> AsyncIterator[Client]:
    """The admin of the test's own fleet."""
    async with fleet.client() as client:
        yield client


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows the stories of the newest jobs and the ends of all logs."""
    report = yield
    if report.failed:
        shared = [value for value in getattr(item, "funcargs", {}).values() if isinstance(value, Fleet)]
        for each in dict.fromkeys([*shared, *fleet_module.started]):
            report.sections.append(("the fleet", each.report()))
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Forget the fleets of the test before."""
    fleet_module.started.clear()
