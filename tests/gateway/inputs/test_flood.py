"""Clicks under a flood of moves, from a browser's WebSocket to the model: every one, in order, where it was."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.gateway.stage import Browser, Stage, browser

CLICKS = 200
MOVES_FOR_EACH = 150
"""So 30,000 moves, a thousand a second: for 30 s, or longer on a machine that is busy."""

FLOOD_SECONDS_MAX = 240.0

MODEL = '''
import time
import numpy as np

class Recorder:
    """Writes down what it is given, and takes its time."""

    seats, width, height = 1, 64, 64

    def __init__(self, *, file: str) -> None:
        self.file = open(file, "w", buffering=1)
        self.clicks = 0

    def open(self, session):
        return session.id

    def step(self, state, inputs):
        time.sleep(0.1)
        for event in inputs.events:
            self.clicks += 1
            print(event.sequence, event.x, event.y, event.buttons, file=self.file)
        return np.full((64, 64, 3), self.clicks % 256, np.uint8)

    def close(self, state):
        pass
'''


@pytest.mark.timeout(400)
async def test_all_clicks_of_a_flood_arrive_in_order_and_where_they_were(stage: Stage) -> None:
    (stage.folder / "recorder.py").write_text(MODEL)
    seen = stage.folder / "clicks.txt"
    worker = stage.worker("flooded", "recorder:Recorder", file=str(seen))
    await worker.is_served()
    # After a moment in which the machine did other things, many come together, and none of them too fast.
    file = stage.folder / "generous.toml"
    file.write_text("[limits]\nmessages_per_second_max = 1_000_000\n")
    gateway = stage.another_gateway("generous", "--config", str(file))
    async with browser(stage, gateway=await gateway.address()) as ann:
        await ann.hello("flooded")
        await ann.text("turn")
        clicks: list[tuple[int, float, float, int]] = []
        async with _reading(ann):
            begin = asyncio.get_running_loop().time()
            for number in range(CLICKS):
                for _ in range(MOVES_FOR_EACH):
                    ann.sequence += 1
                    await ann.say(type="pointer", seq=ann.sequence, x=0.9, y=0.9, buttons=0)
                # Powers of two, so that a position is what it was in every format on the way.
                x, y = number / 256, 1 - number / 256
                ann.sequence += 1
                button = number % 2
                await ann.say(type="pointer", seq=ann.sequence, x=x, y=y, buttons=button, button_change=True)
                clicks.append((ann.sequence, x, y, button))
                due = begin + ann.sequence / 1_000
                await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
        while ann.newest < ann.sequence:
            await ann.frame()
        written = [line.split() for line in seen.read_text().splitlines()]
        assert [(int(n), float(x), float(y), int(buttons)) for n, x, y, buttons in written] == clicks
        assert 1 < ann.frames < ann.sequence / 10, "moves give way to newer ones"
        await ann.say(type="leave")
        await ann.text("end")
    gateway.end()
    worker.end()


@asynccontextmanager
async def _reading(ann: Browser) -> AsyncIterator[None]:
    """Frames are shown as they come."""

    async def read() -> None:
        while True:
            message = await ann.socket.recv()
            if isinstance(message, bytes):
                await ann.shown(message)
            else:
                assert json.loads(message)["type"] != "end", message

    reading = asyncio.create_task(read(), name="reader")
    try:
        async with asyncio.timeout(FLOOD_SECONDS_MAX):
            yield
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
