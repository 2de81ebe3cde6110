"""One fleet for all tests of the contract: a scheduler, and node n1 with two virtual GPUs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from tests.api.calls import Caller
from tests.e2e.client import Client, dial
from tests.e2e.fleet import Fleet


@pytest.fixture(scope="session")
def fleet(
    long_lived: Callable[[str], AbstractContextManager[None]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """Real processes, shared by all; what a test submits it also ends."""
    fleet = Fleet(tmp_path_factory.mktemp("contract"))

    async def start() -> None:
        await fleet.scheduler.start()
        await fleet.add_node("n1", "--virtual-gpus", "2", "--cpus", "8")
        # Job 1 is a plain one, whichever test comes first: tests of refusals name it.
        async with fleet.client() as client:
            await client.wait(await client.submit("true"))

    try:
        with long_lived("the fleet of the contract's tests"):
            asyncio.run(start())
        yield fleet
    finally:
        asyncio.run(fleet.end())


@pytest.fixture
async def admin(fleet: Fleet) -> AsyncIterator[Client]:
    """The admin of the first start."""
    async with fleet.client() as client:
        yield client


@pytest.fixture
async def caller(fleet: Fleet) -> AsyncIterator[Caller]:
    """Makes any call of the contract by its name, with any token or none."""
    async with dial(fleet.scheduler.address, None) as channel:
        anybody = Caller(channel)
        yield anybody
        anybody.forget()
