"""Functions on the fleet: `fleet.map` against an array whose items start the same interpreter, by turns, in one run."""

import statistics
import sys
import time

import gpufleet
from gpufleet.api.loop_thread import close_loop_thread

from .rows import Row, Run

CALLS = 500


def measure(run: Run) -> list[Row]:
    """The rows of the group `calls`."""
    token_file = run.fleet.folder / "scheduler" / "admin.token"
    arrays: list[float] = []
    maps: list[float] = []
    try:
        with gpufleet.connect(run.fleet.address, token_file=token_file) as fleet:
            for _ in range(run.repeats):
                arrays.append(_array_rate(fleet))
                maps.append(_map_rate(fleet))
    finally:
        close_loop_thread()
    what = f"an array of {CALLS} that start Python"
    return [
        Row(what, statistics.median(arrays), "/s"),
        Row(f"fleet.map of {CALLS} calls", statistics.median(maps), "/s", statistics.median(arrays), what),
    ]


def _array_rate(fleet: gpufleet.Fleet) -> float:
    began = time.monotonic()
    job = fleet.submit([sys.executable, "-c", "pass"], array=range(CALLS), cwd="/")
    assert job.wait() == 0, job.end
    return CALLS / (time.monotonic() - began)


def _map_rate(fleet: gpufleet.Fleet) -> float:
    began = time.monotonic()
    assert sum(fleet.map(abs, range(-CALLS, 0))) == CALLS * (CALLS + 1) // 2
    return CALLS / (time.monotonic() - began)
