"""What axe-core finds on a screen of the page."""

from __future__ import annotations

from playwright.async_api import Page

from building import page as built
from tests.e2e.processes import until
from tests.page.theatre import DESKTOP, PHONE

AXE = built.ROOT / "gateway" / "web" / "node_modules" / "axe-core" / "axe.min.js"

RUN_AXE = """async () => {
    const found = await axe.run(document, { resultTypes: ["violations"] });
    return found.violations
        .filter((each) => each.impact === "serious" || each.impact === "critical")
        .map((each) => `${each.id}: ${each.help}: ${each.nodes.map((node) => node.html).join(" | ")}`);
}"""

FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
"""Nothing is wider than the window: at once, or when what is drawn by a script has been drawn anew."""


async def check(page: Page, what: str) -> None:
    """axe-core finds nothing serious on this screen: light and dark, on a desktop and on a phone."""
    if not await page.evaluate("typeof axe === 'object'"):
        await page.evaluate(AXE.read_text() + "; undefined")
    for width in (DESKTOP, PHONE):
        await page.set_viewport_size(width["viewport"])
        for scheme in ("light", "dark"):
            await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            found = await page.evaluate(RUN_AXE)
            assert not found, f"{what}, {scheme}, {width['viewport']}:\n" + "\n".join(found)
            await until(f"{what} fits {width['viewport']}", lambda: page.evaluate(FITS))
    await page.set_viewport_size(DESKTOP["viewport"])
    await page.emulate_media(color_scheme="light", reduced_motion="no-preference")
