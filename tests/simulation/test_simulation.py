"""The whole fleet in one thread: the scheduler's real loop and core, the agents' and keepers' real decisions.

A failure prints its seed and the story of the job; `make sim SEED=…` replays it with every step.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.bugs import BUGS, Plant
from tests.simulation.simulation import Outcome, Simulation, simulate

SEEDS = 300
BATCH = 20
STEPS_MIN = 2_000

SEEDS_TO_FIND_A_BUG = 120
"""Among so many seeds at least one must meet each planted bug; most meet it at once."""

REPOSITORY = Path(__file__).parents[2]


def told(outcome: Outcome) -> str:
    lines = [f"seed {outcome.seed}: {outcome.broken}", f"replay it with: make sim SEED={outcome.seed}"]
    return "\n".join([*lines, *outcome.story])


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_every_rule_holds_and_every_job_comes_to_its_end(first: int) -> None:
    for seed in range(first, first + BATCH):
        outcome = simulate(seed)
        assert outcome.broken is None, told(outcome)
        assert outcome.jobs == outcome.asked, f"seed {seed}"
        assert outcome.steps >= STEPS_MIN, f"seed {seed} is too quiet"


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant) -> None:
    for seed in range(SEEDS_TO_FIND_A_BUG):
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            if simulate(seed).broken is not None:
                return
    pytest.fail(f"{SEEDS_TO_FIND_A_BUG} seeds do not show that {plant.__doc__}")


def test_the_troubles_of_a_few_runs_reach_every_corner() -> None:
    """A simulation that meets nothing proves nothing."""
    seen: set[str] = set()
    for seed in range(60):
        simulation = Simulation(seed)
        assert simulation.run().broken is None
        seen |= simulation.corners()
    assert "AttemptVoided REFUSED" not in seen, "an inventory says why a rank was refused"
    missing = CORNERS - seen
    assert not missing, f"no run came to {sorted(missing)}"


CORNERS = frozenset(
    {
        "AttemptEnded EXIT_UNKNOWN",
        "AttemptEnded NODE_LOST",
        "AttemptEnded PREEMPTED",
        "AttemptEnded REQUEUED",
        "AttemptReady",
        "AttemptUnreachable",
        "AttemptVoided DEVICE_BUSY",
        "AttemptVoided PREPARE_TIMED_OUT",
        "DeviceMarked",
        "JobFinished CANCELLED",
        "JobFinished COMMAND_NOT_FOUND",
        "JobFinished CWD_MISSING",
        "JobFinished DEPENDENCY_FAILED",
        "JobFinished EXITED",
        "JobFinished EXIT_UNKNOWN",
        "JobFinished NODE_LOST",
        "JobFinished NO_CAPACITY",
        "JobFinished TIME_LIMIT",
        "JobReleased",
        "JobWarned DEVICES_IDLE",
        "JobWarned DEVICE_TROUBLE",
        "JobWarned THROTTLED",
        "JobWarned TIME_LIMIT_NEAR",
        "NodeDrained",
        "NodeForgotten",
        "NodeLost",
        "NodeReturned",
        "output incomplete",
        "a command that came too late",
        "a commit whose answer was lost",
        "a request that was asked again",
        "a scheduler that was away",
        "a fence that ended an attempt",
        "a wall clock that stepped",
    }
)


def test_a_seed_gives_the_same_run_in_every_process() -> None:
    script = "from tests.simulation.simulation import simulate; print(simulate(7).digest)"
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
    assert digests == {f"{simulate(7).digest}\n"}
