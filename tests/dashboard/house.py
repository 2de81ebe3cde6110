"""Real programs and a real browser for the dashboard: a scheduler, a gateway, and nodes that play back a load."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gpufleet.v1 import job_pb2, scheduler_pb2
from playwright.async_api import Browser, Locator, Page, Route, WebSocketRoute, expect

from building import page as built
from tests.e2e.client import Client
from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.gateway.stage import Stage
from tests.page.theatre import DEADLINE_MS, DESKTOP, PHONE

BANDS = """\
[policy.bands.users]
ann = ["low", "normal", "high", "urgent"]
bob = ["low", "normal", "high"]
"""
"""Cy has what users have by default."""

AXE = built.ROOT / "gateway" / "web" / "node_modules" / "axe-core" / "axe.min.js"
IMAGES = built.ROOT / "docs" / "images"

ROLES = {
    "admin": scheduler_pb2.ROLE_ADMIN,
    "ann": scheduler_pb2.ROLE_USER,
    "bob": scheduler_pb2.ROLE_USER,
    "cy": scheduler_pb2.ROLE_USER,
    "vic": scheduler_pb2.ROLE_VIEWER,
}
"""The people of a house, and what each may do."""

RUN_AXE = """async () => {
    const found = await axe.run(document, { resultTypes: ["violations"] });
    return found.violations
        .filter((each) => each.impact === "serious" || each.impact === "critical")
        .map((each) => `${each.id}: ${each.help}: ${each.nodes.map((node) => node.html).join(" | ")}`);
}"""

FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
"""Nothing is wider than the window: at once, or when the charts were drawn anew for it."""

GB = 10**9


def recorded_load(file: Path) -> str:
    """A load over some seconds that goes round: GPU 1 rests, all others work. Answers the file's name."""
    power = {"power_limit_mw": 350_000}
    lines: list[dict[str, Any]] = [
        {
            "seconds": 0,
            "utilization_percent": 91,
            "memory_used_bytes": 6 * GB,
            "temperature_c": 64,
            "power_mw": 248_000,
        },
        {
            "seconds": 3,
            "utilization_percent": 97,
            "memory_used_bytes": 7 * GB,
            "temperature_c": 71,
            "power_mw": 318_000,
        },
        {
            "seconds": 6,
            "utilization_percent": 88,
            "memory_used_bytes": 7 * GB,
            "temperature_c": 74,
            "power_mw": 301_000,
        },
        {"seconds": 0, "gpu": 1, "utilization_percent": 0, "memory_used_bytes": GB // 2, "temperature_c": 33},
        {"seconds": 4, "gpu": 1, "utilization_percent": 3, "memory_used_bytes": GB // 2, "temperature_c": 34},
    ]
    file.write_text("".join(json.dumps(power | line) + "\n" for line in lines))
    return str(file)


class Visitor:
    """Somebody at the dashboard, with a browser of their own."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.problems: list[str] = []
        page.set_default_timeout(DEADLINE_MS)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda line: self.problems.append(line.text) if _is_a_fault(line.type, line.text) else None)

    async def open(self, view: str = "") -> None:
        """Look at the dashboard, or at one of its views."""
        await self.page.goto(f"http://{self.address}/dashboard" + (f"#/{view}" if view else ""))

    async def log_in(self, token: str) -> None:
        await self.page.get_by_label("Your token").fill(token)
        await self.button("Log in").click()

    async def turn(self, view: str, heading: str) -> None:
        """Go to a view, and return once it is there."""
        await self.page.evaluate("view => { location.hash = `#/${view}`; }", view)
        await expect(self.heading).to_have_text(heading)

    @property
    def heading(self) -> Locator:
        return self.page.locator("#view h1")

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def job(self, job_id: int) -> Locator:
        """A job's row, in whatever table it stands."""
        return self.page.locator(f'.row[data-key="{job_id}"]')

    def cell(self, job_id: int, key: str) -> Locator:
        return self.job(job_id).locator(f".cell-{key}")

    def gpu(self, node: str, index: int) -> Locator:
        """A GPU's row."""
        return self.page.get_by_role("region", name=node, exact=True).locator(".device").nth(index)

    async def is_told(self, text: str) -> None:
        """Return once the page has said what came of it."""
        await expect(self.page.locator(".toast p")).to_contain_text(text)

    async def change(self, job_id: int) -> Locator:
        """Ask what may be done to a job; the dialog."""
        await self.page.get_by_role("button", name=f"Change job {job_id}", exact=True).click()
        dialog = self.page.get_by_role("dialog")
        await expect(dialog).to_contain_text(f"Job {job_id}")
        return dialog

    async def told(self, job_id: int, **fields: Any) -> None:
        """From the next page on, whatever tells of this job tells these fields so too; what is None is left out."""

        def changed(message: Any) -> Any:
            if isinstance(message, list):
                return [changed(each) for each in message]
            if not isinstance(message, dict):
                return message
            if "spec" in message and str(message.get("id")) == str(job_id):
                return {name: value for name, value in (message | fields).items() if value is not None}
            return {name: changed(value) for name, value in message.items()}

        async def answer(route: Route) -> None:
            response = await route.fetch()
            await route.fulfill(response=response, json=changed(await response.json()))

        def pass_on(socket: WebSocketRoute) -> None:
            server = socket.connect_to_server()
            server.on_message(lambda message: socket.send(json.dumps(changed(json.loads(message)))))

        await self.page.route(re.compile(r"/api/v1/rpc/(Queue|GetJob|Explain)$"), answer)
        await self.page.route_web_socket("**/api/v1/streams", pass_on)

    async def check(self, what: str) -> None:
        """axe-core finds nothing serious, light and dark, on a desktop and on a phone, and nothing is too wide."""
        if not await self.page.evaluate("typeof axe === 'object'"):
            await self.page.evaluate(AXE.read_text() + "; undefined")
        for width in (DESKTOP, PHONE):
            await self.page.set_viewport_size(width["viewport"])
            for scheme in ("light", "dark"):
                await self.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                found = await self.page.evaluate(RUN_AXE)
                assert not found, f"{what}, {scheme}, {width['viewport']}:\n" + "\n".join(found)
                await until(f"{what} fits {width['viewport']}", lambda: self.page.evaluate(FITS))
        await self.page.set_viewport_size(DESKTOP["viewport"])
        await self.page.emulate_media(color_scheme="light", reduced_motion="no-preference")


def _is_a_fault(kind: str, text: str) -> bool:
    """Chromium itself notes each request that failed; a page that asks again makes more of them."""
    return kind == "error" and not text.startswith(("Failed to load resource", "WebSocket connection to"))


class House:
    """A scheduler, a gateway, two nodes of two GPUs each, a token for everybody, and a browser."""

    def __init__(self, stage: Stage, browser: Browser) -> None:
        self.stage = stage
        self.browser = browser
        self.tokens: dict[str, str] = {}
        self.token_ids: dict[str, str] = {}

    async def start(self, *nodes: str) -> None:
        """Nodes, whose GPUs play back a recorded load, and tokens."""
        load = recorded_load(self.stage.folder / "load.jsonl")
        for node in nodes:
            await self.stage.fleet.add_node(node, "--virtual-gpus", "2", "--virtual-load", load, "--cpus", "4")
        for name in ROLES:
            await self.token_for(name)

    async def token_for(self, name: str) -> str:
        """A new token for somebody; the newest one is theirs."""
        async with self.stage.fleet.client() as admin:
            request = scheduler_pb2.CreateTokenRequest(user=name, role=ROLES[name])
            made = await admin.stub.CreateToken(request, timeout=DEADLINE_SECONDS)
        self.tokens[name], self.token_ids[name] = made.secret, made.token.id
        return self.tokens[name]

    async def revoke(self, name: str) -> None:
        async with self.stage.fleet.client() as admin:
            request = scheduler_pb2.RevokeTokenRequest(id=self.token_ids[name])
            await admin.stub.RevokeToken(request, timeout=DEADLINE_SECONDS)

    @asynccontextmanager
    async def client(self, name: str) -> AsyncIterator[Client]:
        """Somebody beside the dashboard. What a test that fails leaves is cancelled: the next one wants the GPUs."""
        async with self.stage.fleet.client(self.tokens[name]) as client:
            try:
                yield client
            except BaseException:
                every = scheduler_pb2.CancelRequest(jobs=scheduler_pb2.JobSelector(all_mine=True))
                await client.stub.Cancel(every, timeout=DEADLINE_SECONDS)
                raise

    @asynccontextmanager
    async def visitor(self, name: str = "", view: str = "", **options: Any) -> AsyncIterator[Visitor]:
        """Somebody at the dashboard, logged in if named; in the end the page must not have complained."""
        context = await self.browser.new_context(**(DESKTOP | options))
        try:
            visitor = Visitor(await context.new_page(), self.stage.gateway)
            await visitor.open(view)
            if name:
                await visitor.log_in(self.tokens[name])
                await expect(visitor.page.locator(".person .who")).to_contain_text(name)
            yield visitor
            assert not visitor.problems, "\n".join(visitor.problems)
        finally:
            await context.close()

    async def ended(self, name: str, *jobs: int) -> None:
        """Cancel jobs that a test leaves, and return once they have ended."""
        async with self.client(name) as client:
            selected = scheduler_pb2.JobSelector(job_ids=jobs)
            await client.stub.Cancel(scheduler_pb2.CancelRequest(jobs=selected), timeout=DEADLINE_SECONDS)
            for job in jobs:
                await client.wait(job)


RUNNING = job_pb2.JOB_STATE_RUNNING
