"""What a measurement is: a row with the floor of the same run; and what the groups of rows share."""

import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from .fleet import Fleet, fleet

CPUS = 16
"""What the node of the running fleet offers, whatever the machine has."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure with the floor of the same run."""

    name: str
    figure: float
    unit: str
    floor: float | None = None
    floor_name: str = ""

    @property
    def ratio(self) -> float | None:
        """The figure as a multiple of its floor."""
        return None if not self.floor else self.figure / self.floor


@dataclass
class Run:
    """One call of `make bench`. A fleet is started when a group first asks for it, and stopped at the end.

    `rounds` is how often a latency is taken, `jobs` how many jobs a flood has, `repeats` how often a rate is measured,
    `queued` how long a long queue is, `agents` how many nodes a large fleet has.
    """

    rounds: int
    jobs: int
    repeats: int
    queued: int
    agents: int
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *problem: object) -> None:
        self._stack.close()

    @cached_property
    def fleet(self) -> Fleet:
        """A scheduler and a node of CPUS CPUs and a virtual GPU, as a user starts them."""
        return self._stack.enter_context(fleet(cpus=CPUS))

    @cached_property
    def folder(self) -> Path:
        """A folder for the length of the run."""
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="gpufleet-bench-")))


def percentile(values: list[float], share: float) -> float:
    """The value below which this share of the values lies."""
    return statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]


def middle(rows: list[Row]) -> Row:
    """Of several measurements of one figure, the one whose ratio to its floor is the median (the upper one of two)."""
    return sorted(rows, key=lambda row: row.ratio or 0.0)[len(rows) // 2]


def table(rows: list[Row]) -> str:
    """The rows for people."""
    lines = [f"{'figure':<66}{'value':>10}  {'unit':<14}{'floor':>10}{'ratio':>8}"]
    for row in rows:
        floor = "" if row.floor is None else f"{row.floor:,.2f}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        lines.append(f"{row.name:<66}{row.figure:>10,.2f}  {row.unit:<14}{floor:>10}{ratio:>8}")
    return "\n".join(lines)
