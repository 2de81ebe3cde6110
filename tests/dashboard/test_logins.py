"""Who gets in, what each role is offered, and what becomes of a session that ends."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from gpufleet.security.tokens import make_token
from tests.dashboard.house import House

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


async def test_a_wrong_token_is_told_apart_from_what_is_none_and_a_right_one_lets_in(house: House) -> None:
    async with house.visitor(view="queue") as ann:
        await expect(ann.page.get_by_role("heading", name="Log in to gpufleet")).to_be_visible()
        await expect(ann.page.locator("#login")).to_contain_text("gpuctl token create NAME --role user")
        field, error = ann.page.get_by_label("Your token"), ann.page.locator("#token-error")
        await ann.button("Log in").click()
        await expect(error).to_have_text("Enter your token.")
        await ann.log_in("hunter2")
        await expect(error).to_contain_text("This is no gpufleet token.")
        await ann.log_in(make_token())
        await expect(error).to_contain_text("The scheduler does not know this token.")
        await expect(field).to_be_focused()
        await ann.log_in(house.stage.fleet.scheduler.token("gateway"))
        await expect(error).to_contain_text("that of a program")
        await ann.log_in(f" {house.tokens['ann']} ")
        # One is where the address said, and stays in with a page that is loaded anew.
        await expect(ann.heading).to_have_text("Queue")
        await ann.page.reload()
        await expect(ann.heading).to_have_text("Queue")
        await expect(ann.page.locator(".person .who")).to_have_text("ann · user")
        assert house.tokens["ann"] not in await ann.page.evaluate("document.cookie + JSON.stringify(localStorage)")


async def test_who_logs_out_is_out_in_every_window(house: House) -> None:
    async with house.visitor("ann", "finished") as ann:
        await expect(ann.heading).to_have_text("Finished jobs")
        await ann.button("Log out").click()
        await expect(ann.page.get_by_label("Your token")).to_be_focused()
        await ann.page.reload()
        await expect(ann.page.get_by_role("heading", name="Log in to gpufleet")).to_be_visible()


async def test_a_revoked_token_leads_to_the_login_and_back_to_where_one_was(house: House) -> None:
    async with house.visitor("bob", "queue") as bob:
        await expect(bob.page.locator(".totals")).to_contain_text("running")
        await house.revoke("bob")
        await expect(bob.page.locator("#login .trouble")).to_contain_text("revoked or has expired")
        await bob.log_in(await house.token_for("bob"))
        await expect(bob.heading).to_have_text("Queue")
        # The streams that had ended follow again.
        async with house.client("bob") as client:
            job = await client.submit("true", is_held=True, name="after-the-login")
            await expect(bob.job(job)).to_contain_text("after-the-login")
        await house.ended("bob", job)
        await expect(bob.job(job)).to_have_count(0)


async def test_what_is_typed_outlives_the_end_of_a_session(house: House) -> None:
    async with house.visitor("bob", "submit") as bob:
        await bob.page.get_by_label("Command").fill("python train.py")
        await house.revoke("bob")
        await bob.page.get_by_label("Working directory").fill("/tmp")
        await bob.button("Check").click()
        await expect(bob.page.locator("#login .trouble")).to_be_visible()
        await bob.log_in(await house.token_for("bob"))
        await expect(bob.page.get_by_label("Command")).to_have_value("python train.py")
        await bob.button("Check").click()
        await expect(bob.page.get_by_role("heading", name="It would be accepted")).to_be_visible()


async def test_the_page_offers_what_the_role_may_do(house: House) -> None:
    async with house.client("ann") as client:
        job = await client.submit("true", is_held=True, name="roles")
    for name, may_submit, may_change, may_drain in (
        ("admin", True, True, True),
        ("ann", True, True, False),
        ("bob", True, False, False),
        ("vic", False, False, False),
    ):
        async with house.visitor(name, "queue") as visitor:
            await expect(visitor.job(job)).to_be_visible()
            submit = visitor.page.get_by_role("link", name="Submit", exact=True)
            await expect(submit).to_be_visible(visible=may_submit)
            change = visitor.page.get_by_role("button", name=f"Change job {job}", exact=True)
            await expect(change).to_be_visible(visible=may_change)
            await visitor.turn("devices", "GPUs")
            await expect(visitor.page.get_by_role("heading", name="n1", exact=True)).to_be_visible()
            await expect(visitor.page.locator(".node .badge").first).to_be_visible()
            await expect(visitor.button("Drain n1")).to_be_visible(visible=may_drain)
            if not may_submit:
                await visitor.turn("submit", "Submit a job")
                await expect(visitor.page.locator("#view .trouble")).to_contain_text("a viewer's")
    await house.ended("ann", job)
