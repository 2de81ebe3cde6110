"""One theatre for the tests of a file: programs, and a browser. All in one event loop, which Playwright needs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager

import pytest
import pytest_asyncio
from playwright.async_api import async_playwright

from building import page
from tests.gateway.stage import Stage
from tests.page.theatre import Theatre, chromium, flags


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def theatre(
    long_lived: Callable[[str], AbstractContextManager[None]], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Theatre]:
    program = chromium()
    if program is None:
        pytest.skip("chromium is not installed, or does not start")
    page.build()
    stage = Stage(tmp_path_factory.mktemp("stage"))
    async with async_playwright() as playwright:
        try:
            with long_lived("the page's programs"):
                await stage.start()
                browser = await playwright.chromium.launch(executable_path=program, args=flags())
                theatre = Theatre(stage, browser)
                await theatre.start()
            yield theatre
            await browser.close()
            await theatre.relay.end()
        finally:
            await stage.end()
