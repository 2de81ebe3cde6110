"""How the page looks and sounds on every screen: axe-core finds nothing serious, and it is what the pictures show.

`SCREENSHOTS=1 python -m pytest tests/page/test_looks.py` writes docs/images anew; look at each before you commit it.
"""

from __future__ import annotations

import math
import os

import pytest
from playwright.async_api import Page, expect

from building import page as built
from tests.e2e.processes import until
from tests.page.axe import check
from tests.page.theatre import NARROW, PHONE, Person, Theatre

pytestmark = [pytest.mark.nightly, pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

IMAGES = built.ROOT / "docs" / "images"
IS_REFRESH = os.environ.get("SCREENSHOTS") == "1"


async def picture(page: Page, name: str) -> None:
    """Keep a screenshot, if they are to be made anew."""
    if IS_REFRESH:
        # Playwright would write the file on a thread of its own, which stays.
        _keep(name, await page.screenshot())


def _keep(name: str, content: bytes) -> None:
    (IMAGES / f"{name}.png").write_bytes(content)


async def test_every_screen_of_a_session_is_for_everybody(theatre: Theatre) -> None:
    await theatre.serve(NARROW, idle=600)
    async with theatre.people(2) as (ann, bob):
        await ann.button(f"Start: {NARROW}").wait_for()
        await check(ann.page, "the models")
        await ann.join(NARROW)
        await ann.plays()
        await ann.button("Details").click()
        await check(ann.page, "a turn with its details")
        await bob.join(NARROW)
        await expect(bob.page.locator(".number")).to_have_text("1")
        await check(bob.page, "the line")
        await expect(ann.page.locator(".time")).to_contain_text("left")
        await check(ann.page, "a limited turn")
        await bob.button("Leave the line").click()
        await theatre.serve(NARROW, idle=120, idle_warning=119)
        await ann.page.mouse.click(*await ann.point(0.5, 0.5))
        await expect(ann.page.locator(".banner")).to_contain_text("Still there?")
        await check(ann.page, "an idle warning")
        await ann.leave()
        await check(ann.page, "the end")
        async with ann.page.expect_download() as saved:
            await ann.button("Save the last picture").click()
        assert (await saved.value).suggested_filename == f"{NARROW}.png"
        # A turn is kept for 15 s, and a busy machine needs longer to look at both: nothing comes behind it.
        await ann.button(f"Join {NARROW} again").click()
        await ann.plays()
        await bob.button(f"Join {NARROW} again").click()
        await expect(bob.page.locator(".number")).to_have_text("1")
        await theatre.relay.cut()
        await expect(ann.page.locator(".veil")).to_contain_text("Connection lost")
        await expect(bob.page.locator(".waiting .trouble")).to_contain_text("The connection is lost")
        await check(ann.page, "a turn whose connection is lost")
        await check(bob.page, "a place whose connection is lost")


async def test_without_models_or_gateway_it_says_what_to_do(theatre: Theatre) -> None:
    async with theatre.context() as context:
        page = await context.new_page()
        await page.route("**/api/v1/lobby", lambda route: route.fulfill(json={"models": []}))
        ann = Person(page, theatre.relay.address)
        await ann.open()
        await expect(page.get_by_role("heading", name="No model is served yet")).to_be_visible()
        await expect(page.locator("code")).to_have_text("gpuctl serve canvas --gpus 1")
        await check(page, "no models")
        await page.unroute("**/api/v1/lobby")
        await ann.button(f"Start: {NARROW}").wait_for()
        await page.route("**/api/v1/lobby", lambda route: route.abort())
        trouble = page.locator(".lobby .trouble[role=status]")
        await expect(trouble).to_contain_text("The gateway cannot be reached just now")
        await expect(ann.button(f"Start: {NARROW}")).to_be_disabled()
        await check(page, "a gateway that is away")


async def test_ink_is_where_it_is_drawn_and_letters_where_they_are_typed(theatre: Theatre) -> None:
    await theatre.serve("canvas")
    small = {} if IS_REFRESH else {"width": "128", "height": "96", "steps": "1"}
    async with theatre.worker("canvas", "canvas", seats="1", **small), theatre.people() as (ann,):
        await ann.button("Start: canvas").wait_for()
        await picture(ann.page, "page-models")
        await ann.join("canvas")
        await ann.plays()
        paper = await ann.colour(0.5, 0.5)
        assert min(paper) > 200, "an empty sheet is white"
        await _draw(ann)
        await _darker(ann, (0.25, 0.45), "a stroke")
        await ann.page.mouse.move(*await ann.point(0.55, 0.72))
        await ann.page.keyboard.type("HELLO", delay=20)
        await _darker(ann, (0.56, 0.79), "letters")
        await ann.button("Details").click()
        await expect(ann.page.locator("#figures div", has_text="Latency")).to_contain_text("ms")
        await picture(ann.page, "page-turn")
        async with theatre.people(**(PHONE | {"color_scheme": "dark"})) as (bob,):
            await bob.join("canvas")
            await expect(bob.page.locator(".number")).to_have_text("1")
            await picture(bob.page, "page-line-phone")
            await ann.leave()
            await bob.plays()
            for at in ((0.2, 0.3), (0.4, 0.6), (0.6, 0.4), (0.8, 0.7)):
                await bob.page.touchscreen.tap(*await bob.point(*at))
            await _darker(bob, (0.4, 0.6), "a stamp")
            await picture(bob.page, "page-turn-phone")
            await bob.leave()


async def _draw(person: Person) -> None:
    """A wave with the button down."""
    for number in range(41):
        share = number / 40
        await person.page.mouse.move(
            *await person.point(0.1 + 0.8 * share, 0.45 + 0.2 * math.sin(12 * (share - 0.1875)))
        )
        if number == 0:
            await person.page.mouse.down()
    await person.page.mouse.up()


async def _darker(person: Person, at: tuple[float, float], what: str) -> None:
    """Return once there is ink around a point."""
    near = [(at[0] + 0.02 * across, at[1] + 0.02 * down) for across in range(-2, 3) for down in range(-2, 3)]

    async def is_dark() -> bool:
        return min([min(await person.colour(*each)) for each in near]) < 190

    await until(f"there is ink: {what}", is_dark)
