"""Sends what the pacing says to a target, and sums up what comes of it: one row."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import assert_never

from .pacing import Pacer, RowEnd, Send, Shape, Wait
from .sums import EndedRequest, Figures, RowSums
from .targets import Target


async def run_row(target: Target, shape: Shape) -> Figures:
    """Ask as the shape says, and wait for all answers. Cancelling it ends what is under way."""
    loop = asyncio.get_running_loop()
    sums, news = RowSums(), asyncio.Event()
    pacer = Pacer(shape, loop.time())

    async def one(number: int, due_s: float) -> None:
        sent_s = loop.time()
        outcome = await target.ask(number)
        sums.add(
            EndedRequest(
                due_s if shape.rate else sent_s,
                sent_s,
                loop.time(),
                target.items,
                outcome.errors,
                outcome.is_answered,
                outcome.sentence,
            )
        )
        pacer.ended()
        news.set()

    sent = 0
    async with asyncio.TaskGroup() as group:
        while True:
            step = pacer.step(loop.time())
            match step:
                case Send():
                    group.create_task(one(sent, step.due_s), name="bench-request")
                    sent += 1
                case Wait():
                    news.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout_at(step.until_s):
                            await news.wait()
                case RowEnd():
                    sums.add_unsent(step.unsent, target.items)
                    return sums.figures()
                case _:
                    assert_never(step)
