"""What an upgrade drill replaces and in which order, drawn from a seed: the same seed, the same order."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum

SCHEDULER, GATEWAY = "scheduler", "gateway"


class Move(Enum):
    """What is done to one program. The value is its name in the report."""

    TO_NEWER = "replaced by the newer"
    TO_OLDER = "replaced by the older"
    REFUSED = "the older one tried on the newer store"


@dataclass(frozen=True, slots=True)
class Step:
    """One program, and what is done to it."""

    program: str
    move: Move

    def __str__(self) -> str:
        return f"{self.program}: {self.move.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeOrder:
    """A drill: its seed, how many nodes there are, and how often all but the scheduler go back and forth."""

    seed: int
    nodes: int = 2
    rounds: int = 3
    submits_per_s: float = 4.0

    @property
    def agents(self) -> list[str]:
        """The names of the nodes, each of which has an agent."""
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    def plan(self) -> list[Step]:
        """Everything becomes newer; then, each round, all but the scheduler goes back and forth.

        The scheduler does not go back: its store has been changed. Once each round that is tried.
        """
        chance = random.Random(self.seed)
        others = [*self.agents, GATEWAY]
        planned = _shuffled(chance, [Step(each, Move.TO_NEWER) for each in (SCHEDULER, *others)])
        for _ in range(self.rounds):
            back = [Step(each, Move.TO_OLDER) for each in others] + [Step(SCHEDULER, Move.REFUSED)]
            planned += _shuffled(chance, back)
            planned += _shuffled(chance, [Step(each, Move.TO_NEWER) for each in others])
        return planned


def _shuffled(chance: random.Random, steps: list[Step]) -> list[Step]:
    return chance.sample(steps, len(steps))
