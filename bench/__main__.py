"""`make bench`: measure, print a table, write JSON."""

import argparse
import asyncio
import json
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from . import floors, measures
from .fleet import Fleet, fleet

ROOT = Path(__file__).parent
IN_FLIGHT = 100
IDLE_SECONDS = 10.0
CPUS = 16


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


def percentile(values: list[float], share: float) -> float:
    """The value below which this share of the values lies."""
    return statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]


def build_stamp(folder: Path) -> Path:
    """Compile the program that prints the time of its first instruction."""
    program = folder / "stamp"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        sys.exit("make bench needs a C compiler (Debian, Ubuntu: apt-get install gcc libc6-dev)")
    subprocess.run([compiler, "-O2", "-o", program, ROOT / "stamp.c"], check=True)
    return program


def measure(running: Fleet, stamp: Path, rounds: int) -> list[Row]:
    """Every figure, floors first."""
    echo = floors.median(asyncio.run(floors.echo_ms(rounds)))
    commit = floors.median(floors.commit_ms(rounds))
    hop = floors.median(asyncio.run(floors.hop_ms(rounds)))
    spawn = floors.median(floors.spawn_ms([str(stamp)], rounds))
    total = echo + commit + hop + spawn
    rows = [
        Row("floor: grpc.aio echo p50", echo, "ms"),
        Row("floor: fsynced commit p50", commit, "ms"),
        Row("floor: hop of an open stream p50", hop, "ms"),
        Row("floor: posix_spawn to first instruction p50", spawn, "ms"),
    ]
    starts = asyncio.run(measures.first_instruction_ms(running, stamp, rounds))
    rows += [
        Row("submit to first instruction p50", statistics.median(starts), "ms", total, "sum of floors"),
        Row("submit to first instruction p99", percentile(starts, 0.99), "ms", total, "sum of floors"),
    ]
    echoes = asyncio.run(floors.echoes_per_second(1_000, IN_FLIGHT))
    submits = asyncio.run(measures.submits_per_second(running, 1_000, IN_FLIGHT))
    rows.append(Row("1,000 submits, 100 in flight", submits, "/s", echoes, "echo, 100 in flight"))
    spawns = floors.spawns_per_second(["/bin/true"], 1_000, CPUS)
    jobs = asyncio.run(measures.jobs_per_second(running, 1_000))
    rows.append(Row("1,000 × /bin/true to done", jobs, "/s", spawns, "bare posix_spawn"))
    lines = asyncio.run(measures.line_ms(running))
    rows += [
        Row("line to attached client p50", statistics.median(lines), "ms"),
        Row("line to attached client p99", percentile(lines, 0.99), "ms"),
    ]
    return rows + _standing(running)


def _standing(running: Fleet) -> list[Row]:
    """What it costs to do nothing, and what a look at the queue costs."""
    names = ("scheduler", "agent", "keeper")
    pids = [running.scheduler_pid, running.agent_pid, running.keeper_pid()]
    rows: list[Row] = []
    for name, (share, memory) in zip(names, measures.idle(pids, IDLE_SECONDS), strict=True):
        rows += [Row(f"idle {name}", share, "% of a core"), Row(f"memory {name}", memory, "MB")]
    gpuctl = [sys.executable, "-P", "-m", "gpufleet.cli", "queue"]
    environment = {"GPUCTL_SCHEDULER": running.address, "GPUCTL_TOKEN": running.token}
    imports = measures.wall_ms([sys.executable, "-c", "import grpc, typer"], {}, 11)
    queue = measures.wall_ms(gpuctl, environment, 11)
    rows.append(Row("gpuctl queue", queue, "ms", imports, 'python -c "import grpc, typer"'))
    return rows


def table(rows: list[Row]) -> str:
    """The rows for people."""
    lines = [f"{'figure':<46}{'value':>10}  {'unit':<12}{'floor':>10}{'ratio':>8}"]
    for row in rows:
        floor = "" if row.floor is None else f"{row.floor:,.2f}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        lines.append(f"{row.name:<46}{row.figure:>10,.2f}  {row.unit:<12}{floor:>10}{ratio:>8}")
    return "\n".join(lines)


def main() -> None:
    """Measure once and report."""
    flags = argparse.ArgumentParser(prog="make bench", description=__doc__)
    flags.add_argument("--rounds", type=int, default=200, help="repetitions of each latency (default 200)")
    flags.add_argument("--output", type=Path, default=ROOT / "results" / "latest.json", help="where the JSON goes")
    given = flags.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as folder, fleet(cpus=CPUS) as running:
        rows = measure(running, build_stamp(Path(folder)), given.rounds)
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
