"""The two carriers of a turn's stream, and a bare chain that draws the same picture, in bursts by turns in one run.

Two gateways stand beside one worker: one finds its local socket, the other is told to leave it alone. Unchanged code
drifts by 15 % within minutes on a busy machine; bursts in random order have all of them drift alike.
"""

import asyncio
import random
import statistics

from gateway.carriers import LOCAL_VARIABLE

from ..rows import Row, Run, percentile
from . import chain
from .frames import SESSIONS, frames_a_second, input_to_frame_ms
from .people import Stage

TURNS = 6
"""Bursts of each, and one before that is not counted."""

CLICKS = 60
"""Of a burst, one after the other."""

LOCAL, GRPC = "local socket", "gRPC"


async def _measure(run: Run) -> list[Row]:
    stage = Stage(run.folder / "carriers")
    with stage.running(), stage.another_gateway({LOCAL_VARIABLE: "off"}) as far:
        sides = {LOCAL: stage, GRPC: far}
        with stage.worker("still"):
            rows = await _latencies(sides)
        with stage.worker("crowd", rate=150) as pid:
            rows += await _rates(sides, pid)
    return rows


async def _latencies(sides: dict[str, Stage]) -> list[Row]:
    """From a click to the frame that shows it."""
    times: dict[str, list[float]] = {name: [] for name in (*sides, "chain")}
    for turn in range(TURNS + 1):
        for name in random.sample(list(times), len(times)):
            burst = (
                await chain.round_trips_ms(CLICKS, draws=True)
                if name == "chain"
                else await input_to_frame_ms(sides[name], "still", CLICKS)
            )
            times[name] += burst if turn else []
    floor = statistics.median(times["chain"])
    rows = [Row("input to frame p50, the bare chain", floor, "ms")]
    for name in sides:
        p50, p99 = statistics.median(times[name]), percentile(times[name], 0.99)
        rows += [Row(f"input to frame p50, {name}", p50, "ms", floor, "the chain")]
        rows += [Row(f"input to frame p99, {name}", p99, "ms", p50, "its own p50")]
    return rows


async def _rates(sides: dict[str, Stage], pid: int) -> list[Row]:
    """Frames of many sessions at once."""
    figures: dict[str, list[tuple[float, float, float]]] = {name: [] for name in sides}
    floors: list[float] = []
    for turn in range(TURNS + 1):
        for name in random.sample([*sides, "chain"], len(sides) + 1):
            if name == "chain":
                floors += [await chain.pictures_a_second(SESSIONS)] if turn else []
                continue
            figure = await frames_a_second(sides[name], "crowd", pid, SESSIONS)
            figures[name] += [figure] if turn else []
    floor = statistics.median(floors)
    rows = [Row(f"frames of {SESSIONS} people, the bare chain", floor, "/s")]
    for name, told in figures.items():
        total, slowest, cost_ms = (statistics.median(column) for column in zip(*told, strict=True))
        rows += [Row(f"frames of {SESSIONS} sessions, {name}", total, "/s", floor, "the chain")]
        rows += [Row(f"the slowest of them, {name}", slowest, "/s", total / SESSIONS, "the mean of them")]
        rows += [Row(f"processor time a frame, {name}", cost_ms, "ms")]
    return rows


def measure(run: Run) -> list[Row]:
    """The rows of the group `carriers`."""
    return asyncio.run(_measure(run))
