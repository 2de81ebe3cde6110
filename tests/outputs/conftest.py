"""Every contract test of the output store runs on files and on rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from gpufleet.config.scheduler_settings import SchedulerSettings
from scheduler.clock import wall_time
from scheduler.outputs.layout import OutputLimits
from scheduler.outputs.opening import open_outputs
from scheduler.outputs.segmented import SegmentedOutputStore
from scheduler.state.units import Instant
from scheduler.store.opening import open_store
from tests.store.postgres_server import PostgresServer, shared_server

Reopen = Callable[..., SegmentedOutputStore]


@pytest.fixture(scope="session")
def postgres(long_lived: Callable[[str], AbstractContextManager[None]]) -> Iterator[PostgresServer]:
    with shared_server(long_lived) as server:
        yield server


@pytest.fixture(scope="session", params=["files", pytest.param("rows", marks=pytest.mark.postgres)])
def shelf_kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    if kind == "rows":
        request.getfixturevalue("postgres")
    return kind


@pytest.fixture
def store_url(shelf_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of the first term, not open."""
    if shelf_kind == "files":
        return f"sqlite:///{tmp_path / 'scheduler.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    url = server.url(server.new_database())
    with closing(open_store(url)):
        return url


@pytest.fixture
def reopen(store_url: str, tmp_path: Path) -> Iterator[Reopen]:
    """Opens the output store, as a new process would; what an earlier opening had not synced may be lost."""
    opened: list[SegmentedOutputStore] = []

    def reopen(
        limits: OutputLimits | None = None, wall_clock: Callable[[], Instant] = wall_time
    ) -> SegmentedOutputStore:
        if opened:
            opened[-1].close()
        opened.append(open_outputs(SchedulerSettings(store=store_url), tmp_path, 1, wall_clock))
        if limits is not None:
            opened[-1].change_limits(limits)
        return opened[-1]

    yield reopen
    if opened:
        opened[-1].close()


@pytest.fixture
def outputs(reopen: Reopen) -> SegmentedOutputStore:
    return reopen()
