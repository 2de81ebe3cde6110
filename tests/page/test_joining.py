"""A model that is not open to everybody: its card asks for the pass phrase or the login, and says what was wrong."""

from __future__ import annotations

from typing import Any

import pytest
from gpufleet.v1 import sessions_pb2
from playwright.async_api import Locator, expect

from gpufleet.security.pass_phrases import hash_pass_phrase
from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.gateway.test_dashboard import token_for
from tests.page.axe import check
from tests.page.theatre import PHONE, WIDE, Person, Theatre

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

PHRASE = "correct horse"


async def serve(theatre: Theatre, **limits: Any) -> None:
    model = sessions_pb2.Model(name=WIDE, limits=sessions_pb2.SessionLimits(**limits))
    async with theatre.stage.fleet.client() as client:
        await client.stub.ServeModel(sessions_pb2.ServeModelRequest(model=model), timeout=DEADLINE_SECONDS)


def card(ann: Person) -> Locator:
    return ann.page.locator(f'.model[data-model="{WIDE}"]')


async def hellos(ann: Person, count: int) -> list[dict[str, Any]]:
    """What the page said first on each of its connections, once there are so many."""

    async def look() -> bool:
        await ann.page.evaluate("0")
        return sum(1 for each in ann.said if each["type"] == "hello") >= count

    await until(f"{count} hellos", look)
    return [each for each in ann.said if each["type"] == "hello"]


async def test_the_card_asks_for_the_pass_phrase_once(theatre: Theatre) -> None:
    await serve(theatre, pass_phrase_hash=hash_pass_phrase(PHRASE))
    try:
        async with theatre.people() as (ann,):
            await expect(card(ann)).to_contain_text("Needs a pass phrase")
            await ann.button(f"Start: {WIDE}").click()
            field = card(ann).get_by_label("Pass phrase", exact=True)
            await expect(field).to_be_focused()
            await expect(ann.button(f"Start: {WIDE}")).to_be_hidden()
            await check(ann.page, "a pass phrase is asked for")
            await field.press("Enter")
            await expect(card(ann).get_by_role("alert")).to_have_text("Write the pass phrase first.")
            assert not ann.said
            await field.fill("battery staple")
            await field.press("Enter")
            await expect(card(ann).get_by_role("alert")).to_have_text(f"This is not the pass phrase of {WIDE}.")
            await expect(field).to_be_focused()
            await expect(field).to_have_value("")
            await check(ann.page, "a wrong pass phrase")
            await field.fill(PHRASE)
            await ann.button(f"Join {WIDE} with the pass phrase").click()
            await ann.plays()
            # Neither a reload nor the next turn asks again, and neither does a connection that was lost.
            await ann.page.reload()
            await ann.plays()
            await ann.leave()
            await ann.button(f"Join {WIDE} again").click()
            await ann.plays()
            assert [each["pass_phrase"] for each in await hellos(ann, 4)] == ["battery staple", *[PHRASE] * 3]
            # Another tab is another one.
            other = await ann.page.context.new_page()
            await other.goto(f"http://{theatre.relay.address}/")
            assert await other.evaluate("sessionStorage.length") == 0
            assert PHRASE not in await other.evaluate("JSON.stringify({...localStorage}) + document.cookie + location")
    finally:
        await serve(theatre, access=sessions_pb2.MODEL_ACCESS_OPEN)


async def test_a_pass_phrase_that_has_changed_is_asked_for_anew(theatre: Theatre) -> None:
    await serve(theatre, pass_phrase_hash=hash_pass_phrase(PHRASE))
    try:
        async with theatre.people(**PHONE) as (ann,):
            await ann.button(f"Start: {WIDE}").click()
            field = card(ann).get_by_label("Pass phrase", exact=True)
            await expect(field).to_be_focused()
            await check(ann.page, "a pass phrase is asked for on a phone")
            await field.fill(PHRASE)
            await field.press("Enter")
            await ann.plays()
            await ann.leave()
            await theatre.is_free(WIDE)  # who still has a seat comes back to it, and has said the phrase
            await serve(theatre, pass_phrase_hash=hash_pass_phrase("another one"))
            await ann.button(f"Join {WIDE} again").click()
            await expect(card(ann).get_by_role("alert")).to_have_text(f"This is not the pass phrase of {WIDE}.")
            await expect(field).to_be_focused()
            await field.fill("another one")
            await field.press("Enter")
            await ann.plays()
            await ann.leave()
    finally:
        await serve(theatre, access=sessions_pb2.MODEL_ACCESS_OPEN)


async def test_the_card_shows_the_way_to_the_login(theatre: Theatre) -> None:
    await serve(theatre, access=sessions_pb2.MODEL_ACCESS_LOGIN)
    try:
        async with theatre.people() as (ann,):
            await expect(card(ann)).to_contain_text("Needs a login")
            await ann.button(f"Start: {WIDE}").click()
            said = f"{WIDE} is for people who are logged in to the dashboard."
            await expect(card(ann).get_by_role("alert")).to_have_text(said[0].upper() + said[1:])
            await expect(card(ann).get_by_label("Pass phrase", exact=True)).to_be_hidden()
            await check(ann.page, "a login is asked for")
            async with ann.page.expect_popup() as opened:
                await card(ann).get_by_role("link", name="Log in").click()
            dashboard = await opened.value
            await dashboard.get_by_label("Token").fill((await token_for(theatre.stage, "plays")).secret)
            await dashboard.get_by_role("button", name="Log in").click()
            await expect(dashboard.get_by_role("heading", name="Log in to gpufleet")).to_be_hidden()
            await dashboard.close()
            await ann.button(f"Start: {WIDE}").click()
            await ann.plays()
            await ann.leave()
    finally:
        await serve(theatre, access=sessions_pb2.MODEL_ACCESS_OPEN)
