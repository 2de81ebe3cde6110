"""What keeping jobs apart costs: from the request for a launch to its first instruction, through a keeper alone.

Isolated and not, by turns, in one run. It needs root, and the right to make namespaces.
"""

import asyncio
import os
import shutil
import statistics
import sys
import time
from pathlib import Path

from gpufleet.jobs.runs import JobId, RankKey
from node_agent.core.launch import FILES_PATH, Isolation, Launch, Launched, Process
from node_agent.core.outcome import Offsets, Stream
from node_agent.keeper.client import Keepers, OutputEnds
from node_agent.keeper.linux import boottime_us
from node_agent.spool import SpoolReader

from .path import build_stamp
from .rows import Row, Run, percentile

ROOT = Path(__file__).parent.parent

UID = 1_900_000_000
TURNS = 4


def measure(run: Run) -> list[Row]:
    """The rows of the group `isolation`."""
    if os.geteuid() != 0:
        print("not measured, for want of root: isolation", file=sys.stderr)
        return []
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{ROOT / 'gen'}"  # a keeper loads what this process has loaded
    folder = run.folder / "isolation"
    folder.mkdir()
    stamp = build_stamp(folder)
    plain: list[float] = []
    isolated: list[float] = []
    for turn in range(TURNS):
        for is_isolated, times in ((False, plain), (True, isolated)):
            taken = _start_ms(folder / f"{turn}-{is_isolated}", stamp, run.rounds // TURNS, is_isolated=is_isolated)
            times += asyncio.run(taken)
    middle, name = statistics.median(plain), "launch to first instruction, isolated"
    return [
        Row("launch to first instruction p50", middle, "ms"),
        Row(f"{name} p50", statistics.median(isolated), "ms", middle, "not isolated"),
        Row(f"{name} p99", percentile(isolated, 0.99), "ms", percentile(plain, 0.99), "not isolated"),
    ]


async def _start_ms(folder: Path, stamp: Path, count: int, *, is_isolated: bool) -> list[float]:
    """One command after the other."""
    files = folder / "files"
    files.mkdir(parents=True)
    shutil.copy(stamp, files / "stamp")
    isolation = Isolation(uid=UID, gid=UID, files=str(files), hidden=(str(folder),)) if is_isolated else None
    program = f"{FILES_PATH}/stamp" if is_isolated else str(stamp)
    process = Process(argv=(program,), env={"PATH": os.defpath}, cwd="/", isolation=isolation)
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
            times.append((int(SpoolReader(answer.attempt.directory).read(Stream.STDOUT, 0, 100)) - begin) / 1e6)
        await keepers.shutdown(kill=True, grace_us=0)
    return times
