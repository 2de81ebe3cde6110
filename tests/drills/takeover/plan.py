"""What goes wrong in a takeover drill, drawn from a seed: the same seed, the same faults in the same order."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum


class Trouble(Enum):
    """What happens to the leader, to its store, or between them and others. The value is its name in the report."""

    KILLED = "leader killed (SIGKILL)"
    PAUSED = "leader paused (SIGSTOP), continued later"
    STORE_KILLED = "PostgreSQL killed (SIGKILL), and away"
    STORE_LOST = "leader and store: packets of one way lost"
    CLIENTS_LOST = "leader and clients: packets of one way lost"
    STANDBY_LOST = "leader and standby: packets of one way lost"


ONE_WAY = (Trouble.STORE_LOST, Trouble.CLIENTS_LOST, Trouble.STANDBY_LOST)

PAUSE_S = (4.0, 8.0)
"""How long a leader is paused beyond the takeover."""

LOSS_S = (5.0, 9.0)
"""How long packets are lost between the leader and who is not its store."""


@dataclass(frozen=True, slots=True)
class PlannedTrouble:
    """One fault: how long it lasts, where that is not given by what follows, and which way packets are lost."""

    kind: Trouble
    seconds: float = 0.0
    is_from_leader: bool = False

    def __str__(self) -> str:
        way = ""
        if self.kind in ONE_WAY:
            way = ", those that it sends" if self.is_from_leader else ", those to it"
        return f"{self.kind.value}{way}{f', {self.seconds:.1f} s' if self.seconds else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeoverOrder:
    """A drill: its seed, and how many faults there are of each kind."""

    seed: int
    kills: int = 20
    pauses: int = 20
    store_kills: int = 5
    losses: int = 2
    """Of each of the three ways."""
    store_away_s: float = 30.0
    submits_per_s: float = 10.0
    calm_s: float = 10.0
    """How long it is looked at first what both schedulers cost while nothing goes wrong."""

    def plan(self) -> list[PlannedTrouble]:
        """All faults in their order."""
        chance = random.Random(self.seed)
        planned = [PlannedTrouble(Trouble.KILLED) for _ in range(self.kills)]
        planned += [PlannedTrouble(Trouble.PAUSED, chance.uniform(*PAUSE_S)) for _ in range(self.pauses)]
        planned += [PlannedTrouble(Trouble.STORE_KILLED, self.store_away_s) for _ in range(self.store_kills)]
        for number in range(self.losses):
            for kind in ONE_WAY:
                seconds = 0.0 if kind is Trouble.STORE_LOST else chance.uniform(*LOSS_S)
                planned.append(PlannedTrouble(kind, seconds, is_from_leader=number % 2 == 0))
        chance.shuffle(planned)
        return planned
