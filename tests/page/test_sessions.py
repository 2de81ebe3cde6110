"""People at the page, in a real browser: what they see, what the page sends, and that nothing throws them out."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from playwright.async_api import expect

from tests.e2e.processes import until
from tests.page.axe import check
from tests.page.theatre import DESKTOP, NARROW, PHONE, WIDE, Person, Theatre

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

BRIGHTER = 60
"""The pointer's cross is white, the bar in the middle green: so much more red there, at least, as JPEG leaves it."""

CUT_SECONDS = 3.0
"""Of the 15 s that a turn is kept for somebody whose connection is lost."""

RELOADS_MAX = 3
"""How often a page is loaded anew until one is quick enough; on a machine with nothing else to do, the first."""

DRAG = """(points) => {
    const canvas = document.querySelector("main.stage canvas");
    const box = canvas.getBoundingClientRect();
    const send = (kind, [x, y], buttons) => canvas.dispatchEvent(new PointerEvent(kind, {
        clientX: box.left + x * box.width, clientY: box.top + y * box.height, buttons,
        isPrimary: true, pointerId: 1, pointerType: "mouse", bubbles: true, cancelable: true,
    }));
    for (const each of points) {
        for (let step = 1; step <= 25; step += 1) send("pointermove", [each[0] * step / 25, each[1]], 0);
        send("pointerdown", each, 1);
        send("pointerup", each, 0);
    }
}"""

DELETE = """(field) => {
    field.value = field.value.slice(0, -1);
    field.dispatchEvent(new InputEvent("input", { inputType: "deleteContentBackward" }));
}"""

STEERED = """
import numpy


class Steered:
    title = "Marble"
    about = "A marble on a board."
    controls = "Arrows tilt the board."
    keys = ["ArrowLeft", "ArrowRight", " "]

    def open(self, session):
        return None

    def step(self, state, inputs):
        return numpy.full((48, 64, 3), 200, numpy.uint8)

    def close(self, state):
        pass
"""

HIDE = """(isHidden) => {
    Object.defineProperty(document, "hidden", { configurable: true, get: () => isHidden });
    document.dispatchEvent(new Event("visibilitychange"));
}"""


async def test_a_person_joins_points_and_types_and_leaves(theatre: Theatre) -> None:
    async with theatre.people() as (ann,):
        await ann.join(WIDE)
        await ann.plays()
        red, _, _ = await ann.colour(0.5, 0.3)
        await ann.page.mouse.click(*await ann.point(0.5, 0.3))

        async def is_crossed() -> bool:
            return (await ann.colour(0.5, 0.3))[0] > red + BRIGHTER

        await until("the picture has changed where the pointer is", is_crossed)
        await ann.page.keyboard.press("h")
        await ann.page.keyboard.press("Enter")
        keys = [(each["key"], each["down"]) for each in await ann.inputs("key", 4)]
        assert keys == [("h", True), ("h", False), ("Enter", True), ("Enter", False)]
        said = [each["type"] for each in ann.said if each["type"] in ("key", "text")]
        assert said == ["key", "text", "key", "key", "key"], "what a key writes is said behind it"
        assert [each["text"] for each in await ann.inputs("text")] == ["h"]
        await ann.page.mouse.wheel(0, 120)
        await ann.inputs("wheel", 1)
        await ann.button("Details").click()
        for name, words in (("Latency", " ms"), ("Frame rate", " per second"), ("Picture", "512 × 384")):
            cell = ann.page.locator("#figures div", has_text=name).locator("dd")
            await expect(cell).to_contain_text(words)
        worker = ann.page.locator("#figures div", has_text="Worker").locator("dd")
        await expect(worker).to_have_text(re.compile(r"^worker \w+$"))
        await ann.leave()
        await theatre.is_free(WIDE)


async def test_clicks_are_exact_and_in_order_and_moves_give_way(theatre: Theatre) -> None:
    async with theatre.people() as (ann,):
        await ann.join(WIDE)
        await ann.plays()
        points = [[round(0.05 + 0.045 * number, 3), round(0.9 - 0.04 * number, 3)] for number in range(20)]
        before = len(await ann.inputs("pointer"))
        await ann.page.evaluate(DRAG, points)
        sent = (await ann.inputs("pointer", before + 3 * len(points)))[before:]
        # Of the 25 moves before each button only the newest is sent: no screen refresh came between them.
        assert [each["button_change"] for each in sent] == [False, True, True] * len(points)
        presses = [each for each in sent if each["button_change"] and each["buttons"] == 1]
        assert [(each["x"], each["y"]) for each in presses] == [
            (pytest.approx(x, abs=0.002), pytest.approx(y, abs=0.002)) for x, y in points
        ]
        numbers = [each["seq"] for each in ann.said if "seq" in each]
        assert numbers == list(range(1, len(numbers) + 1))
        await ann.leave()


async def test_others_wait_a_limit_is_told_and_lifted_and_kept(theatre: Theatre) -> None:
    await theatre.serve(NARROW)
    async with theatre.people(3) as (ann, bob, cid):
        await ann.join(NARROW)
        await ann.plays()
        await expect(ann.page.locator(".time")).to_have_text("No time limit")
        await expect(bob.page.get_by_text("1 of 1 seat taken")).to_be_visible()
        await bob.join(NARROW)
        await expect(bob.page.locator(".number")).to_have_text("1")
        await expect(bob.page.locator(".times")).to_contain_text("At most")
        await expect(ann.page.locator(".time")).to_contain_text("left")
        await expect(ann.page.get_by_role("alert")).to_contain_text("Somebody waits. Your turn ends in")
        await cid.join(NARROW)
        await expect(cid.page.locator(".number")).to_have_text("2")
        await expect(cid.page.locator(".of")).to_have_text("1 person before you, 2 people in line")
        await bob.button("Leave the line").click()
        await bob.has_ended("You have left")
        await expect(cid.page.locator(".number")).to_have_text("1")
        await cid.button("Leave the line").click()
        await expect(ann.page.locator(".time")).to_have_text("No time limit")
        await expect(ann.page.get_by_role("status")).to_contain_text("Your turn has no end any more")

        await theatre.serve(NARROW, turn=2, turn_warning=10)  # so long it is told, however late one looks
        await bob.button(f"Join {NARROW} again").click()
        await expect(ann.page.locator(".banner")).to_contain_text("Your turn ends in")
        await ann.has_ended("Your turn is over")
        await bob.plays()
        await expect(bob.page.get_by_role("alert")).to_have_text("Your turn begins.")
        await ann.button("All models").click()
        await expect(ann.page.locator("main.lobby")).to_be_visible()
        await bob.leave()


async def test_who_does_nothing_is_asked_and_may_join_again(theatre: Theatre) -> None:
    # She has long enough to answer, and what her answer does is seen for long enough, also on a busy machine.
    await theatre.serve(NARROW, idle=80, idle_warning=70)
    async with theatre.people() as (ann,):
        await ann.join(NARROW)
        await expect(ann.page.locator(".banner")).to_contain_text("Still there?")
        await ann.button("I am still here").click()
        await ann.is_told("notice", reason="IDLE_OVER")
        await expect(ann.page.locator(".banner")).to_be_hidden()
        await theatre.serve(NARROW, idle=3)
        await ann.has_ended("The turn ended by itself")
        await theatre.serve(NARROW)
        await ann.button(f"Join {NARROW} again").click()
        await ann.plays()
        await ann.leave()


async def test_a_killed_worker_puts_its_person_in_front_and_on_the_next(theatre: Theatre) -> None:
    await theatre.serve("killed")
    async with theatre.worker("killed") as worker, theatre.people() as (ann,):
        await ann.join("killed")
        await ann.plays()
        worker.end(signal.SIGKILL)
        await expect(ann.page.locator(".why")).to_contain_text("you are in front")
        await expect(ann.page.locator(".number")).to_have_text("1")
        await expect(ann.page.locator(".cause")).to_contain_text("No worker is ready")
        async with theatre.worker("killed"):
            await ann.plays()
            await ann.leave()


async def test_the_network_is_cut_for_seconds_and_the_turn_goes_on(theatre: Theatre) -> None:
    async with theatre.people() as (ann,):
        await ann.join(WIDE)
        await ann.plays()
        turn = await ann.is_told("turn", is_resumed=False)
        await theatre.relay.cut()
        await expect(ann.page.locator(".veil")).to_contain_text("Connection lost")
        await expect(ann.page.get_by_role("alert")).to_contain_text("The connection is lost")
        await asyncio.sleep(CUT_SECONDS)
        theatre.relay.mend()
        await ann.is_told("turn", is_resumed=True, session=turn["session"])
        await ann.plays()
        await expect(ann.page.get_by_role("alert")).to_contain_text("The connection is back")
        await ann.leave()


async def test_a_reload_goes_on_where_it_was(theatre: Theatre) -> None:
    async with theatre.people() as (ann,):
        await ann.join(WIDE)
        for _ in range(RELOADS_MAX):
            turn = await ann.is_told("turn")
            await ann.plays()
            await ann.page.reload()
            await ann.plays()
            # A page that was closed has 2 s to come back. Where loading it takes longer this is a turn of its own.
            if any(each["type"] == "turn" and each["session"] == turn["session"] for each in ann.told):
                break
        else:  # none was quick enough: the gateway hears that the page was closed when it is open again
            turn = await ann.is_told("turn")
            theatre.relay.hold()
            await ann.page.reload()
            await ann.plays()
            theatre.relay.let_go()
        resumed = await ann.is_told("turn", is_resumed=True)
        assert resumed["session"] == turn["session"]
        await ann.leave()
        await ann.page.reload()
        await expect(ann.page.locator("main.lobby")).to_be_visible()


async def test_who_comes_back_has_the_limit_and_the_place_of_before(theatre: Theatre) -> None:
    await theatre.serve(NARROW)
    async with theatre.people(2) as (ann, bob):
        await ann.join(NARROW)
        turn = await ann.is_told("turn", is_resumed=False)
        await bob.join(NARROW)
        await expect(bob.page.locator(".number")).to_have_text("1")
        await expect(ann.page.locator(".time")).to_contain_text("left")
        await theatre.relay.cut()
        await expect(bob.page.locator(".waiting .trouble")).to_contain_text("The connection is lost")
        theatre.relay.mend()
        await ann.is_told("turn", is_resumed=True, session=turn["session"])
        await ann.plays()
        await expect(ann.page.locator(".time")).to_contain_text("left")
        await bob.page.reload()
        await expect(bob.page.locator(".number")).to_have_text("1")
        await ann.leave()
        await bob.plays()
        await bob.leave()


async def test_another_gateway_takes_over_when_one_leaves(theatre: Theatre) -> None:
    gateway = theatre.stage.another_gateway("second")
    theatre.relay.target, first = await gateway.address(), theatre.relay.target
    async with theatre.people() as (ann,):
        await ann.join(WIDE)
        turn = await ann.is_told("turn", is_resumed=False)
        await ann.plays()
        theatre.relay.target = first
        gateway.end()
        await ann.is_told("turn", is_resumed=True, session=turn["session"])
        await ann.plays()
        await ann.leave()


async def test_a_turn_goes_on_while_the_scheduler_is_away(
    theatre: Theatre, long_lived: Callable[[str], AbstractContextManager[None]]
) -> None:
    scheduler = theatre.stage.fleet.scheduler
    async with theatre.people() as (ann,):
        await ann.join(WIDE)
        await ann.plays()
        turn = await ann.is_told("turn", is_resumed=False)
        scheduler.kill()
        await expect(ann.page.locator(".banner")).to_contain_text("The line is not heard just now. Your turn goes on.")
        await ann.page.mouse.click(*await ann.point(0.5, 0.3))
        with long_lived("the scheduler that was started again"):
            await scheduler.start()
        await ann.is_told("turn", is_resumed=True, session=turn["session"])
        await expect(ann.page.locator(".banner")).to_be_hidden()
        await ann.leave()


async def test_a_hidden_page_takes_frames_and_draws_the_newest_when_it_is_seen(theatre: Theatre) -> None:
    async with theatre.people() as (ann,):
        await ann.join(WIDE)
        await ann.plays()
        red, _, _ = await ann.colour(0.5, 0.3)
        await ann.page.evaluate(HIDE, True)
        before = len(await ann.inputs("shown"))
        await ann.page.mouse.click(*await ann.point(0.5, 0.3))
        await ann.inputs("shown", before + 1)
        assert abs((await ann.colour(0.5, 0.3))[0] - red) < BRIGHTER, "nobody looks, and nothing is drawn"
        await ann.page.evaluate(HIDE, False)

        async def is_crossed() -> bool:
            return (await ann.colour(0.5, 0.3))[0] > red + BRIGHTER

        await until("the newest picture is drawn", is_crossed)
        await ann.leave()


async def test_the_newest_window_has_the_turn(theatre: Theatre) -> None:
    async with theatre.context() as context:
        ann = await theatre.person(context)
        await ann.join(WIDE)
        await ann.plays()
        other = await theatre.person(context)
        await expect(other.page.locator("main.lobby")).to_be_visible()
        await other.join(WIDE)
        await other.plays()
        await ann.has_ended("You went on in another window")
        await ann.button("Go on here").click()
        await ann.plays()
        await other.has_ended("You went on in another window")
        await ann.leave()


async def test_the_keyboard_alone_is_enough_and_tab_leaves_the_picture(theatre: Theatre) -> None:
    async with theatre.people() as (ann,):
        start = ann.page.get_by_role("button", name=f"Start: {WIDE}")
        await start.wait_for()
        await start.focus()
        await ann.page.keyboard.press("Enter")
        await ann.plays()
        field = ann.page.get_by_role("textbox", name="Keys for the model")
        await expect(field).to_be_focused()
        await ann.page.keyboard.down("a")
        await ann.page.keyboard.press("Tab")
        await expect(field).not_to_be_focused()
        keys = [(each["key"], each["down"]) for each in await ann.inputs("key", 2)]
        assert keys == [("a", True), ("a", False)], "a key that is held when the focus leaves is let go"
        await ann.page.keyboard.up("a")
        await ann.page.keyboard.press("Shift+Tab")
        await expect(field).to_be_focused()
        await ann.page.keyboard.press("Shift+Tab")
        await expect(ann.button("Leave")).to_be_focused()
        await ann.page.keyboard.press("Enter")
        await ann.has_ended("You have left")
        await expect(ann.page.locator("main.farewell h1")).to_be_focused()


async def test_a_phone_draws_by_touch_and_types_with_its_keyboard(theatre: Theatre) -> None:
    async with theatre.people(**PHONE) as (ann,):
        await ann.join(WIDE)
        await ann.plays()
        field = ann.page.get_by_role("textbox", name="Keys for the model")
        await ann.page.touchscreen.tap(*await ann.point(0.25, 0.25))

        async def is_lifted() -> bool:
            return bool((await ann.inputs("pointer", 2))[-1]["buttons"] == 0)

        await until("the finger is lifted", is_lifted)
        press, release = [each for each in await ann.inputs("pointer") if each["button_change"]]
        assert (press["buttons"], release["buttons"]) == (1, 0)
        assert (press["x"], press["y"]) == (pytest.approx(0.25, abs=0.01), pytest.approx(0.25, abs=0.01))
        await expect(field).not_to_be_focused()
        await ann.button("Keyboard").tap()
        await expect(field).to_be_focused()
        await ann.page.keyboard.insert_text("schön")
        await ann.page.keyboard.insert_text(" hier")
        assert [each["text"] for each in await ann.inputs("text", 2)] == ["schön", " hier"]
        await field.evaluate(
            "field => { field.value = field.value.slice(0, -1); field.dispatchEvent(new Event('input')) }"
        )
        assert [each["key"] for each in await ann.inputs("key", 2) if each["down"]] == ["Backspace"]
        width = await ann.page.evaluate("document.documentElement.scrollWidth")
        assert width <= PHONE["viewport"]["width"], "nothing is wider than the phone"
        await ann.leave()


async def test_joining_a_second_model_asks_before_it_ends_the_first_turn(theatre: Theatre) -> None:
    async with theatre.context() as context:
        ann = await theatre.person(context)
        await ann.join(WIDE)
        await ann.plays()
        other = await theatre.person(context)
        await other.join(NARROW)
        question = other.page.get_by_role("dialog", name=f"You have a turn with {WIDE}")
        await expect(question).to_contain_text(f"If you join {NARROW}, it ends.")
        await expect(other.button("Keep it")).to_be_focused()
        await check(other.page, "the question")
        await other.page.keyboard.press("Enter")
        await expect(question).to_be_hidden()
        await expect(other.page.locator("main.lobby")).to_be_visible()
        await ann.plays()
        await other.join(NARROW)
        await other.button(f"End it and join {NARROW}").click()
        await other.plays()
        await ann.has_ended("You went on in another window")
        await other.leave()


async def test_who_has_left_the_first_model_is_asked_nothing(theatre: Theatre) -> None:
    async with theatre.people() as (ann,):
        await ann.join(WIDE)
        await ann.plays()
        await ann.leave()
        await theatre.is_free(WIDE)
        await ann.button("All models").click()
        await ann.join(NARROW)
        await ann.plays()
        await ann.leave()


async def test_the_models_are_asked_for_at_once_and_not_with_the_clock(theatre: Theatre) -> None:
    async with theatre.context() as context:
        page = await context.new_page()
        # The clock never starts: what is shown was asked for without it.
        await page.route("**/assets/ticker*", lambda route: route.abort())
        ann = Person(page, theatre.relay.address)
        await ann.open()
        await ann.button(f"Start: {WIDE}").wait_for()


async def test_what_was_said_aloud_does_not_stay_in_the_page(theatre: Theatre) -> None:
    async with theatre.people(2) as (ann, bob):
        await ann.join(NARROW)
        await ann.plays()
        await bob.join(NARROW)
        calm, urgent = bob.page.locator(".spoken[role=status]"), bob.page.locator(".spoken[role=alert]")
        await expect(calm).to_contain_text("You are next in line.")
        await ann.leave()
        await bob.plays()
        await expect(urgent).to_have_text("Your turn begins.")
        await expect(calm).to_have_text("")
        await expect(urgent).to_have_text("")
        await bob.leave()


SCREENS = {
    "desktop": DESKTOP["viewport"],
    "phone": PHONE["viewport"],
    "phone on its side": {"width": 844, "height": 390},
}


@pytest.mark.parametrize("screen", SCREENS)
async def test_what_is_said_of_the_end_covers_no_picture_and_moves_none(theatre: Theatre, screen: str) -> None:
    await theatre.serve("tall", idle=120, idle_warning=119)
    async with theatre.worker("tall", width="300", height="600"), theatre.people() as (ann,):
        await ann.page.set_viewport_size(SCREENS[screen])
        await ann.button("Start: tall").wait_for()
        await ann.join("tall")
        await ann.plays()
        before = await ann.canvas.bounding_box()
        await ann.page.mouse.click(*await ann.point(0.5, 0.5))
        banner = ann.page.locator(".banner")
        await expect(banner).to_contain_text("Still there?")
        # It rises into its place.
        await banner.evaluate("it => Promise.all(it.getAnimations().map((each) => each.finished))")
        said, picture = await banner.bounding_box(), await ann.canvas.bounding_box()
        assert said is not None and picture is not None
        assert picture == before, "the picture stays where it is"
        is_beside = said["x"] >= picture["x"] + picture["width"] or picture["x"] >= said["x"] + said["width"]
        is_off = said["y"] >= picture["y"] + picture["height"] or picture["y"] >= said["y"] + said["height"]
        assert is_beside or is_off, (said, picture)
        for name in ("Leave", "I am still here"):
            box = await ann.button(name).bounding_box()
            assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= SCREENS[screen]["width"]
        leave = await ann.button("Leave").bounding_box()
        assert leave is not None
        assert said["x"] + said["width"] <= leave["x"] or said["y"] >= leave["y"] + leave["height"]
        await ann.leave()


async def test_the_lobby_says_what_a_model_is_and_shows_its_picture_or_the_last_frame(theatre: Theatre) -> None:
    await theatre.serve("bars")
    async with theatre.worker("bars"), theatre.people() as (ann,):
        card = ann.page.locator('.model[data-model="bars"]')
        await expect(card.get_by_role("heading")).to_have_text("Test pattern bars")
        await expect(card.locator(".about").first).to_contain_text("Colour bars and numbers")
        await expect(card.locator(".controls")).to_contain_text("Point and click: the cross follows")
        await expect(card.locator(".state")).to_have_text("Free now")
        await expect(card.locator("canvas")).to_be_visible()
        assert await card.locator("canvas").evaluate("canvas => [canvas.width, canvas.height]") == [480, 360]
        await check(ann.page, "the models with what they are")
        for width in (390, 320):
            await ann.page.set_viewport_size({"width": width, "height": 844})
            box = await card.bounding_box()
            assert box is not None and box["x"] + box["width"] == width - box["x"], "as far from both edges"
        await ann.page.set_viewport_size(DESKTOP["viewport"])
        await ann.join("bars")
        await ann.plays()
        await expect(ann.page.locator("main.stage h1")).to_have_text("Test pattern")
        await expect(ann.page.locator(".hint.fine")).to_contain_text("Point and click: the cross follows")
        await ann.leave()
        await ann.button("All models").click()
        # What this window saw last, of 512 × 384, as small as the list needs it.
        own = "canvas => canvas.width === 320 && canvas.height === 240"

        async def is_own() -> bool:
            return bool(await card.locator("canvas").evaluate(own))

        await until("the last frame is shown", is_own)


async def test_a_phone_has_buttons_for_the_keys_that_a_model_names(theatre: Theatre) -> None:
    (theatre.stage.folder / "steered.py").write_text(STEERED)
    await theatre.serve("steered")
    async with theatre.worker("steered", "steered:Steered"), theatre.people(**PHONE) as (ann,):
        await ann.button("Start: steered").wait_for()
        await ann.join("steered")
        await ann.plays()
        await expect(ann.page.locator(".hint.coarse")).to_have_text("Arrows tilt the board.")
        pad = ann.page.get_by_role("group", name="Keys")
        await expect(pad.get_by_role("button")).to_have_text(["←", "→", "Space"])
        await pad.get_by_role("button", name="Left").tap()
        await pad.get_by_role("button", name="Space").tap()
        keys = [(each["key"], each["down"]) for each in await ann.inputs("key", 4)]
        assert keys == [("ArrowLeft", True), ("ArrowLeft", False), (" ", True), (" ", False)]
        assert [each["text"] for each in await ann.inputs("text", 1)] == [" "], (
            "a key that writes comes as text as well"
        )
        picture, buttons = await ann.canvas.bounding_box(), await pad.bounding_box()
        assert picture is not None and buttons is not None
        assert buttons["y"] >= picture["y"] + picture["height"], "the keys cover no picture"
        assert buttons["y"] + buttons["height"] <= PHONE["viewport"]["height"]
        await check(ann.page, "a turn with keys")
        await ann.leave()
    async with theatre.worker("steered", "steered:Steered"), theatre.people() as (bob,):
        await bob.button("Start: steered").wait_for()
        await bob.join("steered")
        await bob.plays()
        await expect(bob.page.locator(".pad")).to_be_hidden()
        await bob.leave()
