"""What a scrape of /metrics costs with a large fleet: time, size, processor time, and what callers feel meanwhile."""

import asyncio
import gzip
import pickle
import shutil
import statistics
import sys
import time
import urllib.request
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from gpufleet.v1 import scheduler_pb2, scheduler_pb2_grpc

from scheduler.metrics.devices import take_devices
from scheduler.metrics.rendering import page
from scheduler.metrics.snapshot import DeviceSnapshot, Ordered
from scheduler.state.ids import DeviceUuid
from tests.e2e.processes import until
from tests.metrics.prometheus_server import scraping_with

from . import measures
from .agents import DEVICES, beat
from .big_fleet import big_fleet
from .fleet import Fleet, scheduler_alone
from .rows import Row, Run, percentile
from .scale import simulated

SCRAPES = 5
SCRAPES_KNOWN = 3
"""The first one of Prometheus takes longer: every series is new to it."""
CALL_EVERY_SECONDS = 0.005
QUIET_SECONDS = 5.0
SAYS = "metrics are served on "
PROMETHEUS = """\
global: {scrape_interval: 10s, scrape_timeout: 10s}
scrape_configs:
  - job_name: gpufleet
    authorization: {credentials_file: TOKEN}
    static_configs: [{targets: ["ADDRESS"]}]
"""
"""With Prometheus's own limit: a scrape that takes longer is none."""


def measure(run: Run) -> list[Row]:
    """The rows of the group `scrape`."""
    folder = run.folder / "scrape"
    folder.mkdir()
    rows = asyncio.run(_parts(run.agents))
    with scheduler_alone(folder, "--metrics-port", "0") as fleet, simulated(fleet, run.agents, "full"):
        return rows + asyncio.run(_measure(fleet, run.agents))


async def _parts(nodes: int) -> list[Row]:
    """What a page costs the event loop, and the process that writes it, in processor time."""
    fleet = big_fleet(nodes)
    for name, live in fleet.state.live.nodes.items():
        for told in beat(name, 1, is_full=True).beat.samples:
            uuid = DeviceUuid(told.uuid)
            live.samples[uuid] = replace(live.samples[uuid], told=told.SerializeToString())
    engine: Any = SimpleNamespace(view=fleet.state, now=lambda: fleet.now)
    steps: list[float] = []
    devices: list[DeviceSnapshot] = []
    begin = time.thread_time()
    async for step in take_devices(engine):
        pickle.dumps([tuple(device) for device in step], pickle.HIGHEST_PROTOCOL)
        steps.append((time.thread_time() - begin) * 1e3)
        devices += step
        begin = time.thread_time()
    begin = time.thread_time()
    size = len(page(devices, Ordered(b"", 0, stale_s=float("inf"), is_packed=True)))
    seconds = time.thread_time() - begin
    of = f"{len(devices):,} devices"
    return [
        Row(f"taking the samples of {of}, processor time of the event loop", sum(steps), "ms"),
        Row("the longest step of that, between which others have their turn", max(steps), "ms", 5, "to reach"),
        Row(f"writing {of} and packing them, {size / 1e6:.1f} MB, in another process", seconds, "s", 5, "to reach"),
    ]


async def _measure(fleet: Fleet, agents: int) -> list[Row]:
    address = (fleet.folder / "scheduler.log").read_text().rpartition(SAYS)[2].split()[0]
    page = gzip.decompress(await _scrape(fleet, address))  # the first starts the process that writes
    quiet = await _felt(fleet, asyncio.sleep(QUIET_SECONDS))
    idle_share = await _processor_share(fleet)
    times: list[float] = []
    sizes: list[int] = []
    cpu_before, begin = measures.cpu_seconds(fleet.scheduler_pid), time.perf_counter()

    async def scrapes() -> None:
        for _ in range(SCRAPES):
            await asyncio.sleep(1.2)  # a page is shared for a second: each is to be a new one
            start = time.perf_counter()
            sizes.append(len(await _scrape(fleet, address)))
            times.append(time.perf_counter() - start)

    busy = await _felt(fleet, scrapes())
    used = measures.cpu_seconds(fleet.scheduler_pid) - cpu_before - idle_share * (time.perf_counter() - begin)
    of = f"{agents:,} nodes"
    return [
        *await _by_prometheus(fleet, address, agents),
        Row(f"scrape of {of}, {page.count(10):,} lines", statistics.median(times), "s", 10, "to reach"),
        Row(f"size of that page, packed; {len(page) / 1e6:.1f} MB as it is", statistics.median(sizes) / 1e6, "MB"),
        Row("processor time of a scrape in the scheduler, callers included", used / SCRAPES * 1e3, "ms"),
        Row("a call while it is scraped, p99", percentile(busy, 0.99), "ms", percentile(quiet, 0.99), "not scraped"),
        Row("the same, the longest", max(busy), "ms", max(quiet), "not scraped"),
    ]


async def _by_prometheus(fleet: Fleet, address: str, agents: int) -> list[Row]:
    """What a real Prometheus takes for it, and how many GPUs it then knows: its own limit is 10 s."""
    if shutil.which("prometheus") is None:
        print("a real Prometheus is left out: it is not installed", file=sys.stderr)
        return []
    token = fleet.folder / "prometheus.token"
    token.write_text(fleet.token)
    config = PROMETHEUS.replace("TOKEN", str(token)).replace("ADDRESS", address)
    async with scraping_with(fleet.folder / "prometheus", config) as prometheus:

        async def is_known() -> bool:
            return await prometheus.query(f"count_over_time(scrape_duration_seconds[1h]) >= {SCRAPES_KNOWN}") != []

        await until("Prometheus has scraped", is_known)
        ((_, gpus),) = await prometheus.query("count(hw_gpu_utilization_ratio)")
        ((_, seconds),) = await prometheus.query("scrape_duration_seconds")
        ((_, lines),) = await prometheus.query("scrape_samples_scraped")
    assert gpus == DEVICES * agents, f"Prometheus knows {gpus:,.0f} GPUs"
    return [Row(f"scrape of {gpus:,.0f} GPUs by a real Prometheus, {lines:,.0f} samples", seconds, "s", 10, "to reach")]


async def _scrape(fleet: Fleet, address: str) -> bytes:
    token = (fleet.folder / "scheduler" / "admin.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}", "Accept-Encoding": "gzip"}

    def ask() -> bytes:
        with urllib.request.urlopen(urllib.request.Request(f"http://{address}/metrics", headers=headers)) as answer:
            return bytes(answer.read())

    return await asyncio.to_thread(ask)


async def _felt(fleet: Fleet, meanwhile: Any) -> list[float]:
    """How long a small call takes, in milliseconds, one after the other while something else goes on."""
    times: list[float] = []
    async with fleet.connect() as channel:
        stub: Any = scheduler_pb2_grpc.SchedulerStub(channel)
        other = asyncio.ensure_future(meanwhile)
        while not other.done():
            begin = time.perf_counter()
            await stub.GetServerInfo(scheduler_pb2.GetServerInfoRequest())
            times.append((time.perf_counter() - begin) * 1e3)
            await asyncio.sleep(CALL_EVERY_SECONDS)
        await other
    return times


async def _processor_share(fleet: Fleet) -> float:
    """Processor seconds a second of the scheduler, while it is called and not scraped."""
    before, begin = measures.cpu_seconds(fleet.scheduler_pid), time.perf_counter()
    await _felt(fleet, asyncio.sleep(QUIET_SECONDS))
    return (measures.cpu_seconds(fleet.scheduler_pid) - before) / (time.perf_counter() - begin)
