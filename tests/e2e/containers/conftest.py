"""A fleet whose node has a real container engine."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.containers.engine import EngineOfTests, EngineProcess, running_engine, skip_without_podman
from tests.e2e.client import Client
from tests.e2e.fleet import Fleet


@pytest.fixture(scope="session")
def engine_and_process(
    long_lived: Callable[[str], AbstractContextManager[None]],
) -> Iterator[tuple[EngineOfTests, EngineProcess]]:
    """An engine that this session shares, and its process."""
    skip_without_podman()
    with contextlib.ExitStack() as ended:
        with long_lived("the container engine"):
            # Podman takes no folder whose name is long.
            folder = ended.enter_context(tempfile.TemporaryDirectory(prefix="engine-", dir="/tmp"))
            both = ended.enter_context(running_engine(Path(folder)))
        yield both


@pytest.fixture
def engine(engine_and_process: tuple[EngineOfTests, EngineProcess]) -> EngineOfTests:
    return engine_and_process[0]


@pytest.fixture(scope="session")
def container_fleet(
    engine_and_process: tuple[EngineOfTests, EngineProcess],
    long_lived: Callable[[str], AbstractContextManager[None]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Fleet]:
    """A scheduler and node n1 with two virtual GPUs and the engine; jobs may be shown FLEET/data, read alone, and
    FLEET/scratch."""
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    for name in ("data", "scratch"):
        (fleet.folder / name).mkdir()
    mounts = f"{fleet.folder}/data:ro,{fleet.folder}/scratch"

    async def start() -> None:
        await fleet.scheduler.start()
        await fleet.add_node(
            "n1",
            environment={**engine_and_process[0].environment, "GPUCTL_AGENT_CONTAINERS_MOUNTS": mounts},
            inside=engine_and_process[1].mounts,
        )

    try:
        with long_lived("the container fleet"):
            asyncio.run(start())
        yield fleet
    finally:
        asyncio.run(fleet.end())


@pytest.fixture
async def person(container_fleet: Fleet) -> AsyncIterator[Client]:
    """The admin of that fleet."""
    async with container_fleet.client() as client:
        yield client
