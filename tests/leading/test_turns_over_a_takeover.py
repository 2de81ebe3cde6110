"""A person's turn while the scheduler is replaced: frames go on, the page stays, and the turn is the same behind it."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.gateway.stage import Side, Stage, browser
from tests.leading.pair import Pair

pytestmark = pytest.mark.postgres


class PairStage(Stage):
    """A worker and a gateway that know the addresses of both schedulers."""

    def __init__(self, pair: Pair) -> None:
        self.fleet = pair
        self.folder = pair.folder
        self.sides = []
        self._both = f"{pair.scheduler.address},{pair.other.address}"

    def side(self, name: str, module: str, *flags: str, variables: Mapping[str, str] | None = None) -> Side:
        side = Side(self.folder, name, module, *flags, "--scheduler", self._both, variables=variables)
        self.sides.append(side)
        return side

    def end_sides(self) -> None:
        """End worker and gateway; the pair ends by itself."""
        for side in self.sides:
            side.end()


@pytest.mark.parametrize("trouble", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_turn_goes_on_over_a_takeover(tmp_path: Path, url: str, trouble: signal.Signals) -> None:
    async with Pair(tmp_path / "fleet", url, silence_max="2s", has_own_port=True) as pair:
        stage = PairStage(pair)
        try:
            stage.gateway = await stage.another_gateway("gateway").address()
            await stage.worker("kept").is_served()
            async with browser(stage) as ann:
                await ann.hello("kept")
                turn = await ann.text("turn")
                await ann.frame()
                pair.scheduler.signal(trouble)
                assert (await ann.text("notice"))["reason"] == "SCHEDULER_AWAY"
                clicked, newest = await ann.click(0.1, 0.1), 0
                while newest < clicked:
                    _, newest, _ = await ann.frame()
                await pair.serves(pair.other)
                back = await ann.text("turn")
                assert (back["session"], back["is_resumed"]) == (turn["session"], True)
                await ann.say(type="leave")
                assert (await ann.text("end"))["reason"] == "LEFT"
        finally:
            if trouble is signal.SIGSTOP:
                pair.scheduler.signal(signal.SIGCONT)
            stage.end_sides()
