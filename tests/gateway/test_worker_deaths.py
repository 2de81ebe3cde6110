"""Workers that go down under one person: killed from outside it is nobody's doing, and by an input it is theirs."""

from __future__ import annotations

import re
import signal
from typing import Any

from tests.e2e.processes import until
from tests.gateway.stage import Browser, Side, Stage, browser

DIES = """\
import os
import signal

import numpy


class Dies:
    def open(self, session):
        return None

    def step(self, state, inputs):
        for event in inputs.events:
            if getattr(event, "key", "") == "x":
                os.kill(os.getpid(), signal.SIGKILL)
        return numpy.full((48, 64, 3), len(inputs.events), numpy.uint8)

    def close(self, state):
        pass
"""


async def started(stage: Stage, name: str, count: int, model: str = "test-pattern") -> list[Side]:
    sides = [stage.worker(name, model) for _ in range(count)]
    for side in sides:
        await side.is_served()
    return sides


async def begins(page: Browser) -> dict[str, Any]:
    turn = await page.text("turn")
    await page.frame()
    return turn


async def test_two_workers_that_are_killed_from_outside_do_not_end_the_session_while_a_third_is_free(
    stage: Stage,
) -> None:
    sides = await started(stage, "outside", 3)
    async with browser(stage) as ann:
        await ann.hello("outside")
        turn = await begins(ann)
        await ann.click(0.5, 0.5)
        while ann.newest < 1:
            await ann.frame()
        for _ in range(2):
            await kill_the_one_with_a_turn(turn["session"], sides)
            again = await begins(ann)
            assert again["session"] == turn["session"]
        await ann.say(type="leave")
        assert (await ann.text("end"))["reason"] == "LEFT"
    for side in sides:
        side.end()


async def kill_the_one_with_a_turn(session: str, sides: list[Side]) -> None:
    """The worker that is there and whose log says that it opened the session; a thread writes its lines."""
    opened = re.compile(rf"turn opened.*session={session}\b")

    def found() -> list[Side]:
        return [side for side in sides if side.process is not None and opened.search(side.log.read_text())]

    await until("a worker says that it opened the session", found)
    [one] = found()
    one.end(signal.SIGKILL)


async def test_a_model_that_dies_of_an_input_is_held_off_after_two_workers(stage: Stage) -> None:
    (stage.folder / "dies.py").write_text(DIES)
    sides = await started(stage, "dies", 3, "dies:Dies")
    async with browser(stage) as ann:
        await ann.hello("dies")
        for _ in range(2):
            await begins(ann)
            ann.sequence += 1
            await ann.say(type="key", seq=ann.sequence, key="x", down=True)
        end = await ann.text("end")
        assert end["reason"] == "MODEL_FAILED"
        assert "2 workers went down in the middle of a step" in end["message"]

    def living() -> int:
        return sum(side.process is not None and side.process.poll() is None for side in sides)

    await until("both of those that were killed are gone", lambda: living() <= 1)
    assert living() == 1
    for side in sides:
        side.end()
