"""One house for the tests of a file, and one of a test's own where programs are stopped. All in one event loop each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import async_playwright

from building import page
from tests.dashboard.house import BANDS, House
from tests.gateway.stage import Stage
from tests.page.theatre import chromium, flags

NODES = ("n1", "n2")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(
    long_lived: Callable[[str], AbstractContextManager[None]], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[House]:
    program = chromium()
    if program is None:
        pytest.skip("chromium is not installed, or does not start")
    page.build()
    folder = tmp_path_factory.mktemp("house")
    settings = folder / "scheduler.toml"
    settings.write_text(BANDS)
    stage = Stage(folder, "--config", str(settings))
    async with async_playwright() as playwright:
        try:
            with long_lived("the dashboard's programs"):
                await stage.start()
                house = House(stage, await playwright.chromium.launch(executable_path=program, args=flags()))
                await house.start(*NODES)
            yield house
            await house.browser.close()
        finally:
            await stage.end()


@pytest_asyncio.fixture(loop_scope="module")
async def own_house(house: House, tmp_path: Path) -> AsyncIterator[House]:
    """Programs of the test's own, in the same browser: they may be stopped and started."""
    stage = Stage(tmp_path / "house")
    try:
        await stage.start()
        own = House(stage, house.browser)
        await own.start("n1")
        yield own
    finally:
        await stage.end()
