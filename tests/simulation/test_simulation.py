"""The whole fleet in one thread: the scheduler's real loop and core, the agents' and keepers' real decisions.

A failure prints its seed and the story of the job; `make sim SEED=…` replays it with every step.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.simulation.bugs import BUGS, Plant
from tests.simulation.corners import CORNERS
from tests.simulation.sessions import SERVED, simulate_sessions
from tests.simulation.simulation import Outcome, Simulation, simulate

SEEDS = 60
BATCH = 5

STEPS_MIN = 2_000

CORNER_SEEDS = (56, 21, 11, 22, 2, 29)
"""The seeds of `make test`: few that came to every corner together when this was written. Others follow until all are
met; `make sim ARGS=--cover` finds few again."""

CORNER_SEEDS_MAX = 60
"""Runs beside them that may be had until every corner was met."""

SEEDS_TO_FIND_A_BUG = 120
"""Among so many seeds at least one must meet each planted bug."""

SEEDS_BY_DAY = 6
"""So many of them `make test` tries, from the one on that is known to meet it (`BUGS`)."""

SAME_SEEDS = (2, 4)
"""Runs with served models in which the scheduler dies with many calls open."""

REPOSITORY = Path(__file__).parents[2]


def told(outcome: Outcome) -> str:
    lines = [f"seed {outcome.seed}: {outcome.broken}", f"replay it with: make sim SEED={outcome.seed}"]
    return "\n".join([*lines, *outcome.story])


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_every_rule_holds_and_every_job_comes_to_its_end(first: int) -> None:
    for seed in range(first, first + BATCH):
        corners_of_a_run(seed)


def corners_of_a_run(seed: int) -> frozenset[str]:
    """The corners that a run came to, in which every rule held."""
    simulation = Simulation(seed)
    outcome = simulation.run()
    assert outcome.broken is None, told(outcome)
    assert "AttemptVoided REFUSED" not in simulation.corners(), f"seed {seed}: an inventory says why it was refused"
    assert outcome.jobs == outcome.asked, f"seed {seed}"
    assert outcome.steps >= STEPS_MIN, f"seed {seed} is too quiet"
    return frozenset(simulation.corners())


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found_from_its_seed_on(plant: Plant) -> None:
    seeds = range(BUGS[plant], BUGS[plant] + SEEDS_BY_DAY)
    assert finds(plant, seeds), f"give it a seed that meets it, in BUGS: {seeds} do not show that {plant.__doc__}"


@pytest.mark.nightly
@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found_by_other_seeds(plant: Plant) -> None:
    seeds = range(BUGS[plant] + 1, BUGS[plant] + SEEDS_TO_FIND_A_BUG)
    assert finds(plant, seeds), f"{seeds} do not show that {plant.__doc__}"


def finds(plant: Plant, seeds: Iterable[int]) -> bool:
    """Whether the simulation notices the bug with one of these seeds."""
    for seed in seeds:
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            if simulate(seed).broken is not None:
                return True
    return False


def test_the_troubles_of_a_few_runs_reach_every_corner() -> None:
    """A simulation that meets nothing proves nothing."""
    missing = CORNERS
    for seed in dict.fromkeys((*CORNER_SEEDS, *range(CORNER_SEEDS_MAX))):
        missing -= corners_of_a_run(seed)
        if not missing:
            break
    assert not missing, f"no run came to {sorted(missing)}"


def test_a_seed_gives_the_same_run_in_every_process() -> None:
    """Also behind another run, which leaves the memory in another order."""
    script = (
        "from tests.simulation.simulation import simulate; from tests.simulation.sessions import *;"
        f"print(simulate(7).digest, *(simulate_sessions(seed, SERVED).digest for seed in {SAME_SEEDS}))"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'gen'}"},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    here = [simulate(7).digest, *(simulate_sessions(seed, SERVED).digest for seed in SAME_SEEDS)]
    assert digests == {" ".join(here) + "\n"}
