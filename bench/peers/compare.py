"""The group `peers`: each figure of gpufleet beside the same of each program that is here, in bursts by turns.

Unchanged code drifts by 15 % within minutes on a busy machine; bursts of some seconds in random order have all of them
drift alike. A row of gpufleet has the peer's figure of the same run as its floor.
"""

import random
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

from ..path import build_stamp
from ..rows import CPUS, Row, Run
from .gpufleet import Gpufleet
from .hyperqueue import hyperqueue
from .peer import NotHere, Peer
from .slurm import slurm
from .task_spooler import task_spooler

PEERS: dict[str, Callable[[Path, int], AbstractContextManager[Peer]]] = {
    "hyperqueue": hyperqueue,
    "slurm": slurm,
    "task-spooler": task_spooler,
}
TURNS = 3
"""Bursts of each program for each figure, and one before that is not counted."""
STARTS = 12
"""Jobs of a burst, one after the other."""
FLOOD_JOBS_MAX = 1_000
"""Jobs of a burst of a flood; `--jobs` asks for fewer. Programs that are asked by a command get a part of them."""
SLOW_SHARE = {"Slurm": 20, "task-spooler": 5}
SUBMITS = 200
SLOW_SUBMITS = 40


@dataclass(frozen=True, slots=True)
class Figure:
    """What one burst measures of a program."""

    name: str
    unit: str
    burst: Callable[[Peer], float]


def measure(run: Run) -> list[Row]:
    """The rows of the group `peers`."""
    stamp = build_stamp(run.folder)
    jobs = min(run.jobs, FLOOD_JOBS_MAX)

    def start(pause_s: float) -> Callable[[Peer], float]:
        return lambda peer: statistics.median(peer.starts_ms(stamp, STARTS, pause_s))

    figures = (
        Figure("ask to first instruction, 200 ms apart", "ms", start(0.2)),
        Figure("ask to first instruction, 30 ms apart", "ms", start(0.03)),
        Figure(
            f"{jobs:,} × /bin/true to done",
            "/s",
            lambda peer: peer.jobs_per_second(max(CPUS, jobs // SLOW_SHARE.get(peer.name, 1))),
        ),
        Figure(
            "asked for one by one",
            "/s",
            lambda peer: peer.submits_per_second(SLOW_SUBMITS if peer.name in SLOW_SHARE else SUBMITS),
        ),
    )
    with ExitStack() as stack:
        own = Gpufleet(run.fleet)
        peers: list[Peer] = []
        for name, started in PEERS.items():
            try:
                peers.append(stack.enter_context(started(run.folder / name, CPUS)))
            except NotHere as missing:
                print(f"left out: {missing}", file=sys.stderr, flush=True)
        return [row for figure in figures for row in _rows(figure, own, peers)]


def _rows(figure: Figure, own: Peer, peers: Sequence[Peer]) -> list[Row]:
    """One figure, taken of all of them by turns."""
    turns: dict[str, list[float]] = {peer.name: [] for peer in (own, *peers)}
    for turn in range(TURNS + 1):
        for peer in random.sample([own, *peers], 1 + len(peers)):
            value = figure.burst(peer)
            if turn:
                turns[peer.name].append(value)
    middle = {name: statistics.median(values) for name, values in turns.items()}
    return [
        *(Row(f"{figure.name}: {peer.name}", middle[peer.name], figure.unit) for peer in peers),
        *(
            Row(f"{figure.name}: gpufleet, by {peer.name}", middle[own.name], figure.unit, middle[peer.name], peer.name)
            for peer in peers
        ),
    ]
