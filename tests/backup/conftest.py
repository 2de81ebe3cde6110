"""Stores to copy, on either database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from gpufleet.config.scheduler_settings import SchedulerSettings
from tests.backup.stores import fill
from tests.store.postgres_server import PostgresServer, shared_server

DATABASES = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]


@pytest.fixture(scope="session")
def postgres(long_lived: Callable[[str], AbstractContextManager[None]]) -> Iterator[PostgresServer]:
    with shared_server(long_lived) as server:
        yield server


Place = Callable[[str, str], SchedulerSettings]


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Settings with a data folder of that name, and an empty database of that kind."""

    def of(name: str, kind: str) -> SchedulerSettings:
        data = tmp_path / name
        if kind == "sqlite":
            return SchedulerSettings(data=data)
        server: PostgresServer = request.getfixturevalue("postgres")
        return SchedulerSettings(data=data, store=server.url(server.new_database()))

    return of


@pytest.fixture
def full(place: Place) -> SchedulerSettings:
    """A SQLite store with something in every table, its keys, and output of two jobs."""
    settings = place("full", "sqlite")
    fill(settings)
    return settings
