"""The figures: each function measures one thing on a running fleet."""

import asyncio
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpufleet.v1 import job_pb2, scheduler_pb2, scheduler_pb2_grpc

from .fleet import Fleet

PATH_ENV = {"PATH": "/usr/bin:/bin"}
LINES = 200
LINE_PAUSE_SECONDS = 0.02
LOOK_SECONDS = 0.2


def submit(argv: list[str], count: int = 0) -> scheduler_pb2.SubmitRequest:
    """A submit of a job without devices, with an id of its own, as gpuctl sends it."""
    spec = job_pb2.JobSpec(argv=argv, cwd="/tmp", env=PATH_ENV, cpus=1)
    return scheduler_pb2.SubmitRequest(specs=[spec], count=count, request_id=uuid.uuid4().hex)


async def first_instruction_ms(fleet: Fleet, stamp: Path, count: int, pause_s: float = 0.0) -> list[float]:
    """From the submit call to the job's first instruction, one job after the other on an idle fleet, that far apart."""
    times: list[float] = []
    async with fleet.connect() as channel:
        stub: Any = scheduler_pb2_grpc.SchedulerStub(channel)
        for _ in range(count):
            begin = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            answer = await stub.Submit(submit([str(stamp)]))
            data = b""
            request = scheduler_pb2.StreamOutputRequest(job_id=answer.first_job_id, follow=True)
            async for message in stub.StreamOutput(request):
                data += message.data
            times.append((int(data) - begin) / 1e6)
            await asyncio.sleep(pause_s)
    return times


async def submits_per_second(fleet: Fleet, count: int, in_flight: int, *, is_launching: bool) -> float:
    """Durable submits per second, pipelined, while jobs are launched or while nothing is.

    Waits in the end until nothing is queued or runs.
    """
    async with fleet.connect() as channel:
        stub: Any = scheduler_pb2_grpc.SchedulerStub(channel)
        if not is_launching:
            await stub.UpdateNode(scheduler_pb2.UpdateNodeRequest(node="bench", is_draining=True, reason="bench"))
        gate = asyncio.Semaphore(in_flight)

        async def one() -> None:
            async with gate:
                await stub.Submit(submit(["/bin/true"]))

        begin = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(count)))
        seconds = time.perf_counter() - begin
        if not is_launching:
            everything = scheduler_pb2.JobSelector(all_mine=True)
            await stub.Cancel(scheduler_pb2.CancelRequest(jobs=everything, reason="bench"))
            await stub.UpdateNode(scheduler_pb2.UpdateNodeRequest(node="bench", is_draining=False))
        await _until_idle(stub)
        return count / seconds


async def _until_idle(stub: Any) -> None:
    """Wait until no job is queued or runs; a look now and then, so that who waits costs little."""
    while True:
        answer = await stub.Queue(scheduler_pb2.QueueRequest(page_size=1, omit_env=True))
        counts = answer.counts
        if not (counts.queued or counts.held or counts.starting or counts.running or counts.stopping):
            return
        await asyncio.sleep(LOOK_SECONDS)


async def jobs_per_second(fleet: Fleet, count: int) -> float:
    """Jobs of /bin/true from one submit of equal jobs to the last one's end, per second."""
    async with fleet.connect() as channel:
        stub: Any = scheduler_pb2_grpc.SchedulerStub(channel)
        begin = time.perf_counter()
        answer = await stub.Submit(submit(["/bin/true"], count))
        await _until_idle(stub)
        seconds = time.perf_counter() - begin
        last = await stub.GetJob(scheduler_pb2.GetJobRequest(job_id=answer.first_job_id + count - 1))
        assert last.job.state == job_pb2.JOB_STATE_SUCCEEDED, last.job
        return count / seconds


async def line_ms(fleet: Fleet) -> list[float]:
    """From a job's write of a line to the arrival at an attached client."""
    script = (
        "import time, sys\n"
        f"for _ in range({LINES}):\n"
        " print(time.clock_gettime_ns(time.CLOCK_BOOTTIME), flush=True)\n"
        f" time.sleep({LINE_PAUSE_SECONDS})"
    )
    times: list[float] = []
    async with fleet.connect() as channel:
        stub: Any = scheduler_pb2_grpc.SchedulerStub(channel)
        answer = await stub.Submit(submit([sys.executable, "-S", "-c", script]))
        request = scheduler_pb2.StreamOutputRequest(job_id=answer.first_job_id, follow=True)
        async for message in stub.StreamOutput(request):
            now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            times += [(now - int(line)) / 1e6 for line in message.data.split()]
    return times


def idle(programs: dict[str, int], seconds: float) -> dict[str, tuple[float, float]]:
    """For each process: share in percent of a core over a span, and resident memory in MB (10^6 bytes)."""
    before = {name: cpu_seconds(pid) for name, pid in programs.items()}
    time.sleep(seconds)
    return {
        name: ((cpu_seconds(pid) - before[name]) / seconds * 100, resident_mb(pid)) for name, pid in programs.items()
    }


def cpu_seconds(pid: int) -> float:
    """Processor time of the threads that are there, by the kernel's own count, which is finer than the clock tick."""
    nanoseconds = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            nanoseconds += int((task / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9


def resident_mb(pid: int) -> float:
    """Resident memory in MB (10^6 bytes)."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def wall_ms(commands: Mapping[str, Sequence[str]], environment: dict[str, str], rounds: int) -> dict[str, float]:
    """Median wall time of each command, in milliseconds; by turns, as the machine is not always as busy."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, argv in commands.items():
            begin = time.perf_counter()
            subprocess.run(
                argv, env={**os.environ, **environment}, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )
            times[name].append((time.perf_counter() - begin) * 1e3)
    return {name: statistics.median(each) for name, each in times.items()}
