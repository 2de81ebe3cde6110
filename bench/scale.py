"""What a long queue and a large fleet cost a real scheduler: submits, pages, a start, memory, heartbeats.

Each row names its sizes. Where the project has set itself a figure to reach, it stands in place of a floor.
"""

import asyncio
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpufleet.v1 import job_pb2, scheduler_pb2, scheduler_pb2_grpc

from . import measures
from .fleet import Fleet, scheduler_alone
from .rows import Row, Run

TARGET = "to reach"
SUBMIT_OF = 10_000
"""Jobs of one submit: the most specs that a request may hold."""
PAGE = 100
PAGES_READ = 30
CLASSES = 200
HEARD_SECONDS = 20.0
ITEMS = 100_000
ARRAYS = 9
"""How many arrays of ITEMS are submitted; as many as a queue holds."""


def measure(run: Run) -> list[Row]:
    """The rows of the group `scale`."""
    arrays, equal, separate, agents = (run.folder / name for name in ("arrays", "equal", "separate", "agents"))
    for folder in (arrays, equal, separate, agents):
        folder.mkdir()
    return [
        _arrays(arrays),
        *_equal_jobs(equal, run.queued),
        *_separate_jobs(separate, run.queued, run.repeats),
        *_heartbeats(agents, run.agents, run.queued),
    ]


def _equal_jobs(folder: Path, queued: int) -> list[Row]:
    with scheduler_alone(folder) as fleet:
        before = measures.resident_mb(fleet.scheduler_pid)
        times = asyncio.run(_submits(fleet, queued, count=SUBMIT_OF))
        each = (measures.resident_mb(fleet.scheduler_pid) - before) * 1e3 / queued
    return [
        Row(f"one Submit of {SUBMIT_OF:,} equal jobs", statistics.median(times), "ms", 50, TARGET),
        Row(f"memory per job, {queued:,} equal ones queued", each, "kB", 2.5, TARGET),
    ]


def _arrays(folder: Path) -> Row:
    with scheduler_alone(folder) as fleet:
        times = asyncio.run(_submit_arrays(fleet))
    return Row(f"one Submit of an array of {ITEMS:,}", statistics.median(times), "ms", 20, TARGET)


async def _submit_arrays(fleet: Fleet) -> list[float]:
    """How long each submit of an array takes, in milliseconds, one after the other."""
    times: list[float] = []
    async with fleet.connect() as channel:
        stub: Any = scheduler_pb2_grpc.SchedulerStub(channel)
        for number in range(ARRAYS):
            spec = _spec(number)
            spec.array.indices = f"1-{ITEMS}"
            request = scheduler_pb2.SubmitRequest(specs=[spec], request_id=uuid.uuid4().hex)
            start = time.perf_counter()
            await stub.Submit(request)
            times.append((time.perf_counter() - start) * 1e3)
    return times


def _separate_jobs(folder: Path, queued: int, repeats: int) -> list[Row]:
    with scheduler_alone(folder) as fleet:
        before = measures.resident_mb(fleet.scheduler_pid)
        times = asyncio.run(_submits(fleet, queued))
        each = (measures.resident_mb(fleet.scheduler_pid) - before) * 1e3 / queued
        pages = asyncio.run(_pages(fleet))
    starts: list[float] = []
    after_start = 0.0
    for _ in range(repeats):
        begin = time.perf_counter()
        with scheduler_alone(folder) as fleet:
            starts.append(time.perf_counter() - begin)
            after_start = measures.resident_mb(fleet.scheduler_pid)
    return [
        Row(f"one Submit of {SUBMIT_OF:,} separate specs", statistics.median(times), "ms", 400, TARGET),
        Row(f"memory per job, {queued:,} separate ones queued", each, "kB", 2.5, TARGET),
        Row(f"queue page of {PAGE}, {queued:,} queued, RPC p50", statistics.median(pages), "ms", 5, TARGET),
        Row(f"start until serving, {queued:,} separate jobs", statistics.median(starts), "s", 5, TARGET),
        Row(f"memory after that start, {queued:,} separate jobs", after_start, "MB"),
    ]


def _heartbeats(folder: Path, count: int, queued: int) -> list[Row]:
    with scheduler_alone(folder) as fleet, simulated(fleet, count):
        shares = [_share_of_a_core(fleet)]
        asyncio.run(_submits(fleet, queued))
        time.sleep(HEARD_SECONDS)  # what fits is placed meanwhile
        shares.append(_share_of_a_core(fleet))
    return [
        Row(f"{count:,} agents beat every 2 s, nothing queued", shares[0], "% of a core", 20, TARGET),
        Row(f"{count:,} agents beat every 2 s, {queued:,} queued", shares[1], "% of a core"),
    ]


def _share_of_a_core(fleet: Fleet) -> float:
    return measures.idle({"scheduler": fleet.scheduler_pid}, HEARD_SECONDS)["scheduler"][0]


@contextmanager
def simulated(fleet: Fleet, count: int, *how: str) -> Iterator[None]:
    """Simulated agents, until the end: see bench.agents."""
    token = fleet.folder / "scheduler" / "agent.token"
    arguments = [sys.executable, "-m", "bench.agents", fleet.address, str(token), str(count), *how]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"the simulated agents ended: {process.communicate()[1]}")
        yield
    finally:
        process.terminate()
        process.communicate()


async def _submits(fleet: Fleet, jobs: int, count: int = 0) -> list[float]:
    """How long each submit takes, in milliseconds, one after the other until this many jobs are queued."""
    times: list[float] = []
    async with fleet.connect() as channel:
        stub: Any = scheduler_pb2_grpc.SchedulerStub(channel)
        for begin in range(0, jobs, SUBMIT_OF):
            size = min(SUBMIT_OF, jobs - begin)
            specs = [_spec(begin)] if count else [_spec(begin + number) for number in range(size)]
            request = scheduler_pb2.SubmitRequest(specs=specs, count=size if count else 0, request_id=uuid.uuid4().hex)
            start = time.perf_counter()
            await stub.Submit(request)
            times.append((time.perf_counter() - start) * 1e3)
    return times


def _spec(number: int) -> job_pb2.JobSpec:
    """A job with a name of its own, of one of CLASSES classes."""
    kind = number % CLASSES
    spec = job_pb2.JobSpec(
        argv=["python", "train.py", "--config", f"configs/{number}.yaml"],
        name=f"train-{number}",
        cwd="/home/user/project",
        env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "TERM": "xterm"},
        cpus=2 + kind % 8,
        devices=[job_pb2.DeviceRequest(count=(1, 2, 4, 8)[kind % 4])],
    )
    spec.time_limit.FromSeconds(3_600 + 60 * kind)
    return spec


async def _pages(fleet: Fleet) -> list[float]:
    """How long the first page of the queue takes, in milliseconds."""
    times: list[float] = []
    async with fleet.connect() as channel:
        stub: Any = scheduler_pb2_grpc.SchedulerStub(channel)
        for _ in range(PAGES_READ):
            begin = time.perf_counter()
            page = await stub.Queue(scheduler_pb2.QueueRequest(page_size=PAGE))
            times.append((time.perf_counter() - begin) * 1e3)
            assert len(page.jobs) == PAGE
            await asyncio.sleep(0.12)  # what a page has found out is good for 100 ms: each is to find it out anew
    return times
