"""The Sessions view: who has a turn and who waits, what operators may do, and who came; against real programs."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack

import pytest
from gpufleet.v1 import sessions_pb2
from playwright.async_api import expect

from tests.dashboard.house import House
from tests.gateway.stage import Browser, browser

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


async def _play(person: Browser) -> None:
    """Click, and click again once the picture has come."""
    while True:
        await person.click(0.5, 0.5)
        await person.frame()


async def test_an_operator_sees_the_line_ends_a_session_and_drains_a_worker(own_house: House) -> None:
    stage = own_house.stage
    seat = stage.worker("narrow", seats="1")
    limits = sessions_pb2.SessionLimits()
    limits.idle.FromSeconds(600)
    async with stage.fleet.client() as client:
        model = sessions_pb2.Model(name="narrow", limits=limits)
        await client.stub.ServeModel(sessions_pb2.ServeModelRequest(model=model))
    await seat.is_served()
    async with (
        AsyncExitStack() as people,
        own_house.visitor("admin", "sessions") as admin,
        own_house.visitor("vic", "sessions") as vic,
    ):
        first = await people.enter_async_context(browser(stage))
        await first.hello("narrow")
        await first.text("turn")
        await first.frame()
        second = await people.enter_async_context(browser(stage))
        await second.hello("narrow")
        await second.text("place")
        shown = admin.page.get_by_role("region", name="narrow", exact=True)
        sessions = shown.get_by_role("table", name="Sessions of narrow").locator(".row[data-key]")
        await expect(sessions).to_have_count(2)
        await expect(sessions.nth(0)).to_contain_text("turn")
        await expect(sessions.nth(0).locator(".cell-name")).to_have_text(re.compile(r"^s\d+person [0-9a-f]{8}$"))
        await expect(sessions.nth(1)).to_contain_text(re.compile(r"waits, place\s1"))
        await expect(shown.locator(".facts")).to_contain_text(re.compile(r"1 of 1 seat taken · 1 waits · longest wait"))
        await expect(admin.page.locator(".totals")).to_have_text("1 has a turn · 1 waits · 1 worker of 1 model")
        await expect(shown.locator(".facts")).to_contain_text("open to everybody")
        # Who came while somebody looks is counted with nothing loaded anew.
        table = admin.page.get_by_role("table", name="Visits by model")
        await expect(table.get_by_role("row").nth(1)).to_contain_text("narrow")

        playing = asyncio.create_task(_play(first), name="plays")
        try:
            await expect(sessions.nth(0).locator(".cell-frames")).to_contain_text(re.compile(r"frames/s.*\d+\sms"))
        finally:
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
        await admin.check("sessions")
        await vic.check("sessions, to somebody who looks")
        await expect(vic.page.get_by_role("region", name="narrow", exact=True)).to_contain_text("1 waits")
        await expect(vic.button("Drain")).to_have_count(0)

        name = await sessions.nth(0).locator(".cell-name [data-part=id]").inner_text()
        await admin.page.get_by_role("button", name=f"End session {name}").click()
        await admin.page.get_by_label("Reason").fill("maintenance")
        await admin.check("a session is to be ended")
        await admin.button("End it").click()
        await admin.is_told(f"Session {name} is ended.")
        ended = await first.text("end")
        assert ended["reason"] == "CLOSED" and "maintenance" in ended["message"]
        await second.text("turn")
        await expect(sessions).to_have_count(1)

        await shown.get_by_role("button", name=re.compile("Drain worker")).click()
        await admin.button("Drain").click()
        await expect(shown.get_by_role("table", name="Workers of narrow")).to_contain_text("draining")

        limits.access = sessions_pb2.MODEL_ACCESS_LOGIN
        async with stage.fleet.client() as client:
            model = sessions_pb2.Model(name="narrow", limits=limits)
            await client.stub.ServeModel(sessions_pb2.ServeModelRequest(model=model))
        await expect(shown.locator(".facts")).to_contain_text("for who is logged in")

        # What came of it is counted, and it is the same that gpuctl tells.
        await admin.page.reload()
        await expect(table.get_by_role("row").nth(1)).to_contain_text(re.compile(r"narrow\s*2\s*2\s*2\s*0"))
        await expect(table).to_contain_text(re.compile(r"closed\s1"))
        await expect(admin.page.get_by_role("link", name="Lobby", exact=True)).to_have_attribute("href", "./")
        await admin.page.goto(f"http://{stage.gateway}/")
        await expect(admin.page.get_by_role("link", name="Dashboard", exact=True)).to_have_attribute(
            "href", "dashboard"
        )
