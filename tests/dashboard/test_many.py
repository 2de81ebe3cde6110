"""A thousand GPUs on one page: of each reading only what it changes is touched, and no row is made anew."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

import pytest
from playwright.async_api import expect

from building import page as built
from tests.dashboard.house import House, Visitor
from tests.e2e.processes import until
from tests.gateway.stage import Side

pytestmark = [pytest.mark.nightly, pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

NODES, GPUS = 125, 1_000

WATCH_CHANGES = """() => {
    window.touched = { rows: 0, texts: 0, cells: new Set() };
    const isRow = (node) => node instanceof Element && (node.matches(".row") || node.querySelector(".row") !== null);
    new MutationObserver((changes) => {
        for (const change of changes) {
            if ([...change.addedNodes, ...change.removedNodes].some(isRow)) touched.rows += 1;
            const element = change.target instanceof Element ? change.target : change.target.parentElement;
            const cell = element?.closest("[aria-labelledby^=node-sim] .device > .cell");
            if (!cell) continue;
            touched.texts += 1;
            touched.cells.add([...cell.classList].find((each) => each.startsWith("cell-")));
        }
    }).observe(document.querySelector(".nodes"), {
        subtree: true, childList: true, characterData: true, attributes: true,
    });
}"""


async def test_a_thousand_gpus_change_all_the_time_and_no_row_is_made_anew(own_house: House) -> None:
    house = own_house
    stage = house.stage
    side = _Agents(stage.folder, "agents", "bench.agents", stage.fleet.scheduler.address, stage.token_file("agent"))
    stage.sides.append(side)
    side.start()
    async with house.visitor("ann", "devices") as ann:
        # Beside those of the house's own node.
        await expect(ann.page.locator(".device")).to_have_count(GPUS + 2)
        await expect(ann.page.locator(".node")).to_have_count(NODES + 1)
        await ann.page.evaluate(WATCH_CHANGES)
        seen: dict[str, Any] = {}

        async def most_have_moved() -> bool:
            seen.update(await ann.page.evaluate("({ ...touched, cells: [...touched.cells] })"))
            return bool(seen["texts"] >= 4 * GPUS)

        await until("every GPU has told something new", most_have_moved)
        assert seen["rows"] == 0
        # Load and score move with each beat; heat and power stay, and are not touched. A GPU counts as free once its
        # node is heard, and not while that is late.
        assert set(seen["cells"]) <= {"cell-load", "cell-memory", "cell-score", "cell-holder"}
        await ann.page.get_by_label("Filter by node, model, user or job").fill("sim00100")
        await expect(ann.page.locator(".device:visible")).to_have_count(8)
    side.end()


ON_SCREEN = """() => [...document.querySelectorAll(".tile")]
    .filter((tile) => tile.checkVisibility() && tile.getBoundingClientRect().bottom <= innerHeight).length"""
LINES = """() => [...document.querySelectorAll(".tile .spark path")]
    .filter((line) => /^M.*L/.test(line.getAttribute("d"))).length"""


async def test_64_gpus_stand_on_one_screen_and_any_of_them_shows_its_row(own_house: House) -> None:
    house = own_house
    stage = house.stage
    side = _Agents(stage.folder, "agents", "bench.agents", stage.fleet.scheduler.address, stage.token_file("agent"))
    stage.sides.append(side)
    side.nodes = 8
    side.start()
    async with house.visitor("ann", "devices") as ann:
        tiles = ann.page.locator(".tile:visible")
        await expect(tiles).to_have_count(66)
        await until("all are on the screen", lambda: _is(ann, ON_SCREEN, 66))
        await until("each has a line of its load", lambda: _is(ann, LINES, 66))
        await expect(ann.page.locator(".device:visible")).to_have_count(0)
        await expect(tiles.nth(2)).to_have_attribute("title", re.compile(r"GPU 0: load \d+ %, .* of .*"))
        loads = await ann.page.evaluate("[...document.querySelectorAll('.tile')].map((each) => each.style.cssText)")
        assert all("--load" in each for each in loads)
        await ann.check("a grid of GPUs")
        await tiles.nth(5).click()
        await expect(tiles.nth(5)).to_have_attribute("aria-expanded", "true")
        await expect(ann.page.locator(".device:visible")).to_have_count(1)
        await expect(ann.page.locator(".device:visible .cell-memory")).to_contain_text("of 80")
        await tiles.nth(5).click()
        await expect(ann.page.locator(".device:visible")).to_have_count(0)
        # What is left of a filter fits as rows, until somebody wants it otherwise.
        text = ann.page.get_by_label("Filter by node, model, user or job")
        await text.fill("sim00003")
        await expect(ann.page.locator(".device:visible")).to_have_count(8)
        await expect(tiles).to_have_count(0)
        await ann.button("Grid").click()
        await expect(tiles).to_have_count(8)
        await text.fill("")
        await ann.button("Rows").click()
        await expect(ann.page.locator(".device:visible")).to_have_count(66)
    side.end()


async def _is(visitor: Visitor, script: str, wanted: int) -> bool:
    return bool(await visitor.page.evaluate(script) == wanted)


class _Agents(Side):
    """The bench's simulated agents, as a program beside the fleet."""

    nodes = NODES

    def start(self) -> None:
        self._command = [*self._command, str(self.nodes)]
        self._command.remove("-P")
        self._folder = built.ROOT
        self._variables["PYTHONPATH"] = os.pathsep.join((str(built.ROOT), str(built.ROOT / "gen")))
        assert self._command[0] == sys.executable
        super().start()
