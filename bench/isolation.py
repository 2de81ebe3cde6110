"""What keeping jobs apart costs: from the request for a launch to its first instruction, through a keeper alone.

Isolated and not, within limits and not, by turns, in one run. It needs root, the right to make namespaces, and for the
limits the one to make control groups. And what a job in a container costs beside one that the engine is asked for.
"""

import asyncio
import os
import shutil
import socket
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from gpufleet.v1 import job_pb2, scheduler_pb2, scheduler_pb2_grpc

from gpufleet.jobs.runs import JobId, RankKey
from node_agent.control_groups.finding import find_groups
from node_agent.core.launch import FILES_PATH, ControlGroup, Isolation, Launch, Launched, Process
from node_agent.core.outcome import Offsets, Stream
from node_agent.keeper.client import Keepers, OutputEnds
from node_agent.keeper.containers.asking import ask, upgraded
from node_agent.keeper.linux import boottime_us
from node_agent.spool import SpoolReader

from .fleet import Fleet, fleet
from .path import build_stamp
from .rows import Row, Run, percentile

ROOT = Path(__file__).parent.parent

UID = 1_900_000_000
TURNS = 4
MEMORY_BYTES, PROCESSES_MAX = 1_000_000_000, 4096
ROUNDS_A_CONTAINER = 5
"""A container takes so much longer than a process that it is begun this many times more seldom."""
ENGINE_S_MAX = 60.0
WHAT = "launch to first instruction"
PLAIN = "not isolated"


def measure(run: Run) -> list[Row]:
    """The rows of the group `isolation`."""
    if os.geteuid() != 0:
        print("not measured, for want of root: isolation", file=sys.stderr)
        return []
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{ROOT / 'gen'}"  # a keeper loads what this process has loaded
    folder = run.folder / "isolation"
    folder.mkdir()
    stamp = build_stamp(folder)
    group = _group()
    ways: dict[str, tuple[bool, ControlGroup | None]] = {PLAIN: (False, None), "isolated": (True, None)}
    if group is not None:
        ways |= {"within limits": (False, group), "isolated within limits": (True, group)}
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(TURNS):
        for way, (is_isolated, bounds) in ways.items():
            place = folder / f"{turn}-{way.replace(' ', '-')}"
            taken[way] += asyncio.run(_start_ms(place, stamp, run.rounds // TURNS, bounds, is_isolated=is_isolated))
    middle, late = statistics.median(taken[PLAIN]), percentile(taken[PLAIN], 0.99)
    rows = [Row(f"{WHAT} p50", middle, "ms")]
    for way in [each for each in ways if each != PLAIN]:
        rows.append(Row(f"{WHAT}, {way} p50", statistics.median(taken[way]), "ms", middle, PLAIN))
        rows.append(Row(f"{WHAT}, {way} p99", percentile(taken[way], 0.99), "ms", late, PLAIN))
    return rows


def _group() -> ControlGroup | None:
    """Limits that no such command reaches."""
    facts = find_groups()
    if facts.why_not:
        print(f"not measured: limits, as {facts.why_not}", file=sys.stderr)
        return None
    return ControlGroup(
        version=facts.version, folders=facts.folders, memory_bytes=MEMORY_BYTES, cpus=1, processes=PROCESSES_MAX
    )


def measure_containers(run: Run) -> list[Row]:
    """The rows of the group `containers`: with an engine of their own, Podman's, and an image of busybox."""
    from tests.containers.engine import running_engine, why_no_engine

    if why := why_no_engine():
        print(f"not measured: containers, as {why}", file=sys.stderr)
        return []
    ours: list[float] = []
    engines: list[float] = []
    count = max(1, run.rounds // (TURNS * ROUNDS_A_CONTAINER))
    with (
        tempfile.TemporaryDirectory(prefix="engine-", dir="/tmp") as folder,
        running_engine(Path(folder)) as (engine, _),
    ):
        os.environ.update(engine.environment)
        try:
            with fleet(cpus=2) as own:
                for _ in range(TURNS):
                    ours += asyncio.run(_container_job_ms(own, count))
                    engines += [_container_ms(engine.socket) for _ in range(count)]
        finally:
            for name in engine.environment:
                del os.environ[name]
    middle, late = statistics.median(engines), percentile(engines, 0.99)
    floor_name = "the engine's create, attach, start"
    return [
        Row("a container: submit to its first byte p50", statistics.median(ours), "ms", middle, floor_name),
        Row("a container: submit to its first byte p99", percentile(ours, 0.99), "ms", late, floor_name),
    ]


async def _container_job_ms(own: Fleet, count: int) -> list[float]:
    """One job after the other, each until its last byte is there."""
    from tests.containers.engine import IMAGE

    times: list[float] = []
    async with own.connect() as channel:
        stub: Any = scheduler_pb2_grpc.SchedulerStub(channel)
        for _ in range(count):
            image = job_pb2.ContainerSettings(image=IMAGE)
            spec = job_pb2.JobSpec(argv=["/bin/echo", "x"], env={"PATH": "/bin"}, cpus=1, container=image)
            begin, first = time.perf_counter(), 0.0
            answer = await stub.Submit(scheduler_pb2.SubmitRequest(specs=[spec], request_id=uuid.uuid4().hex))
            request = scheduler_pb2.StreamOutputRequest(job_id=answer.first_job_id, follow=True)
            async for message in stub.StreamOutput(request):
                if message.data and not first:
                    first = time.perf_counter()
            assert first, "it wrote nothing"
            times.append((first - begin) * 1000)
    return times


def _container_ms(engine: str) -> float:
    """The same by the engine alone; it is removed outside of the time, as of a job."""
    from tests.containers.engine import IMAGE

    wanted = {"Image": IMAGE, "Cmd": ["/bin/echo", "x"], "HostConfig": {"NetworkMode": "host", "Init": True}}
    begin = time.perf_counter()
    made = ask(engine, "POST", "/containers/create", wanted).as_object()["Id"]
    channel = upgraded(engine, f"/containers/{made}/attach?stream=1&stdout=1", timeout_s=ENGINE_S_MAX)
    assert isinstance(channel, socket.socket), channel
    with channel:
        channel.settimeout(ENGINE_S_MAX)
        assert ask(engine, "POST", f"/containers/{made}/start").is_ok
        assert channel.recv(1)
    taken_ms = (time.perf_counter() - begin) * 1000
    ask(engine, "DELETE", f"/containers/{made}?force=1&v=1")
    return taken_ms


async def _start_ms(
    folder: Path, stamp: Path, count: int, group: ControlGroup | None, *, is_isolated: bool
) -> list[float]:
    """One command after the other."""
    files = folder / "files"
    files.mkdir(parents=True)
    shutil.copy(stamp, files / "stamp")
    isolation = Isolation(uid=UID, gid=UID, files=str(files), hidden=(str(folder),)) if is_isolated else None
    program = f"{FILES_PATH}/stamp" if is_isolated else str(stamp)
    process = Process(argv=(program,), env={"PATH": os.defpath}, cwd="/", isolation=isolation, group=group)
    times: list[float] = []
    async with await Keepers.open(folder / "keeper", build="bench") as keepers:
        for number in range(1, count + 1):
            key = RankKey(JobId(number), 1, 0)
            begin = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            answer = await keepers.launch(Launch(key=key, process=process, heartbeat_sent_us=boottime_us()))
            assert isinstance(answer, Launched), answer
            have, is_final = Offsets(), False
            while not is_final:
                grown = await keepers.wait_for_output(key, have)
                assert isinstance(grown, OutputEnds), grown
                have, is_final = grown.ends, grown.is_final
            times.append((int(SpoolReader(answer.attempt.directory).read(Stream.STDOUT, 0, 100).data) - begin) / 1e6)
        await keepers.shutdown(kill=True, grace_us=0)
    return times
