"""The way of a job: from its submit to its first instruction, to its end, and from its output to who follows it."""

import asyncio
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from node_agent.keeper.processes import children

from . import floors, measures
from .fleet import Fleet
from .rows import CPUS, Row, Run, middle, percentile

STAMP_SOURCE = Path(__file__).with_name("stamp.c")
IN_FLIGHT = 100
SUBMITS = 1_000


def measure(run: Run) -> list[Row]:
    """The rows of the group `path`."""
    return [*_one_by_one(run), *_submits(run), *_flood(run), *_lines(run)]


def _one_by_one(run: Run) -> list[Row]:
    """A job on an idle fleet, beside what the machine asks for the same steps."""
    stamp = build_stamp(run.folder)
    echo = statistics.median(asyncio.run(floors.echo_ms(run.rounds)))
    commit = statistics.median(floors.commit_ms(run.rounds))
    hop = statistics.median(asyncio.run(floors.hop_ms(run.rounds)))
    spawn = statistics.median(floors.spawn_ms([str(stamp)], run.rounds))
    starts = asyncio.run(measures.first_instruction_ms(run.fleet, stamp, run.rounds))
    total = echo + commit + hop + spawn
    return [
        Row("floor: grpc.aio echo p50", echo, "ms"),
        Row("floor: fsynced commit p50", commit, "ms"),
        Row("floor: hop of an open stream p50", hop, "ms"),
        Row("floor: posix_spawn to first instruction p50", spawn, "ms"),
        Row("submit to first instruction p50", statistics.median(starts), "ms", total, "sum of floors"),
        Row("submit to first instruction p99", percentile(starts, 0.99), "ms", total, "sum of floors"),
    ]


def _submits(run: Run) -> list[Row]:
    """Pipelined submits, while nothing is launched and while everything is."""

    def one(name: str, *, is_launching: bool) -> Row:
        echoes = asyncio.run(floors.echoes_per_second(SUBMITS, IN_FLIGHT))
        figure = asyncio.run(measures.submits_per_second(run.fleet, SUBMITS, IN_FLIGHT, is_launching=is_launching))
        return Row(name, figure, "/s", echoes, "echo, 100 in flight")

    name = f"{SUBMITS:,} submits, {IN_FLIGHT} in flight"
    return [
        middle([one(f"{name}, nothing launched", is_launching=False) for _ in range(run.repeats)]),
        middle([one(f"{name}, while launching", is_launching=True) for _ in range(run.repeats)]),
    ]


def _flood(run: Run) -> list[Row]:
    """Many short jobs on one node, and what each of them costs each program."""
    asyncio.run(measures.jobs_per_second(run.fleet, CPUS * 10))  # what a first job alone pays is not of interest here
    rates: list[Row] = []
    costs: list[dict[str, float]] = []
    for _ in range(run.repeats):
        spawns = floors.spawns_per_second(["/bin/true"], 1_000, CPUS)
        before = _cpu_seconds(run.fleet)
        rate = asyncio.run(measures.jobs_per_second(run.fleet, run.jobs))
        costs.append({name: (after - before[name]) / run.jobs for name, after in _cpu_seconds(run.fleet).items()})
        rates.append(Row(f"{run.jobs:,} × /bin/true to done", rate, "/s", spawns, "bare posix_spawn"))
    return [
        middle(rates),
        *(
            Row(f"CPU of a job of /bin/true, {name}", statistics.median(each[name] for each in costs) * 1e3, "ms")
            for name in costs[0]
        ),
    ]


def _lines(run: Run) -> list[Row]:
    """A line of output on its way to an attached client."""
    lines = asyncio.run(measures.line_ms(run.fleet))
    return [
        Row("line to attached client p50", statistics.median(lines), "ms"),
        Row("line to attached client p99", percentile(lines, 0.99), "ms"),
    ]


def _cpu_seconds(fleet: Fleet) -> dict[str, float]:
    """By program; the keeper's with that of its supervisors, of which none is let go within a minute."""
    keeper = fleet.keeper_pid()
    spent = {name: measures.cpu_seconds(pid) for name, pid in fleet.programs().items()}
    spent["keeper"] += sum(measures.cpu_seconds(pid) for pid in children(keeper))
    return spent


def build_stamp(folder: Path) -> Path:
    """Compile the program that prints the time of its first instruction."""
    program = folder / "stamp"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        sys.exit("make bench needs a C compiler (Debian, Ubuntu: apt-get install gcc libc6-dev)")
    subprocess.run([compiler, "-O2", "-o", program, STAMP_SOURCE], check=True)
    return program
