"""`make bench`: measure, print a table, write JSON."""

import argparse
import json
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from . import (
    calls,
    commands,
    files,
    history,
    isolation,
    live,
    output,
    passes,
    path,
    sampling,
    scale,
    scrape,
    serving,
    standing,
)
from .peers import compare
from .rows import Row, Run, table
from .sessions import carriers, crowd, frames, worker

ROOT = Path(__file__).parent

GROUPS: dict[str, Callable[[Run], list[Row]]] = {
    "path": path.measure,
    "peers": compare.measure,
    "isolation": isolation.measure,
    "containers": isolation.measure_containers,
    "output": output.measure,
    "files": files.measure,
    "standing": standing.measure,
    "commands": commands.measure,
    "sampling": sampling.measure,
    "history": history.measure,
    "live": live.measure,
    "passes": passes.measure,
    "scale": scale.measure,
    "calls": calls.measure,
    "scrape": scrape.measure,
    "worker": worker.measure,
    "frames": frames.measure,
    "carriers": carriers.measure,
    "sessions": crowd.measure,
    "serving": serving.measure,
}
"""What can be measured by itself, in the order in which all of it is."""


def main() -> None:
    """Measure once and report."""
    flags = argparse.ArgumentParser(prog="make bench", description=__doc__)
    flags.add_argument("--only", action="append", choices=sorted(GROUPS), help="this group of rows; may be repeated")
    flags.add_argument("--rounds", type=int, default=200, help="repetitions of each latency (default 200)")
    flags.add_argument("--jobs", type=int, default=10_000, help="jobs of a flood (default 10,000)")
    flags.add_argument("--repeats", type=int, default=3, help="measurements of each rate (default 3)")
    flags.add_argument("--queued", type=int, default=100_000, help="jobs of a long queue (default 100,000)")
    flags.add_argument("--agents", type=int, default=1_000, help="simulated agents and nodes (default 1,000)")
    flags.add_argument("--output", type=Path, default=ROOT / "results" / "latest.json", help="where the JSON goes")
    given = flags.parse_args()
    rows: list[Row] = []
    with Run(
        rounds=given.rounds, jobs=given.jobs, repeats=given.repeats, queued=given.queued, agents=given.agents
    ) as run:
        for name, measure in GROUPS.items():
            if not given.only or name in given.only:
                print(f"measuring {name} …", file=sys.stderr, flush=True)
                rows += measure(run)
    print(table(rows))
    given.output.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "rows": [{**asdict(row), "ratio": row.ratio} for row in rows],
    }
    given.output.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
