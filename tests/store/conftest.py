"""Every contract test runs on both databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from scheduler.store.opening import open_store
from scheduler.store.store import SqlStore
from tests.store.postgres_server import PostgresServer, shared_server


@pytest.fixture(scope="session")
def postgres(long_lived: Callable[[str], AbstractContextManager[None]]) -> Iterator[PostgresServer]:
    with shared_server(long_lived) as server:
        yield server


@pytest.fixture(scope="session", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database_kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    if kind == "postgresql":
        request.getfixturevalue("postgres")
    return kind


@pytest.fixture
def url(database_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store."""
    if database_kind == "sqlite":
        return f"sqlite:///{tmp_path / 'scheduler.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url(server.new_database())


@pytest.fixture
def store(url: str) -> Iterator[SqlStore]:
    with closing(open_store(url)) as opened:
        yield opened
