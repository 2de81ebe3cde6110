"""What was measured on a GPU, as a table to commit: bench/results/gpu-NAME.md."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `target` says what it should be, and `is_met` whether it is; None where there is no target."""

    name: str
    figure: str
    target: str = ""
    is_met: bool | None = None


@dataclass
class Results:
    """The rows of one run. `facts` are of the machine, in the order in which they are shown."""

    gpu: str
    facts: Mapping[str, str]
    rows: list[Row] = field(default_factory=list)

    def add(self, name: str, figure: str, target: str = "", is_met: bool | None = None) -> None:
        """One more row."""
        self.rows.append(Row(name, figure, target, is_met))

    def write(self, folder: Path) -> Path:
        """Write the table, in place of an earlier one of the same GPU; answers where."""
        file = folder / f"gpu-{slug(self.gpu)}.md"
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(self.text(), encoding="utf-8")
        return file

    def text(self) -> str:
        """The page."""
        facts = {**self.facts, "Python": platform.python_version(), "kernel": platform.release()}
        head = [f"# {self.gpu}", "", f"Measured by `make gpu-test` on {date.today():%Y-%m-%d}.", ""]
        told = [f"* {name}: {value}" for name, value in facts.items()]
        table = ["", "| figure | value | target |", "|---|---|---|"]
        table += [f"| {row.name} | {row.figure} | {_judged(row)} |" for row in self.rows]
        return "\n".join([*head, *told, *table, ""])


def _judged(row: Row) -> str:
    if row.is_met is None:
        return row.target or "–"
    return f"{row.target}: {'met' if row.is_met else '**missed**'}"


def slug(name: str) -> str:
    """`nvidia-h200`: a name as a file's."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
