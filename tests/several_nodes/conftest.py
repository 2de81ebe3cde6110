"""Networks and fleets of a test's own. Where networks cannot be made the tests skip, and say so; CI must have them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.e2e.client import Client
from tests.e2e.conftest import pytest_runtest_makereport as pytest_runtest_makereport
from tests.e2e.conftest import pytest_runtest_setup as pytest_runtest_setup
from tests.several_nodes.fleet import SpreadFleet
from tests.several_nodes.network import Machine, Network, NotPermitted


@pytest.fixture
def network(_leaves_nothing: None) -> Iterator[Network]:
    """A network without machines."""
    try:
        made = Network().__enter__()
    except NotPermitted as problem:
        pytest.skip(f"network namespaces cannot be made here: {problem}")
    try:
        yield made
    finally:
        made.remove()


@pytest.fixture
def head(network: Network) -> Machine:
    """The machine of the scheduler."""
    return network.machine("head")


@pytest.fixture
async def fleet(head: Machine, tmp_path: Path) -> AsyncIterator[SpreadFleet]:
    """A scheduler on `head` that other machines reach, without nodes."""
    async with SpreadFleet(tmp_path / "fleet", head) as own:
        yield own


@pytest.fixture
async def admin(fleet: SpreadFleet) -> AsyncIterator[Client]:
    """The admin, in the test's own process."""
    async with fleet.client() as client:
        yield client
