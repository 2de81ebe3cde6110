"""The model `canvas` at 32 steps: frames that a worker serves, against a bare loop of step and the same encoding."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.gpu import smi
from tests.gpu.results import Results

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
STEPS = 32
SECONDS = 5.0
FRAME_SECONDS_MAX = 30.0
CLICK_EVERY = 30
ROUNDS = 3
SHARE_TARGET = 0.95

BARE = """
import time
from gpufleet.model import LEFT, Inputs, Pointer, Session
from inference.core.pacing import Quality
from inference.encoding import encode, picture_of
from inference.models.canvas.model import Canvas

model = Canvas(device="{device}", steps={steps}, rate=0)
model.warm_up()
sheet, quality = model.open(Session(id="bare")), Quality().value
for seconds in (1.0, {seconds}):
    begin, count = time.perf_counter(), 0
    while time.perf_counter() < begin + seconds:
        at = Pointer(count % 97 / 97, 0.5, LEFT if count % {click_every} == 0 else 0)
        encode(picture_of(model.step(sheet, Inputs(events=(at,)))), "jpeg", quality)
        count += 1
print(count / (time.perf_counter() - begin))
"""


def bare_rate(device: str = "cuda:0", steps: int = STEPS) -> float:
    """Frames a second of the loop, in a process of its own as the worker is one."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "gen")])}
    code = BARE.format(device=device, steps=steps, seconds=SECONDS, click_every=CLICK_EVERY)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    return float(done.stdout)


async def served_rate(folder: Path, device: str = "0", steps: int = STEPS) -> float:
    """Frames a second that arrive at a client whose pointer moves with each frame: what looks the same is not sent."""
    bench = pytest.importorskip("bench.sessions.worker", reason="a worker needs simplejpeg")
    async with bench.serving(folder, model="canvas", words=("--device", device), steps=steps, rate=2_000) as served:
        turn = await served.open("rate")
        for seconds in (1.0, SECONDS):
            begin, count = time.perf_counter(), 0
            while time.perf_counter() < begin + seconds:
                await turn.input(count % 97 / 97, is_click=count % CLICK_EVERY == 0)
                async with asyncio.timeout(FRAME_SECONDS_MAX):
                    await turn.frame()
                count += 1
            rate = count / (time.perf_counter() - begin)
        await turn.leave()
        return rate


def test_a_worker_serves_canvas_about_as_fast_as_a_bare_loop_computes_it(
    gpus: list[smi.Shown], torch_version: str, results: Results, tmp_path: Path
) -> None:
    rates = [(bare_rate(), asyncio.run(served_rate(tmp_path))) for _ in range(ROUNDS)]
    bare, served = (statistics.median(each) for each in zip(*rates, strict=True))
    results.add(f"canvas, {STEPS} steps, 512×384: a bare loop of step and encoding", f"{bare:.1f} frames/s")
    share = served / bare
    is_met = share >= SHARE_TARGET
    results.add("the same by a worker to its client", f"{served:.1f} frames/s, {share:.0%}", "≥ 95 %", is_met)
    assert served > 0
