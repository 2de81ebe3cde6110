"""`top` on a terminal, with a real scheduler and a recorded load: what GPUs do and for whom, also over a restart."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from gpufleet.v1 import job_pb2

from tests.cli.terminal import Terminal
from tests.e2e.fleet import Fleet

LOAD = (
    {"seconds": 0, "gpu": 0, "utilization_percent": 37, "memory_used_bytes": 5 * 10**9, "power_mw": 123_000},
    {"seconds": 0, "gpu": 1, "utilization_percent": 91, "memory_used_bytes": 7 * 10**9, "power_mw": 321_000},
)


async def test_top_shows_what_gpus_do_and_for_whom_and_outlives_the_scheduler(fleet: Fleet, tmp_path: Path) -> None:
    file = tmp_path / "load.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in LOAD))
    await fleet.add_node("n1", "--virtual-gpus", "2", "--virtual-load", str(file))
    scheduler = fleet.scheduler
    environment = {**os.environ, "GPUCTL_SCHEDULER": scheduler.address, "GPUCTL_TOKEN": scheduler.token("admin")}
    terminal = Terminal("top", environment=environment)

    async def sees(text: str, after: int = 0) -> int:
        return await asyncio.to_thread(terminal.wait_for, text, after)

    try:
        await sees("37%")
        at = await sees("321W")
        async with fleet.client() as client:
            job = await client.submit("sleep", "600", gpus=1, min_memory_bytes=10**9)
            await client.wait(job, job_pb2.JOB_STATE_RUNNING)
            at = await sees(f"{job}  {(await client.job(job)).user}", at)
        await scheduler.stop()
        at = await sees("STALE: ", at)
        await scheduler.start()
        at = await sees("2 GPUs, 1 free", at)
        terminal.type("/")
        at = await sees("filter: ", at)
        terminal.type("n1:1")
        at = await sees("1 of 2 GPUs", at)
        terminal.type("\rq")
        assert await asyncio.to_thread(terminal.end) == 0
    finally:
        terminal.close()
