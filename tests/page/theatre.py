"""Real programs and a real browser: what the tests of the page play with."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from google.protobuf.duration_pb2 import Duration
from gpufleet.v1 import sessions_pb2
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, WebSocket, expect

from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.gateway.stage import Side, Stage
from tests.page.relay import Relay

DEADLINE_MS = DEADLINE_SECONDS * 1e3
expect.set_options(timeout=DEADLINE_MS)

WIDE, NARROW = "wide", "narrow"
"""Models that are always there: test patterns, with many seats and with one."""

DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}}
PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "has_touch": True,
    "is_mobile": True,
}


@functools.cache
def chromium() -> str | None:
    """A Chromium that starts; None where there is none. Ubuntu's package only says that there is a snap.

    The headless shell draws the same page for half the CPU: it has no window of its own to draw.
    """
    for name in ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found is None:
            continue
        said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False, timeout=60)
        if said.returncode == 0 and said.stdout.startswith(("Chromium", "Google Chrome")):
            return found
    return None


def flags() -> list[str]:
    """Flags of Chromium: it draws without a GPU in software, which takes half the CPU; root has no sandbox."""
    cheap = ["--disable-gpu", "--disable-software-rasterizer", "--disable-extensions"]
    return [*cheap, *(["--no-sandbox"] if os.geteuid() == 0 else [])]


class Person:
    """Somebody with a browser of their own, and what it and the gateway said to each other."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.said: list[dict[str, Any]] = []
        self.told: list[dict[str, Any]] = []
        self.problems: list[str] = []
        page.set_default_timeout(DEADLINE_MS)
        page.on("websocket", self._on_socket)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda line: self.problems.append(line.text) if _is_a_fault(line) else None)

    def _on_socket(self, socket: WebSocket) -> None:
        socket.on("framesent", lambda data: self.said.append(json.loads(data)))
        socket.on("framereceived", lambda data: None if isinstance(data, bytes) else self.told.append(json.loads(data)))

    async def open(self) -> None:
        """Look at the page."""
        await self.page.goto(f"http://{self.address}/")

    async def join(self, model: str) -> None:
        """Take the model's button, whatever it says."""
        await self.page.locator(f'.model[data-model="{model}"]').get_by_role("button").click()

    async def plays(self) -> None:
        """Return once a picture is seen."""
        await expect(self.page.locator("main.stage")).to_be_visible()
        await expect(self.page.locator(".veil")).to_be_hidden()

    async def has_ended(self, title: str) -> None:
        """Return once the page says that the session is over, with these words."""
        await expect(self.page.locator("main.farewell")).to_be_visible()
        await expect(self.page.locator("main.farewell h1")).to_have_text(title)

    async def leave(self) -> None:
        await self.button("Leave").click()
        await self.has_ended("You have left")

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name)

    @property
    def canvas(self) -> Locator:
        return self.page.locator("main.stage canvas")

    async def point(self, x: float, y: float) -> tuple[float, float]:
        """Where a point of the picture, 0 to 1, is in the window."""
        box = await self.canvas.bounding_box()
        assert box is not None
        return box["x"] + x * box["width"], box["y"] + y * box["height"]

    async def colour(self, x: float, y: float) -> tuple[int, int, int]:
        """What the picture shows there."""
        code = """([x, y]) => {
            const canvas = document.querySelector("main.stage canvas");
            const at = [Math.round(x * (canvas.width - 1)), Math.round(y * (canvas.height - 1))];
            return [...canvas.getContext("2d").getImageData(...at, 1, 1).data.slice(0, 3)];
        }"""
        red, green, blue = await self.page.evaluate(code, [x, y])
        return red, green, blue

    async def inputs(self, kind: str, least: int = 0) -> list[dict[str, Any]]:
        """The inputs of a kind that the page has sent, in their order, once there are so many."""
        found: list[dict[str, Any]] = []

        # What the browser tells of its messages comes in while the page is asked something.
        async def look() -> bool:
            await self.page.evaluate("0")
            found[:] = [each for each in self.said if each["type"] == kind]
            return len(found) >= least

        await until(f"the page says {least} × {kind}", look)
        return found

    async def is_told(self, kind: str, **fields: Any) -> dict[str, Any]:
        """The newest message of this type with these fields, once there is one; forgets all before."""
        found: list[dict[str, Any]] = []

        async def look() -> bool:
            await self.page.evaluate("0")
            found[:] = [each for each in self.told if each["type"] == kind and fields.items() <= each.items()]
            return bool(found)

        await until(f"the page is told {kind} {fields}", look)
        self.told.clear()
        return found[-1]


def _is_a_fault(line: ConsoleMessage) -> bool:
    """Chromium itself notes each request that failed; a page that asks again makes more of them."""
    is_expected = line.text.startswith(("Failed to load resource", "WebSocket connection to"))
    return line.type == "error" and not is_expected


class Theatre:
    """A scheduler, a gateway behind a relay, workers, and a browser for any number of people."""

    def __init__(self, stage: Stage, browser: Browser) -> None:
        self.stage = stage
        self.browser = browser
        self.relay = Relay(stage.gateway)

    async def start(self) -> None:
        """The relay, and two workers that stay: one with room for everybody, and one with a single seat."""
        sides = [self.stage.worker(WIDE), self.stage.worker(NARROW, seats="1")]
        await self.relay.start()
        for model in (WIDE, NARROW):
            await self.serve(model)
        for side in sides:
            await side.is_served()

    @asynccontextmanager
    async def worker(self, name: str, model: str = "test-pattern", **arguments: str) -> AsyncIterator[Side]:
        """A worker that takes people, and ends when the test does."""
        side = self.stage.worker(name, model, variables=None, **arguments)
        try:
            await side.is_served()
            yield side
        finally:
            side.end()

    async def serve(self, name: str, **limits: int) -> None:
        """Give a model numbers of its own, in seconds; all others are such that nothing happens by them."""
        seconds = {"turn": 600, "turn_warning": 2, "grace": 2, "idle": 600, "idle_warning": 2} | limits
        spans: dict[str, Any] = {field: Duration(seconds=each) for field, each in seconds.items()}
        model = sessions_pb2.Model(name=name, limits=sessions_pb2.SessionLimits(**spans))
        async with self.stage.fleet.client() as client:
            await client.stub.ServeModel(sessions_pb2.ServeModelRequest(model=model), timeout=DEADLINE_SECONDS)

    async def is_free(self, name: str) -> None:
        """Return once nobody has a seat of the model."""

        async def nobody_is_there() -> bool:
            listed = await client.stub.ListModels(sessions_pb2.ListModelsRequest(), timeout=DEADLINE_SECONDS)
            return all(each.turn_count == 0 for each in listed.models if each.name == name)

        async with self.stage.fleet.client() as client:
            await until(f"the seats of {name} are free", nobody_is_there)

    @asynccontextmanager
    async def context(self, **options: Any) -> AsyncIterator[BrowserContext]:
        """A browser with cookies of its own; `person` opens its windows."""
        context = await self.browser.new_context(**(DESKTOP | options))
        try:
            yield context
        finally:
            await context.close()
            await self.relay.quiet()

    async def person(self, context: BrowserContext) -> Person:
        """A new window that looks at the page."""
        person = Person(await context.new_page(), self.relay.address)
        await person.open()
        return person

    @asynccontextmanager
    async def people(self, count: int = 1, **options: Any) -> AsyncIterator[list[Person]]:
        """So many people at the page; in the end none of their pages may have complained."""
        contexts = [await self.browser.new_context(**(DESKTOP | options)) for _ in range(count)]
        try:
            people = [await self.person(context) for context in contexts]
            yield people
            problems = [problem for person in people for problem in person.problems]
            assert not problems, "\n".join(problems)
        finally:
            self.relay.mend()
            for context in contexts:
                await context.close()
            await self.relay.quiet()
