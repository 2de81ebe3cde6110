"""What goes wrong in a drill and when: a pure function of the seed, within what the guarantees allow for.

The guarantee (no two live attempts of a job) holds while a node's keeper or its agent gets CPU time. So a plan never
    - stops a keeper for longer than half of the margin by which a node counts the fence shorter than the scheduler;
    - takes an agent away for long around the death of its keeper: nobody would be left to end the processes;
    - takes both away while the node is silent for another reason, too: its fence may pass before one is back.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

FENCE_SECONDS = 30.0
"""The shortest fence that the scheduler takes; a drill uses it so that fences pass in minutes."""

MARGIN_SECONDS = 5.0
"""By so much a node counts the fence shorter than the scheduler does (FENCE_MARGIN_US_MIN of node_agent.core.fence)."""

KEEPER_PAUSE_SECONDS_MAX = MARGIN_SECONDS / 2
"""A keeper that stands still ends nothing; afterwards it still is in time."""

AGENT_AWAY_SECONDS_MAX = 6.0
"""An agent that is away around its keeper's death is back after this."""

BEFORE_SECONDS = 4.0
"""The fleet gets its first jobs in peace."""

APART_SECONDS = 3.0
"""Faults of one process or link follow each other at least this far apart: it takes that long to be back."""

SECONDS_PER_FAULT = 5.0
"""On average a fault begins this often."""

TOGETHER_SHARE, TOGETHER_SECONDS = 0.25, 0.4
"""So many faults come together with another one."""

TRIES_MAX = 40
"""A fault that has no room is drawn so many times, then left out."""

LONG = FENCE_SECONDS + 6.0
"""Longer than the fence: what is silent for this long is replaced."""


class Kind(Enum):
    """What is done."""

    KILL = "kill -9"
    PAUSE = "SIGSTOP"
    CUT = "cut"
    DEAF = "hears nothing"
    MUTE = "is not heard"
    LOSS = "loses packets"
    RATE = "slow line"
    DELAY = "long line"


SILENT = frozenset({Kind.CUT, Kind.DEAF, Kind.MUTE})
"""Kinds that make a node silent, or deaf to the answers that move its fence."""

LINK_KINDS = frozenset({*SILENT, Kind.LOSS, Kind.RATE, Kind.DELAY})
SCHEDULER, PEOPLE, SOMEWHERE = "scheduler", "people", "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault: it begins `at` seconds from the start of the drill, and is over after `seconds`.

    `target` is "scheduler", "agent NODE", "keeper NODE" or "link NODE"; people have a link, too. `amount` is the
    share of packets lost, kilobits a second, or the milliseconds of one way. A killed keeper is not started again by
    the drill: the next one is its agent's to start.
    """

    at: float
    kind: Kind
    target: str
    seconds: float = 0.0
    amount: float = 0.0

    @property
    def end(self) -> float:
        """When it is over."""
        return self.at + self.seconds

    @property
    def node(self) -> str:
        """The machine that it happens to; empty for the scheduler."""
        return self.target.partition(" ")[2]

    @property
    def part(self) -> str:
        """What of the machine: scheduler, agent, keeper or link."""
        return self.target.partition(" ")[0]

    def __str__(self) -> str:
        what = f"{self.at:7.1f}s  {self.target}: {self.kind.value}"
        match self.kind:
            case Kind.LOSS:
                what += f" {self.amount:.0%}"
            case Kind.RATE:
                what += f" {self.amount:.0f} kbit/s"
            case Kind.DELAY:
                what += f" {self.amount:.0f} ms each way"
            case _:
                pass
        return what + (f" for {self.seconds:.1f} s" if self.seconds else "")


def plan(
    seed: int, nodes: Sequence[str], seconds: float, seconds_per_fault: float = SECONDS_PER_FAULT
) -> tuple[Fault, ...]:
    """The faults of a seed, in the order of their beginnings; the same for the same arguments, for ever.

    Each kind comes at least once where it has room, silences longer than the fence among them.
    """
    rng = random.Random(f"drill {seed}")
    chosen: list[Fault] = []
    musts = _musts(rng)
    for make in [*musts, *[None] * max(0, round(seconds / seconds_per_fault) - len(musts))]:
        for _ in range(TRIES_MAX):
            drawn = make if make is not None else _any(rng, nodes)
            latest = seconds - drawn.seconds
            if latest <= BEFORE_SECONDS:
                continue
            target = drawn.target.replace(SOMEWHERE, rng.choice(nodes))
            at = rng.uniform(BEFORE_SECONDS, latest)
            if chosen and rng.random() < TOGETHER_SHARE:
                at = min(latest, rng.choice(chosen).at + rng.uniform(0.0, TOGETHER_SECONDS))
            fault = replace(drawn, target=target, at=round(at, 1))
            if has_room(fault, chosen) and outside_the_guarantee([*chosen, fault]) is None:
                chosen.append(fault)
                break
    return tuple(sorted(chosen, key=lambda each: (each.at, each.target)))


def has_room(fault: Fault, others: Iterable[Fault]) -> bool:
    """Whether nothing else is wrong with the same process or link at the time."""
    return not any(_overlap(fault, other, APART_SECONDS) for other in others if other.target == fault.target)


def outside_the_guarantee(faults: Sequence[Fault]) -> str | None:
    """Why these faults together are more than what is promised to be borne; None when they are not."""
    for keeper in (each for each in faults if each.part == "keeper"):
        if keeper.kind is Kind.PAUSE and keeper.seconds > KEEPER_PAUSE_SECONDS_MAX:
            return f"{keeper}: a keeper that stands still for so long ends nothing when the fence passes"
        if keeper.kind is not Kind.KILL:
            continue
        near = [
            each
            for each in faults
            if each.target == f"agent {keeper.node}" and _overlap(keeper, each, MARGIN_SECONDS + APART_SECONDS)
        ]
        for agent in near:
            if agent.seconds > AGENT_AWAY_SECONDS_MAX:
                return f"{keeper} beside {agent}: nobody ends its processes before the fence"
            for link in faults:
                is_silence = link.target == f"link {keeper.node}" and link.kind in (*SILENT, Kind.LOSS)
                if is_silence and _overlap(agent, link, FENCE_SECONDS):
                    return f"{keeper} beside {agent} and {link}: the fence may pass before the agent is back"
    return None


def _overlap(one: Fault, other: Fault, apart: float) -> bool:
    return one.at < other.end + apart and other.at < one.end + apart


def _musts(rng: random.Random) -> list[Fault]:
    """One of each; the long ones first, as they need most room."""
    found = [
        Fault(at=0, kind=Kind.CUT, target=f"link {SOMEWHERE}", seconds=LONG),
        Fault(at=0, kind=Kind.PAUSE, target=f"agent {SOMEWHERE}", seconds=LONG),
        Fault(at=0, kind=Kind.MUTE, target=f"link {SOMEWHERE}", seconds=rng.choice((8.0, LONG))),
        Fault(at=0, kind=Kind.DEAF, target=f"link {SOMEWHERE}", seconds=rng.choice((8.0, LONG))),
    ]
    found += [_impaired(rng, kind, SOMEWHERE) for kind in (Kind.LOSS, Kind.RATE, Kind.DELAY)]
    return [
        *found,
        Fault(at=0, kind=Kind.PAUSE, target=SCHEDULER, seconds=rng.choice((4.0, 10.0))),
        Fault(at=0, kind=Kind.KILL, target=SCHEDULER, seconds=rng.choice((0.2, 8.0))),
        Fault(at=0, kind=Kind.KILL, target=SCHEDULER, seconds=0.2),
        Fault(at=0, kind=Kind.PAUSE, target=f"keeper {SOMEWHERE}", seconds=KEEPER_PAUSE_SECONDS_MAX),
        Fault(at=0, kind=Kind.KILL, target=f"agent {SOMEWHERE}", seconds=rng.choice((0.0, 5.0))),
        Fault(at=0, kind=Kind.KILL, target=f"keeper {SOMEWHERE}"),
        Fault(at=0, kind=Kind.CUT, target=f"link {PEOPLE}", seconds=5.0),
    ]


def _any(rng: random.Random, nodes: Sequence[str]) -> Fault:
    part = rng.choices((SCHEDULER, "agent", "keeper", "link"), (3, 5, 2, 7))[0]
    node = rng.choice(nodes)
    match part:
        case "scheduler":
            kind = rng.choice((Kind.KILL, Kind.KILL, Kind.PAUSE))
            return Fault(at=0, kind=kind, target=SCHEDULER, seconds=rng.choice((0.1, 1.0, 4.0, 12.0)))
        case "agent":
            kind = rng.choice((Kind.KILL, Kind.KILL, Kind.PAUSE))
            seconds = rng.choice((0.0 if kind is Kind.KILL else 1.0, 0.5, 2.0, 5.0, 12.0, LONG))
            return Fault(at=0, kind=kind, target=f"agent {node}", seconds=seconds)
        case "keeper":
            if rng.random() < 0.5:
                return Fault(at=0, kind=Kind.KILL, target=f"keeper {node}")
            seconds = round(rng.uniform(0.2, KEEPER_PAUSE_SECONDS_MAX), 1)
            return Fault(at=0, kind=Kind.PAUSE, target=f"keeper {node}", seconds=seconds)
        case _:
            machine = rng.choice((*nodes, PEOPLE))
            kind = rng.choice(sorted(LINK_KINDS, key=lambda each: each.value))
            if kind in SILENT:
                seconds = rng.choice((0.5, 2.0, 5.0, 9.0, 15.0, LONG if machine != PEOPLE else 15.0))
                return Fault(at=0, kind=kind, target=f"link {machine}", seconds=seconds)
            return _impaired(rng, kind, machine)


def _impaired(rng: random.Random, kind: Kind, machine: str) -> Fault:
    """A link that works, badly."""
    amounts = {Kind.LOSS: (0.02, 0.1, 0.3), Kind.RATE: (256.0, 1000.0, 8000.0), Kind.DELAY: (20.0, 150.0, 600.0)}
    return Fault(
        at=0,
        kind=kind,
        target=f"link {machine}",
        seconds=rng.choice((5.0, 12.0, 20.0)),
        amount=rng.choice(amounts[kind]),
    )
