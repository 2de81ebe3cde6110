"""What watching eight GPUs costs a node's agent: reading, whose each process is, and the summary of each beat.

In the driver's place is the C library of the tests, which looks at a file at each call: a real driver's calls cost the
kernel more, and Python as much.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.devices.fake_nvml import FakeNvml, compiler

from .rows import Row, Run

DEVICES = 8
ROUNDS = 100
TARGET_PERCENT = 1.0
BEAT_SECONDS = 2.0
ROOT = Path(__file__).parents[1]

CHILD = """
import json, os, time
from gpufleet.devices.opening import open_devices
from gpufleet.devices.process_tree import LiveAttempt, mark_owners
from node_agent.machine import sample_to_proto
from gpufleet.devices.process_tree import read_tree
from node_agent.usage import device_summary

source = open_devices(node="n1", interval_seconds=3600.0)
live = [LiveAttempt(name="1/1", leader_pid=os.getpid())]

def read():
    source.fresh(max_age_seconds=0.0, timeout_seconds=30.0)

def beat():
    for sample in mark_owners(source.sample(), live):
        sample_to_proto(sample).SerializeToString()
    for tally in source.drain().values():
        device_summary(tally).SerializeToString()

def cost(work):
    work()
    begin = time.process_time()
    for _ in range({rounds}):
        work()
    return (time.process_time() - begin) / {rounds}

print(json.dumps([len(source.list()), cost(read), cost(beat), cost(lambda: read_tree(os.getpid()))]))
source.close()
"""


def measure(run: Run) -> list[Row]:
    """The rows of the group `sampling`: processor time, once a second while a job runs, a beat every 2 s."""
    if compiler() is None:
        print("sampling is left out: the driver library of the tests needs gcc", file=sys.stderr)
        return []
    with tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as folder:
        gpus = FakeNvml(Path(folder), devices=DEVICES)
        for index in range(DEVICES):
            gpus.set(index, utilization=90, memory_used=40_000_000_000)
            gpus.start_process(index, os.getpid(), 30_000_000_000)
        environment = {**os.environ, **gpus.environment()}
        paths = [environment.get("PYTHONPATH", ""), str(ROOT), str(ROOT / "gen")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        child = [sys.executable, "-P", "-c", CHILD.replace("{rounds}", str(ROUNDS))]
        done = subprocess.run(child, env=environment, capture_output=True, text=True, timeout=300, check=True)
    devices, read_s, beat_s, tree_s = json.loads(done.stdout)
    assert devices == DEVICES, f"{devices} devices are there, not {DEVICES}"
    percent = 100 * (read_s + tree_s + beat_s / BEAT_SECONDS)
    return [
        Row(f"sampling {DEVICES} GPUs and a job once a second", percent, "% of a core", TARGET_PERCENT, "target"),
        Row(f"one reading of {DEVICES} GPUs", read_s * 1e3, "ms"),
        Row(f"their part of a heartbeat of {DEVICES} GPUs", beat_s * 1e3, "ms"),
        Row("one reading of a job's process", tree_s * 1e3, "ms"),
    ]
