"""What a test reads off a job's page and a chart: as somebody does who looks, and as somebody who listens."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, NamedTuple

from playwright.async_api import Locator, Page

from tests.dashboard.house import House
from tests.e2e.processes import clean_environment, until

NBSP = "\u00a0"


class JobPage:
    """The page of one job."""

    def __init__(self, page: Page) -> None:
        self.page = page

    @property
    def lines(self) -> Locator:
        return self.page.locator(".output-pane .line")

    @property
    def story(self) -> Locator:
        return self.page.locator(".timeline .said")

    def part(self, name: str) -> Locator:
        """A section by its heading."""
        return self.page.get_by_role("region", name=name, exact=True)

    def fact(self, name: str, part: str = "#view") -> Locator:
        """The value of a fact, such as "Submitted"."""
        rows = self.page.locator(f"{part} dl.facts > div").filter(has=self.page.get_by_text(name, exact=True))
        return rows.locator("dd")

    async def texts(self) -> list[str]:
        """All lines of output that are shown."""
        return await self.lines.all_inner_texts()


class Read(NamedTuple):
    """What a chart tells at its crosshair, all at the same moment."""

    value: str
    """Of the first line."""
    told: str
    """To ears."""
    step: int
    steps: int
    when: str
    when_there: str
    """When another chart tells it to be."""


READ = """([root, other]) => {
    const text = (element, part) => element.querySelector(part).innerText;
    const plot = root.querySelector("[role=slider]");
    return [
        `${text(root, ".chart-value")} ${text(root, ".chart-span")}`.trim(), plot.getAttribute("aria-valuetext"),
        Number(plot.getAttribute("aria-valuenow")), Number(plot.getAttribute("aria-valuemax")),
        text(root, ".chart-when"), text(other, ".chart-when"),
    ].map((each) => (typeof each === "string" ? each.replaceAll("\u00a0", " ") : each));
}"""


class ChartOf:
    """One chart of the page."""

    def __init__(self, page: Page, key: str) -> None:
        self.root = page.locator(f'figure.chart[data-chart="{key}"]')
        self.plot = self.root.get_by_role("slider")

    async def heard(self) -> str:
        """What somebody hears of it who sees nothing."""
        return (await self.root.locator("p.unseen").inner_text()).replace(NBSP, " ")

    async def legend(self) -> dict[str, str]:
        """What is read at the crosshair, or of all where there is none, by the lines' names."""
        told = {}
        for row in await self.root.locator(".chart-legend li").all():
            name = (await row.locator(".chart-name").inner_text()).replace(NBSP, " ")
            told[name] = (await row.inner_text()).replace(NBSP, " ").removeprefix(name).strip()
        return told

    async def read(self, other: str) -> Read:
        """What is read at the crosshair, and when the other chart says that it is."""
        there = await self.root.page.locator(f'figure.chart[data-chart="{other}"]').element_handle()
        here = await self.root.element_handle()
        return Read(*await self.root.page.evaluate(READ, [here, there]))

    async def has_points(self, least: int) -> None:
        """Return once so many points are drawn."""

        async def are_there() -> bool:
            return int(await self.root.get_attribute("data-points") or 0) >= least

        await until(f"the chart has {least} points", are_there)


async def gpuctl(house: House, *arguments: str) -> Any:
    """What `gpuctl … -o json` says, to the admin."""
    fleet = house.stage.fleet
    variables = {"GPUCTL_SCHEDULER": fleet.scheduler.address, "GPUCTL_TOKEN": fleet.scheduler.token("admin")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "gpufleet.cli", *arguments, "-o", "json"),
        stdout=asyncio.subprocess.PIPE,
        env=clean_environment(fleet.folder, variables),
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said
    return json.loads(said)
