"""How the dashboard looks and sounds: axe-core finds nothing serious in any view, light and dark, wide and narrow.

`SCREENSHOTS=1 python -m pytest tests/dashboard/test_looks.py` writes docs/images anew; look at each
before you commit it.
"""

from __future__ import annotations

import os
import re

import pytest
from playwright.async_api import expect

from tests.dashboard.house import IMAGES, RUNNING, House, Visitor
from tests.page.theatre import PHONE

pytestmark = [pytest.mark.nightly, pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

IS_REFRESH = os.environ.get("SCREENSHOTS") == "1"


async def picture(visitor: Visitor, name: str) -> None:
    """Keep a screenshot, if they are to be made anew."""
    if IS_REFRESH:
        content = await visitor.page.screenshot()
        (IMAGES / f"{name}.png").write_bytes(content)


async def test_every_view_is_for_everybody(house: House) -> None:
    async with house.visitor() as nobody:
        await expect(nobody.page.get_by_label("Your token")).to_be_focused()
        await nobody.check("the login")
        await nobody.log_in("hunter2")
        await expect(nobody.page.locator("#token-error")).to_be_visible()
        await nobody.check("a login that was refused")
    async with house.client("ann") as ann, house.client("bob") as bob, house.visitor("ann", "devices") as page:
        ended = [
            await ann.submit("/bin/sh", "-c", "exit 1", gpus=1, name="eval-small"),
            await ann.submit("true", name="prepare"),
        ]
        for job in ended:
            await ann.wait(job)
        holds = await ann.submit("sleep", "600", gpus=2, name="train-llama", seconds=7_200)
        where = (await ann.wait(holds, RUNNING)).attempts[0].ranks[0].node
        other = await bob.submit("sleep", "600", gpus=1, name="finetune", seconds=3_600)
        await bob.wait(other, RUNNING)
        waits = await bob.submit("sleep", "600", gpus=2, name="pretrain", seconds=3_600)
        held = await ann.submit("sleep", "600", gpus=1, name="later", is_held=True)
        await expect(page.gpu(where, 0).locator(".cell-holder")).to_contain_text("ann")
        await picture(page, "dashboard-gpus")
        await page.check("the GPUs")
        await page.turn("queue", "Queue")
        await expect(page.cell(waits, "starts")).to_contain_text("at the latest")
        await expect(page.job(held)).to_be_visible()
        await picture(page, "dashboard-queue")
        await page.check("the queue")
        await page.change(held)
        await page.check("what may be done to a job")
        await page.page.keyboard.press("Escape")
        await page.turn("finished", "Finished jobs")
        await expect(page.cell(ended[0], "gpus")).to_contain_text(re.compile(r"1 ×\svirtual"))
        await page.check("the finished jobs")
        await page.turn(f"submit/{holds}", "Submit a job")
        await expect(page.page.get_by_label("Command")).to_have_value("sleep 600")
        await page.button("Check").click()
        await expect(page.page.locator(".foretold")).to_be_visible()
        await page.check("a job that was checked")
        await page.page.get_by_label("Command").fill("")
        await page.button("Check").click()
        await expect(page.page.locator("#field-command-wrong")).to_be_visible()
        await page.check("a job with a mistake")
        async with house.visitor("admin", "devices", **(PHONE | {"color_scheme": "dark"})) as phone:
            await expect(phone.button("Drain n1")).to_be_visible()
            await expect(phone.gpu(where, 0).locator(".cell-holder")).to_contain_text("ann")
            await picture(phone, "dashboard-gpus-phone")
            await phone.button("Drain n1").click()
            await phone.check("why a node is drained")
        await house.ended("ann", holds, held)
        await house.ended("bob", other, waits)


async def test_a_screen_reader_hears_changes_and_no_chatter(house: House) -> None:
    """What is live on the page is what a person did, and that something is stale: never a number that moves."""
    async with house.visitor("ann", "devices") as ann:
        await expect(ann.page.locator(".device").first).to_be_visible()
        heard = """() => {
            window.heard = [];
            new MutationObserver((changes) => {
                for (const { target } of changes) {
                    const element = target instanceof Element ? target : target.parentElement;
                    const isLive = element?.closest("[role=status], [role=alert], [aria-live]");
                    if (isLive) window.heard.push(element.textContent);
                }
            }).observe(document.body, { subtree: true, childList: true, characterData: true });
        }"""
        await ann.page.evaluate(heard)
        load = ann.gpu("n1", 0).locator(".cell-load .measure span")
        first = await load.inner_text()
        await expect(load).not_to_have_text(first)
        assert await ann.page.evaluate("window.heard") == []
        for view, heading in (("queue", "Queue"), ("finished", "Finished jobs"), ("submit", "Submit a job")):
            await ann.turn(view, heading)
            # Who turns to a view by keyboard is at its heading, and the tab says where one is.
            await expect(ann.heading).to_be_focused()
            assert await ann.page.title() == f"{heading.split()[0]} · gpufleet"
        await ann.page.evaluate("document.querySelector('.skip').focus()")
        await ann.page.keyboard.press("Enter")
        await expect(ann.heading).to_be_focused()
