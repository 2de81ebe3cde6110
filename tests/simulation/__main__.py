"""`make sim SEED=7` replays one seed step by step; without a seed, ever new ones until one fails or Ctrl-C."""

from __future__ import annotations

import argparse
import itertools
import secrets
import sys

from tests.simulation.corners import CORNERS, SERVED_CORNERS, SESSION_CORNERS, cover
from tests.simulation.sessions import CROWDS, simulate_sessions
from tests.simulation.simulation import Outcome, Simulation, simulate

COVER_SEEDS = 60


def main() -> int:
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__)
    parser.add_argument("seed", nargs="?", type=int, help="replay this one")
    parser.add_argument("--count", type=int, help="so many seeds, then end")
    parser.add_argument("--sessions", choices=tuple(CROWDS), help="people, lines and turns in place of jobs")
    parser.add_argument("--cover", action="store_true", help="find few of --count seeds (60) that meet all")
    arguments = parser.parse_args()
    if arguments.cover:
        return few_seeds(arguments.sessions, arguments.count or COVER_SEEDS)
    if arguments.sessions:
        return sessions(arguments.sessions, arguments.seed, arguments.count)
    if arguments.seed is not None:
        return replay(arguments.seed)
    first = secrets.randbelow(10**9)
    for number, seed in enumerate(itertools.count(first), 1):
        outcome = simulate(seed)
        print(f"\rseed {seed}: {outcome.steps:,} steps, {outcome.commits} commits", end="", flush=True)
        if outcome.broken is not None:
            print()
            return replay(seed)
        if number == arguments.count:
            print()
            return 0
    return 0


def few_seeds(crowd: str | None, count: int) -> int:
    """Print seeds for CORNER_SEEDS or SERVED_CORNER_SEEDS of the tests."""
    if crowd is None:
        wanted, met = CORNERS, {seed: met_by(seed) for seed in range(count)}
    else:
        wanted = SESSION_CORNERS | (SERVED_CORNERS if crowd == "served" else frozenset())
        met = {seed: simulate_sessions(seed, CROWDS[crowd]).met for seed in range(count)}
    print(f"{tuple(cover(wanted, met))}; met by none: {sorted(wanted.difference(*met.values())) or 'nothing'}")
    return 0


def met_by(seed: int) -> frozenset[str]:
    """The corners of a run."""
    simulation = Simulation(seed)
    simulation.run()
    return frozenset(simulation.corners())


def sessions(name: str, seed: int | None, count: int | None) -> int:
    """The same for people: one seed step by step, or ever new ones."""
    first = secrets.randbelow(10**9) if seed is None else seed
    for number, each in enumerate(itertools.count(first), 1):
        outcome = simulate_sessions(each, CROWDS[name], is_traced=seed is not None)
        if seed is not None:
            print("\n".join(outcome.trace))
        print(
            f"seed {each}: {outcome.steps:,} steps, {outcome.commits} commits, {outcome.sessions} sessions", flush=True
        )
        if outcome.broken is not None:
            print(f"broken: {outcome.broken}\nsee its steps: make sim ARGS='--sessions {name}' SEED={each}")
            return 1
        if number == count or seed is not None:
            break
    return 0


def replay(seed: int) -> int:
    """Every step of a run, and the story of the job that it failed on."""
    outcome = simulate(seed, is_traced=True)
    print("\n".join(outcome.trace))
    print(
        f"\nseed {seed}: {outcome.steps:,} steps in {outcome.seconds:.0f} simulated seconds, {outcome.jobs} jobs ended"
    )
    if outcome.broken is None:
        print("every rule held")
        return 0
    tell(outcome)
    return 1


def tell(outcome: Outcome) -> None:
    broken = outcome.broken
    assert broken is not None
    print(f"broken: {broken}")
    if broken.job is not None:
        print(f"\nthe story of job {broken.job}:")
        print("\n".join(outcome.story))
        print("\nand what was seen of it:")
        marks = (f" {broken.job}.", f" {broken.job}/", f"job {broken.job}")
        print("\n".join(line for line in outcome.trace if any(mark in line for mark in marks)))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
