"""What recording what 1,000 nodes of eight GPUs do costs a scheduler: processor, memory, and the file.

A few nodes stand for all: cost and room grow with the devices and with nothing else. Time is simulated, so that a day
takes seconds. In each process of its own, so that memory is what it was for.
"""

import json
import subprocess
import sys
from pathlib import Path

from .rows import Row, Run

NODES, DEVICES = 1_000, 8
BEAT_SECONDS = 2
DAY_NODES = 2
"""Nodes of which a whole day is recorded."""
MEMORY_NODES = 100
"""Nodes of which a quarter of an hour is recorded, after which memory no longer grows but for the 5 min points."""
ROOT = Path(__file__).parents[1]

CHILD = """
import asyncio, json, os, random, sys, tempfile, time
from pathlib import Path
from gpufleet.v1 import node_pb2
from scheduler.wire.validate_reports import device_readings
from scheduler.series.queries import HistoryQueries
from scheduler.series.reading import Retention
from scheduler.series.recorder import Recorder
from scheduler.state.ids import DeviceUuid, NodeName
from scheduler.state.nodes import Device, Node, NodeInfo
from scheduler.state.state import State
from scheduler.state.units import DAY, HOUR, SECOND, Instant, Span, after

nodes, devices, beat_seconds, seconds = map(int, sys.argv[1:])
BEGIN = Instant(1_800_000_000 * SECOND)
now = BEGIN

class NoStore:
    def newest_sequence(self): return 0
    def records_from(self, kinds, after, limit): return []
    def finished_job(self, job): return None

view = State()
for number in range(nodes):
    name = NodeName(f"n{number}")
    held = tuple(Device(uuid=DeviceUuid(f"GPU-{number}-{at}"), index=at, name="H200", memory_bytes=141 * 10**9)
                 for at in range(devices))
    view.durable.nodes[name] = Node(name=name, agent_id="a", incarnation=1, boot_id="b",
                                    info=NodeInfo(devices=held), registered_at=BEGIN)

def beats(chance):
    '''Beats as agents send them, of devices that compute, pause, and compute again.'''
    made = []
    for _ in range(64):
        load = 0 if chance.random() < 0.2 else chance.randint(60, 100)
        sample = node_pb2.DeviceSample()
        summary = sample.summary
        summary.span.FromSeconds(beat_seconds - 1)
        for name, value, swing in (("utilization_percent", load, 20), ("memory_used_bytes", 90 * 10**9, 10**9),
                                   ("power_mw", 90_000 + 6_000 * load, 40_000), ("temperature_c", 40 + load // 5, 1)):
            low = max(0, value - chance.randint(0, swing))
            counter = getattr(summary, name)
            counter.min, counter.max, counter.mean = low, value, (low + value) / 2
            counter.last, counter.count = value, 2
        made.append(sample)
    return made

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

async def main():
    global now
    with tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as folder:
        recorder = Recorder(view, NoStore(), lambda: now, lambda: DAY, Path(folder))
        desk = HistoryQueries(recorder, Path(folder), lambda: Retention(tens=DAY, fives=Span(90 * DAY)))
        chance = random.Random(1)
        samples = beats(chance)
        before, spent, longest = resident(), 0.0, 0.0
        for second in range(0, seconds, beat_seconds):
            now = after(BEGIN, second * SECOND)
            for node in view.durable.nodes:
                told = chance.choices(samples, k=devices)
                for number, sample in enumerate(told):
                    sample = told[number] = node_pb2.DeviceSample.FromString(sample.SerializeToString())
                    sample.uuid = f"GPU-{node[1:]}-{number}"
                begin = time.process_time()
                recorder.take_beat(node, device_readings(told, now))
                one = time.process_time() - begin
                spent += one
                longest = max(longest, one)
            if second % 60 == 0:
                begin = time.process_time()
                await recorder.write()
                spent += time.process_time() - begin
        grown = resident() - before
        await recorder.write()
        begin = time.perf_counter()
        await desk.devices(NodeName("n0"), None, Instant(now - DAY), now, 600, by_node=False)
        read = time.perf_counter() - begin
        desk.close()
        recorder.close()
        size = sum(file.stat().st_size for file in Path(folder).glob("history.db*"))
    print(json.dumps([spent, longest, grown, size, read]))

asyncio.run(main())
"""


def measure(run: Run) -> list[Row]:
    """The rows of the group `history`."""
    day = 86_400
    spent_s, longest_s, _, size, read_s = _child(DAY_NODES, day)
    _, _, grown, _, _ = _child(MEMORY_NODES, 900)
    fleet = NODES / DAY_NODES
    name = f"{NODES:,} × {DEVICES} GPUs"
    return [
        Row(f"recording what {name} do", 100 * spent_s / day * fleet, "% of a core"),
        Row(f"longest hold of the loop by a beat of {DEVICES} GPUs", longest_s * 1e3, "ms"),
        Row(f"memory for what {name} do", grown * NODES / MEMORY_NODES / 1e6, "MB"),
        Row(f"file of a day of {name}", size * fleet / 1e9, "GB"),
        Row(f"answering a day of {DEVICES} GPUs in 600 points", read_s * 1e3, "ms"),
    ]


def _child(nodes: int, seconds: int) -> list[float]:
    arguments = [str(each) for each in (nodes, DEVICES, BEAT_SECONDS, seconds)]
    path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'gen'}"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", CHILD, *arguments], env=path, capture_output=True, text=True, check=True
    )
    return [float(each) for each in json.loads(done.stdout)]
