"""The gateway's /metrics: whose token the scheduler lets through, what is told of people, a scheduler that is away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.processes import until
from tests.gateway.stage import Stage, browser
from tests.metrics.scraping import scrape, where

pytestmark = pytest.mark.slow


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path)
    try:
        await stage.fleet.scheduler.start()
        stage.gateway = await stage.another_gateway("gateway", "--metrics-port", "0").address()
        yield stage
    finally:
        await stage.end()


async def page_of(stage: Stage) -> str:
    return await where(stage.folder / "gateway.log")


async def test_the_scheduler_says_whose_token_may_read(stage: Stage) -> None:
    address = await page_of(stage)
    assert (await scrape(address, stage.fleet.scheduler.token("admin"))).status == 200
    assert (await scrape(address)).text.startswith("TOKEN_MISSING: ")
    unknown = await scrape(address, "gf_nobody")
    assert unknown.status == 401 and unknown.text.startswith("TOKEN_INVALID: ")
    gateways_own = await scrape(address, stage.fleet.scheduler.token("gateway"))
    assert gateways_own.status == 403 and gateways_own.text.startswith("PERMISSION_DENIED: ")


async def test_people_and_the_way_of_their_inputs_are_told(stage: Stage) -> None:
    await stage.worker("told").is_served()
    address, token = await page_of(stage), stage.fleet.scheduler.token("admin")
    async with browser(stage) as ann:
        await ann.hello("told")
        await ann.text("turn")
        for _ in range(3):
            clicked = await ann.click(0.5, 0.5)
            while ann.newest < clicked:
                await ann.frame()

        async def is_told() -> bool:
            page = await scrape(address, token)
            shown = page.values("gpufleet_input_shown_seconds_count")
            return page.values("gpufleet_people") == [1] and bool(shown) and shown[0] >= 1

        await until("she and her inputs are told", is_told)
        page = await scrape(address, token)
        assert page.values("gpufleet_frames_total")[0] >= 3
        assert page.values("gpufleet_frames_io_bytes_total")[0] > 1_000
        assert page.values("gpufleet_connected") == [1]
        await ann.say(type="leave")
        await ann.text("end")


async def test_while_the_scheduler_is_away_who_was_let_through_still_reads(stage: Stage) -> None:
    address, token = await page_of(stage), stage.fleet.scheduler.token("admin")
    assert (await scrape(address, token)).status == 200
    stage.fleet.scheduler.kill()

    async def is_away() -> bool:
        return (await scrape(address, token)).values("gpufleet_connected") == [0]

    await until("the page says so", is_away)
    refused = await scrape(address, stage.fleet.scheduler.token("agent"))
    assert refused.status == 503 and refused.text.startswith("SCHEDULER_UNREACHABLE: ")
    await stage.fleet.scheduler.start()
