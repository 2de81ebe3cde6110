"""Moves of the pointer at the edge: however many a browser sends, a worker gets as many as screens have frames."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

from gateway.turn import MOVE_INTERVAL_S
from gpufleet.errors import Reason
from tests.e2e.processes import until
from tests.gateway.stage import Browser, browser_at
from tests.gateway.test_refused import pretended

CLICKS, MOVES_FOR_EACH = 20, 50


async def test_a_flood_of_moves_is_thinned_out_before_the_worker_and_no_click_is(tmp_path: Path) -> None:
    async with pretended(Reason.NO_FREE_SEAT, tmp_path) as (fake, gateway), browser_at(gateway) as ann:
        await ann.hello("drawn")
        await ann.text("turn")
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        clicked = [await _move_and_click(ann, number / 32) for number in range(CLICKS)]
        ann.sequence += 1
        await ann.say(type="pointer", seq=ann.sequence, x=0.25, y=0.75, buttons=0)
        await until("the newest move has come", lambda: fake.inputs and fake.inputs[-1].sequence == ann.sequence)
        span_s = loop.time() - begin_s

        inputs = [(each.sequence, each.pointer.x, each.pointer.is_button_change) for each in fake.inputs]
        assert [sequence for sequence, _, _ in inputs] == sorted({sequence for sequence, _, _ in inputs})
        assert [(sequence, x) for sequence, x, is_click in inputs if is_click] == clicked
        # Besides those that were due, each click takes the newest move before it along.
        moves = [x for _, x, is_click in inputs if not is_click]
        assert moves[-1] == 0.25
        assert len(moves) <= CLICKS + 1 + math.ceil(span_s / MOVE_INTERVAL_S)


async def _move_and_click(ann: Browser, x: float) -> tuple[int, float]:
    """Moves as fast as the line takes them, and a button at the end; its number and where it was."""
    for _ in range(MOVES_FOR_EACH):
        ann.sequence += 1
        await ann.say(type="pointer", seq=ann.sequence, x=0.9, y=0.9, buttons=0)
    return await ann.click(x, 0.5), x
