"""Logs of real machines in the Standard Workload Format, version 2.2: jobs as they were submitted.

https://www.cs.huji.ac.il/labs/parallel/workload/swf.html names the columns. A processor stands for a device; where all
jobs of a machine take whole nodes of several processors, a node does.
"""

import gzip
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from math import gcd
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LoggedJob:
    """A job of a log; times in seconds. `run` is how long it takes, at most its `limit`; `is_well`: it succeeded."""

    number: int
    submitted: int
    devices: int
    run: int
    limit: int
    user: str
    program: str
    queue: str
    is_well: bool


@dataclass(frozen=True, slots=True)
class Log:
    """The jobs of a machine in the order of the file, and how many devices it has."""

    name: str
    devices: int
    jobs: tuple[LoggedJob, ...]


def read_log(path: Path, name: str, count: int | None = None) -> Log:
    """A log without the jobs that no machine could run: of no devices or more than there are, without run or limit."""
    with gzip.open(path, "rt", errors="replace") as lines:
        rows = [line.split() for line in lines]
    machine = next(int(row[2]) for row in rows if row[:2] == [";", "MaxProcs:"])
    logged = _jobs((row for row in rows if row and not row[0].startswith(";")), machine)
    jobs = sorted(logged, key=lambda job: job.submitted)
    whole = reduce(gcd, (job.devices for job in jobs), machine)
    kept = jobs if count is None else jobs[:count]
    return Log(name, machine // whole, tuple(replace(job, devices=job.devices // whole) for job in kept))


def _jobs(rows: Iterator[list[str]], machine: int) -> Iterator[LoggedJob]:
    for row in rows:
        number, submitted, _, run, used = (round(float(each)) for each in row[:5])
        asked, limit, status = round(float(row[7])), round(float(row[8])), int(row[10])
        devices = asked if asked > 0 else used
        if devices <= 0 or max(used, asked) > machine or run <= 0 or limit <= 0 or submitted < 0:
            continue
        user, program, queue = row[11], row[13], row[14]
        is_well = status in (-1, 1)
        yield LoggedJob(number, submitted, devices, min(run, limit), limit, user, program, queue, is_well)
