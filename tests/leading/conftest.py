"""A PostgreSQL for schedulers that stand by for each other, and a pair of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.e2e import fleet as fleet_module
from tests.leading.pair import Pair
from tests.store.postgres_server import PostgresServer, shared_server


@pytest.fixture(scope="session")
def postgres(long_lived: Callable[[str], AbstractContextManager[None]]) -> Iterator[PostgresServer]:
    """A PostgreSQL server that this session shares."""
    with shared_server(long_lived) as server:
        yield server


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    """A database of the test's own."""
    return postgres.url(postgres.new_database())


@pytest.fixture
async def pair(tmp_path: Path, url: str) -> AsyncIterator[Pair]:
    """A scheduler and a warm standby, which has the same port once it leads."""
    async with Pair(tmp_path / "fleet", url) as own:
        yield own


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows the ends of all logs."""
    report = yield
    if report.failed:
        for each in fleet_module.started:
            report.sections.append(("the fleet", each.report()))
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Forget the fleets of the test before."""
    fleet_module.started.clear()
