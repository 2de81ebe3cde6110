"""Who is there, and what they have room for: what the page says of it, and that it goes by the server's word alone."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.e2e.processes import until
from tests.page.theatre import NARROW, PHONE, WIDE, Person, Theatre

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

SMALL_MOVE = 0.01
"""Of the picture: more than a trembling hand, and less than a page of before took for a sign."""

KEEP_BACK = """() => {
    const send = WebSocket.prototype.send;
    WebSocket.prototype.send = function (data) {
        if (!String(data).includes('"still_here"')) send.call(this, data);
    };
}"""


async def asked(person: Person, theatre: Theatre) -> None:
    """Return once the page asks whether anybody is there; there is long to answer."""
    await expect(person.page.locator(".banner")).to_contain_text("Still there?")


async def hellos(person: Person, least: int) -> list[dict[str, Any]]:
    return await person.inputs("hello", least)


async def test_the_banner_goes_by_the_servers_word_alone(theatre: Theatre) -> None:
    await theatre.serve(NARROW, idle=600, idle_warning=597)
    async with theatre.people() as (ann,):
        await ann.join(NARROW)
        await asked(ann, theatre)
        await ann.page.evaluate(KEEP_BACK)
        await ann.button("I am still here").click()
        await ann.page.evaluate("new Promise(requestAnimationFrame)")
        await expect(ann.page.locator(".banner")).to_be_visible()
        assert not [each for each in ann.told if each.get("reason") == "IDLE_OVER"]
        # What the worker counts as input is over for the page, too: a move that is small, and told by nobody else.
        turn = next(each for each in ann.told if each["type"] == "turn")
        assert turn["move_min"] == pytest.approx(0.004)
        ann.told.clear()
        await ann.page.mouse.move(*await ann.point(0.5, 0.5))
        await ann.is_told("notice", reason="IDLE_OVER")
        await expect(ann.page.locator(".banner")).to_be_hidden()
        await asked(ann, theatre)
        await ann.page.mouse.move(*await ann.point(0.5 + SMALL_MOVE, 0.5))
        await ann.is_told("notice", reason="IDLE_OVER")
        await expect(ann.page.locator(".banner")).to_be_hidden()
        await ann.leave()
    await theatre.serve(NARROW)


async def test_a_start_in_another_tab_counts_as_somebody_there_and_a_reload_does_not(theatre: Theatre) -> None:
    await theatre.serve(NARROW, idle=600, idle_warning=590)
    async with theatre.context() as context:
        ann = await theatre.person(context)
        await ann.join(NARROW)
        await ann.plays()
        await ann.page.reload()
        await ann.plays()
        first, again = (await hellos(ann, 2))[:2]
        assert (first["deliberate"], again["deliberate"]) == (True, False)
        await asked(ann, theatre)
        other = await theatre.person(context)
        await other.join(NARROW)
        await other.plays()
        await ann.has_ended("You went on in another window")
        warned = await other.is_told("notice", reason="IDLE_WARNING")
        assert warned["remaining_s"] > 580, "the time began anew with the Start"
        await other.leave()
    await theatre.serve(NARROW)


async def room(page: Page) -> dict[str, Any]:
    code = """() => {
        const room = document.querySelector(".room");
        const whole = (length) => Math.round(length * devicePixelRatio);
        return { width: whole(room.clientWidth), height: whole(room.clientHeight), density: devicePixelRatio };
    }"""
    return dict(await page.evaluate(code))


@pytest.mark.parametrize("kind", [{}, PHONE], ids=["desktop", "phone"])
async def test_the_page_says_its_room_for_the_picture_and_again_when_it_changes(
    theatre: Theatre, kind: dict[str, Any]
) -> None:
    async with theatre.people(**kind) as (ann,):
        await ann.join(WIDE)
        await ann.plays()
        [hello] = await hellos(ann, 1)
        density = kind.get("device_scale_factor", 1)
        assert hello["density"] == density
        assert hello["width"] == ann.page.viewport_size["width"] * density  # type: ignore[index]

        async def is_said() -> bool:
            said = await ann.inputs("resize")
            here = await room(ann.page)
            return bool(said) and {key: said[-1][key] for key in here} == here

        await until("the room on the stage is said", is_said)
        before = len(await ann.inputs("resize"))
        await ann.page.set_viewport_size({"width": 420, "height": 600})
        await until("the new one is said", is_said)
        assert len(await ann.inputs("resize")) > before
        await ann.leave()


async def test_composition_sends_what_is_committed_and_nothing_else(theatre: Theatre) -> None:
    async with theatre.people() as (ann,):
        await ann.join(WIDE)
        await ann.plays()
        field = ann.page.get_by_role("textbox", name="Keys for the model")
        await field.focus()
        keys = await ann.page.context.new_cdp_session(ann.page)
        for half in ("k", "ka", "kan", "かん"):
            await keys.send(
                "Input.imeSetComposition", {"text": half, "selectionStart": len(half), "selectionEnd": len(half)}
            )
        await keys.send("Input.insertText", {"text": "漢字"})
        for half in ("n", "ni"):
            await keys.send(
                "Input.imeSetComposition", {"text": half, "selectionStart": len(half), "selectionEnd": len(half)}
            )
        # Given up: nothing of it was ever said, so nothing has to be taken back.
        await keys.send("Input.imeSetComposition", {"text": "", "selectionStart": 0, "selectionEnd": 0})
        await keys.send("Input.insertText", {"text": "!"})

        async def is_typed() -> bool:
            return "".join(each["text"] for each in await ann.inputs("text")) == "漢字!"

        await until("what was committed is said, and only that", is_typed)
        assert await ann.inputs("key") == []
        await ann.leave()


async def test_a_letter_that_comes_up_behind_its_shift_is_the_one_that_went_down(theatre: Theatre) -> None:
    async with theatre.people() as (ann,):
        await ann.join(WIDE)
        await ann.plays()
        await ann.page.keyboard.down("Shift")
        await ann.page.keyboard.down("KeyA")
        await ann.page.keyboard.up("Shift")
        await ann.page.keyboard.up("KeyA")
        keys = [(each["key"], each["down"]) for each in await ann.inputs("key", 4)]
        assert keys == [("Shift", True), ("A", True), ("Shift", False), ("A", False)]
        assert [each["text"] for each in await ann.inputs("text", 1)] == ["A"]
        await ann.leave()
