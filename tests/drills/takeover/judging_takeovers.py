"""What a takeover drill shows: how long it took until a submit was acknowledged, and whether anything was lost."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.drills.takeover.plan import Trouble

PROBLEMS_SHOWN = 20


@dataclass(slots=True)
class Evidence:
    """What the customers met, and what the jobs did."""

    acknowledged: dict[int, float] = field(default_factory=dict)
    """When the submit of each job was acknowledged."""
    began: dict[int, float] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    followed: dict[int, tuple[bool, int, str]] = field(default_factory=dict)
    """Of each job that was followed to its end: whether all was seen, how many bytes, and how it ended."""
    lost: dict[int, str] = field(default_factory=dict)
    runs: Counter[int] = field(default_factory=Counter)


def read_evidence(events: Path, runs: Path) -> Evidence:
    """What there is by now; a line that is being written is left for the next look."""
    found = Evidence()
    for line in events.read_text().splitlines(keepends=True) if events.exists() else ():
        if not line.endswith("\n"):
            continue
        said = json.loads(line)
        if "acknowledged" in said:
            found.acknowledged[said["job"]] = said["acknowledged"]
            found.began[said["job"]] = said["began"]
        elif "refused" in said:
            found.refused[said["refused"]] += 1
        elif "followed" in said:
            found.followed[said["followed"]] = (said["is_whole"], said["bytes"], said["state"])
        else:
            found.lost[said["lost"]] = said["why"]
    for line in runs.read_text().splitlines() if runs.exists() else ():
        found.runs[int(line.partition(".")[0])] += 1
    return found


def served_after(evidence: Evidence, at: float) -> float | None:
    """Seconds from then until a submit was acknowledged that began later; None where there is none yet."""
    after = [acked for job, acked in evidence.acknowledged.items() if evidence.began[job] >= at]
    return min(after) - at if after else None


def problems_of(evidence: Evidence) -> list[str]:
    """Everything that must not be: a lost job, one that ran twice, a byte that was not seen."""
    found: list[str] = []
    for job in evidence.acknowledged:
        if evidence.runs[job] == 0:
            found.append(f"job {job} was acknowledged and never ran")
        if job in evidence.lost:
            found.append(f"job {job} was lost by who followed it: {evidence.lost[job]}")
        elif job not in evidence.followed:
            found.append(f"job {job} was never seen to end")
        else:
            is_whole, size_bytes, state = evidence.followed[job]
            if not is_whole:
                found.append(f"of job {job} other bytes were seen than it wrote ({size_bytes})")
            if state != "succeeded":
                found.append(f"job {job} ended as {state}")
    found += [f"job {job} ran {count} times" for job, count in evidence.runs.items() if count > 1]
    return found


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of all does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 100) * len(ordered) // 100) - 1)]


def table_of(measured: Sequence[tuple[Trouble, float]]) -> list[str]:
    """A row for each kind of fault: how often, and the seconds until a submit was acknowledged."""
    of_kinds: dict[Trouble, list[float]] = defaultdict(list)
    for kind, seconds in measured:
        of_kinds[kind].append(seconds)
    rows = ["| fault | times | p50 | p95 | max |", "|---|---|---|---|---|"]
    for kind in Trouble:
        if seconds_of := of_kinds.get(kind):
            figures = [quantile(seconds_of, 0.5), quantile(seconds_of, 0.95), max(seconds_of)]
            rows.append(f"| {kind.value} | {len(seconds_of)} | {' | '.join(f'{each:.2f} s' for each in figures)} |")
    return rows
