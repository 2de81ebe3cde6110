"""One stage for the tests of a file: a scheduler, a gateway, and a node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from tests.gateway.stage import Stage


@pytest.fixture(scope="module")
def stage(
    long_lived: Callable[[str], AbstractContextManager[None]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("stage")
    (folder / "scheduler.toml").write_text('[handlers]\n"text/*" = { command = ["cat", "{file}"] }\n')
    stage = Stage(folder, "--config", str(folder / "scheduler.toml"))

    async def start() -> None:
        await stage.start()
        await stage.fleet.add_node("n1")

    try:
        with long_lived("the gateway's programs and a node"):
            asyncio.run(start())
        yield stage
    finally:
        asyncio.run(stage.end())
