"""A real Prometheus scrapes the scheduler of 200 nodes with eight busy GPUs each, and answers of every one of them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.processes import until
from tests.metrics.prometheus_server import must_be_installed, scraping_with
from tests.metrics.scraping import where

pytestmark = [pytest.mark.nightly, pytest.mark.slow]

NODES = 200
"""`make bench ARGS="--only scrape"` has 1,000, and tells how long a scrape takes."""
GPUS = 8 * NODES
PATIENT = '[nodes]\nheartbeat = "20s"\nlease = "5m"\n'
"""The simulated agents beat every 2 s all the same. Nobody is lost, and no sample too old, where all is slow."""

CONFIG = """\
global: {scrape_interval: 20s, scrape_timeout: 20s}
scrape_configs:
  - job_name: gpufleet
    authorization: {credentials_file: TOKEN}
    static_configs: [{targets: ["ADDRESS"]}]
"""
"""Twice Prometheus's own limit: this is no test of how fast the machine is."""


@asynccontextmanager
async def simulated_agents(address: str, token: Path) -> AsyncIterator[None]:
    """All of them, from when each of their streams stands."""
    command = [sys.executable, "-m", "bench.agents", address, str(token), str(NODES), "full"]
    agents = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert agents.stdout is not None
    try:
        assert await agents.stdout.readline() == b"ready\n"
        yield
    finally:
        agents.terminate()
        await agents.communicate()


async def test_prometheus_scrapes_a_large_fleet_and_knows_every_gpu(tmp_path: Path) -> None:
    must_be_installed()
    (tmp_path / "patient.toml").write_text(PATIENT)
    async with Fleet(tmp_path / "fleet", "--metrics-port", "0", "--config", str(tmp_path / "patient.toml")) as fleet:
        token = tmp_path / "viewer.token"
        token.write_text(fleet.scheduler.token("admin"))
        agents_token = tmp_path / "agent.token"
        agents_token.write_text(fleet.scheduler.token("agent"))
        async with simulated_agents(fleet.scheduler.address, agents_token):
            config = CONFIG.replace("TOKEN", str(token)).replace("ADDRESS", await where(fleet.scheduler.log))
            async with scraping_with(tmp_path / "prometheus", config) as prometheus:

                async def count(of: str) -> float:
                    return next((value for _, value in await prometheus.query(f"count({of})")), 0)

                async def is_scraped() -> bool:
                    return await count("hw_gpu_utilization_ratio") == GPUS

                try:
                    await until("every GPU is scraped", is_scraped)
                except AssertionError as never:
                    raise AssertionError(await prometheus.trouble()) from never
                assert await count("count by (node) (hw_power_watts)") == NODES
                assert await count("count by (UUID) (hw_power_watts)") == GPUS
                ((_, lines),) = await prometheus.query("scrape_samples_scraped")
                assert lines > 15 * GPUS
                ((_, left_out),) = await prometheus.query("gpufleet_devices_left_out")
                assert left_out == 0
                assert await prometheus.query('gpufleet_nodes{state="ready"}') != []
