"""What it costs to watch many GPUs: the scheduler's part for all who watch and for each, and `gpuctl top`'s."""

import asyncio
import os
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from gpufleet.v1 import node_pb2, scheduler_pb2

from cli.full_screen.view import Order, View
from cli.render.table import Look
from cli.top_view.fleet import SORTS, Fleet
from cli.top_view.picture import frame, totals_text
from gpufleet.security.tokens import make_token
from gpufleet.telemetry.spans import OFF
from scheduler.api.fleet.device_board import DeviceBoard
from scheduler.api.fleet.device_watch import DeviceReader
from scheduler.links import Links
from scheduler.state.ids import NodeName
from scheduler.state.nodes import DeviceSample
from scheduler.state.units import SECOND, Span, after
from scheduler.watching import ChangeHub
from tests.cli.fake_scheduler import FakeScheduler, Serving
from tests.cli.terminal import Terminal

from .big_fleet import DEVICES_PER_NODE, BigFleet, big_fleet
from .rows import Row, Run

ROUNDS = 5
GPUS = 1_000
COLUMNS, ROWS = 160, 50
BEAT_SECONDS = 2.0
WATCHED_SECONDS = 20.0


def measure(run: Run) -> list[Row]:
    """The rows of the group `live`; all but the last are processor time."""
    fleet = big_fleet(run.agents)
    first_ms, further_ms = asyncio.run(_tellings(fleet))
    devices = run.agents * DEVICES_PER_NODE
    changed_ms, scrolled_ms = _frames()
    return [
        Row(f"{devices:,} GPUs that all changed: made, and told to the first who watches", first_ms, "ms"),
        Row(f"{devices:,} GPUs that all changed: told to one who watches, too", further_ms, "ms"),
        Row(f"top: a frame of {GPUS:,} GPUs that all changed", changed_ms, "ms"),
        Row(f"top: a frame of {GPUS:,} GPUs, scrolled by a line", scrolled_ms, "ms"),
        Row(f"top: {GPUS:,} GPUs that change every {BEAT_SECONDS:.0f} s", _top_percent(), "% of a core"),
    ]


async def _tellings(fleet: BigFleet) -> tuple[float, float]:
    engine = cast(Any, SimpleNamespace(view=fleet.state, now=lambda: fleet.now))
    links = Links(OFF)
    board = DeviceBoard(engine, ChangeHub(1), links)
    readers = [DeviceReader(engine, board, frozenset()) for _ in range(2)]
    streams: list[Any] = [reader.messages(0.0) for reader in readers]
    for stream in streams:
        await _told(stream, len(fleet.state.durable.nodes) * DEVICES_PER_NODE)
    costs: list[tuple[float, float]] = []
    for moment in range(ROUNDS):
        fleet.now = after(fleet.now, Span(2 * SECOND))
        for name in fleet.state.durable.nodes:
            _read(fleet, name, moment)
            links.beaten(name)
        first, further = [await _told(stream, len(fleet.state.durable.nodes) * DEVICES_PER_NODE) for stream in streams]
        costs.append((first, further))
    for stream in streams:
        await stream.aclose()
    first_ms, further_ms = (statistics.median(each) for each in zip(*costs, strict=True))
    return first_ms, further_ms


def _read(fleet: BigFleet, name: NodeName, moment: int) -> None:
    """A node's beat, with a reading of each device as an agent tells it, another one each time."""
    told = node_pb2.DeviceSample(utilization_percent=moment + 1, memory_used_bytes=10**9, memory_free_bytes=7 * 10**10)
    told.power_mw, told.temperature_c, told.is_healthy, told.processes_are_known = 300_000, 60, True, True
    told.summary.utilization_percent.count = 2
    told.processes.add(pid=1, job_id=3)
    live = fleet.state.live.nodes[name]
    for device in fleet.state.durable.nodes[name].info.devices:
        live.samples[device.uuid] = DeviceSample(
            uuid=device.uuid,
            taken_at=fleet.now,
            utilization_percent=told.utilization_percent,
            memory_free_bytes=told.memory_free_bytes,
            told=told.SerializeToString(),
        )


async def _told(stream: Any, count: int) -> float:
    """Take so many devices off a stream; the milliseconds that it cost, with the bytes that they become."""
    begin = time.process_time()
    told = 0
    while told < count:
        message = await anext(stream)
        told += len(message.devices)
        message.SerializeToString()
    return (time.process_time() - begin) * 1e3


def _devices(moment: int) -> list[node_pb2.NodeDevice]:
    """GPUS devices with the readings of one moment."""
    found = []
    for number in range(GPUS):
        device = node_pb2.NodeDevice(node=f"node{number // 8:03}", job_id=1 + number // 32, user=f"user{number // 64}")
        device.device.uuid, device.device.index = f"GPU-{number}", number % 8
        device.device.name, device.device.memory_bytes, device.device.is_healthy = "NVIDIA H200", 141 * 10**9, True
        device.sample.utilization_percent = (number * 7 + moment * 13) % 101
        device.sample.memory_used_bytes = (number * 11 + moment * 17) % 141 * 10**9
        device.sample.power_mw = 100_000 + (number + moment) % 600 * 1000
        device.sample.temperature_c = 40 + (number + moment) % 40
        device.sample.processes.add(pid=number, job_id=device.job_id)
        found.append(device)
    return found


def _frames() -> tuple[float, float]:
    view = View(Fleet(Order(SORTS, "s")))

    def draw() -> None:
        fleet = view.rows
        frame(view, Look(), COLUMNS, ROWS, totals_text(fleet.totals, fleet.count), time.monotonic())

    def cost(work: Any) -> float:
        begin = time.process_time()
        work()
        draw()
        return (time.process_time() - begin) * 1e3

    moments = [scheduler_pb2.WatchDevicesResponse(devices=_devices(moment)) for moment in range(ROUNDS)]
    changed = [cost(lambda message=message: view.rows.take(message, 0.0)) for message in moments]
    scrolled = [cost(lambda: view.press("down")) for _ in range(100)]
    return statistics.median(changed), statistics.median(scrolled)


class _Changing(FakeScheduler):
    """A scheduler whose GPUs change all the time: half of them each second, as beats come."""

    def WatchDevices(self, request: Any, context: Any) -> Iterator[Any]:
        """All of them, and then for ever."""
        gone = threading.Event()
        context.add_callback(gone.set)
        yield scheduler_pb2.WatchDevicesResponse(is_whole=True, devices=_devices(0))
        moment = 0
        while not gone.wait(BEAT_SECONDS / 2):
            moment += 1
            half = _devices(moment)[moment % 2 :: 2]
            yield scheduler_pb2.WatchDevicesResponse(devices=half)


def _top_percent() -> float:
    fake = _Changing()  # type: ignore[abstract]
    serving = Serving(fake)
    environment = {**os.environ, "GPUCTL_SCHEDULER": fake.address, "GPUCTL_TOKEN": make_token()}
    terminal = Terminal("top", environment=environment)
    try:
        terminal.resize(ROWS, COLUMNS)
        terminal.wait_for("by node")
        begin, ticks = time.monotonic(), _ticks(terminal.process.pid)
        terminal.wait_until(lambda: time.monotonic() - begin >= WATCHED_SECONDS, "the end of the time")
        used = _ticks(terminal.process.pid) - ticks
        return 100 * used / os.sysconf("SC_CLK_TCK") / (time.monotonic() - begin)
    finally:
        terminal.close()
        serving.close()


def _ticks(pid: int) -> int:
    """Processor time of a process and of the one that it started, if any, in the kernel's ticks."""
    total = 0
    for each in (pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total
