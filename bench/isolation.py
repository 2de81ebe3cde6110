"""What keeping jobs apart costs: from the request for a launch to its first instruction, through a keeper alone.

Isolated and not, within limits and not, by turns, in one run. It needs root, the right to make namespaces, and for the
limits the one to make control groups.
"""

import asyncio
import os
import shutil
import statistics
import sys
import time
from pathlib import Path

from gpufleet.jobs.runs import JobId, RankKey
from node_agent.control_groups.finding import find_groups
from node_agent.core.launch import FILES_PATH, ControlGroup, Isolation, Launch, Launched, Process
from node_agent.core.outcome import Offsets, Stream
from node_agent.keeper.client import Keepers, OutputEnds
from node_agent.keeper.linux import boottime_us
from node_agent.spool import SpoolReader

from .path import build_stamp
from .rows import Row, Run, percentile

ROOT = Path(__file__).parent.parent

UID = 1_900_000_000
TURNS = 4
MEMORY_BYTES, PROCESSES_MAX = 1_000_000_000, 4096
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
