"""A real Prometheus scrapes scheduler, gateway and a recorded dcgm-exporter, and answers what docs/metrics.md asks."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.net.certificates import make_certificates
from tests.e2e.processes import until
from tests.gateway.stage import Stage
from tests.metrics.prometheus_server import Prometheus, must_be_installed, scraping_with
from tests.metrics.scraping import scrape, where

pytestmark = pytest.mark.slow

DOCS = Path(__file__).resolve().parents[2] / "docs"
RECORDED = Path(__file__).with_name("dcgm_exporter.txt")
LOAD = """\
{"seconds": 0, "gpu": 0, "utilization_percent": 1, "memory_used_bytes": 2000000000, "temperature_c": 61, \
"power_mw": 312500, "power_limit_mw": 400000, "energy_mj": 5000000, "clock_sm_mhz": 1410, "ecc_uncorrected_count": 2}
{"seconds": 0, "gpu": 1, "utilization_percent": 0, "memory_used_bytes": 0, "temperature_c": 30, "power_mw": 61200}
"""


@pytest.fixture
def dcgm_exporter() -> Iterator[str]:
    """HOST:PORT of a server that tells what a dcgm-exporter told once, of devices that are called as ours."""

    class Recorded(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(RECORDED.read_bytes())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Recorded) as server:
        serving = Thread(target=server.serve_forever)
        serving.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        serving.join()


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """A scheduler, a node whose first device a job holds, and a gateway with a certificate."""
    must_be_installed()
    stage = Stage(tmp_path)
    stage.fleet.scheduler.flags += ["--metrics-port", "0"]
    (tmp_path / "load.jsonl").write_text(LOAD)
    try:
        await stage.fleet.scheduler.start()
        await stage.fleet.add_node("n1", "--virtual-gpus", "2", "--virtual-load", str(tmp_path / "load.jsonl"))
        files = make_certificates(tmp_path / "tls", ["127.0.0.1"])
        certified = ("--tls-cert", str(files.cert_file), "--tls-key", str(files.key_file))
        await stage.another_gateway("gateway", "--metrics-port", "0", *certified).address()
        async with stage.fleet.client() as person:
            job = await person.submit("sleep", "600", gpus=1, pins=[job_pb2.NodePins(node="n1", device_indices=[0])])
            await person.wait(job, job_pb2.JOB_STATE_RUNNING)
            yield stage
            await person.cancel(job)
            await person.wait(job)
    finally:
        await stage.end()


async def viewer_token(stage: Stage) -> str:
    async with stage.fleet.client() as admin:
        request = scheduler_pb2.CreateTokenRequest(user="prometheus", role=scheduler_pb2.ROLE_VIEWER)
        return (await admin.stub.CreateToken(request)).secret


async def test_prometheus_scrapes_by_the_example_and_answers_the_queries_of_the_page(
    stage: Stage, tmp_path: Path, dcgm_exporter: str
) -> None:
    token = tmp_path / "viewer.token"
    token.write_text(await viewer_token(stage))
    config = (DOCS / "examples" / "prometheus.yml").read_text()
    meant = {
        "scheduler.lab.example:9461": await where(stage.fleet.scheduler.log),
        "gateway.lab.example:9462": await where(stage.folder / "gateway.log"),
        "gpu1.lab.example:9400": dcgm_exporter,
        "/etc/prometheus/gpufleet.token": str(token),
        "/etc/prometheus/gpufleet-ca.pem": str(tmp_path / "tls" / "ca.pem"),
        # Often enough to be seen soon, and with the time that a busy machine needs to answer.
        "scrape_interval: 15s": "scrape_interval: 3s",
        "scrape_timeout: 10s": "scrape_timeout: 3s",
    }
    for word, meaning in meant.items():
        assert word in config
        config = config.replace(word, meaning)
    async with scraping_with(tmp_path / "prometheus", config) as prometheus:
        try:
            await until("all three are scraped", lambda: prometheus.is_scraping(3))
        except AssertionError as never:
            raise AssertionError(await prometheus.trouble()) from never
        queries = re.findall(r"```promql\n(.*?)\n```", (DOCS / "metrics.md").read_text(), re.DOTALL)
        assert len(queries) == 3
        for query in queries:
            await until(f"an answer to {query}", lambda query=query: prometheus.query(query))
        idle, _, power = queries
        ((labels, _),) = await answered(prometheus, idle)
        assert (labels["UUID"], labels["gpu"], labels["node"]) == ("VIRTUAL-n1-0", "0", "n1")
        assert await answered(prometheus, power) == [({"node": "n1"}, 312.5)]
        # Both tell the same power of the same devices, joined by UUID and by index.
        for names in ("UUID", "UUID, gpu"):
            same = await answered(prometheus, f"hw_power_watts - on ({names}) DCGM_FI_DEV_POWER_USAGE", 2)
            assert [round(value, 6) for _, value in same] == [0, 0]
        assert await answered(prometheus, 'gpufleet_connected{job="gpufleet-gateway"}')
        assert await answered(prometheus, 'hw_errors_total{error_type="uncorrected_ecc", gpu="0"} == 2')


async def answered(prometheus: Prometheus, query: str, count: int = 1) -> list[tuple[dict[str, str], float]]:
    """So many series, once there are; a scrape that came too late leaves none until the next one."""
    found: list[tuple[dict[str, str], float]] = []

    async def is_there() -> bool:
        found[:] = await prometheus.query(query)
        return len(found) == count

    await until(f"{count} answers to {query}", is_there)
    return found


async def test_promtool_finds_nothing_wrong_but_for_a_label_that_is_called_as_dcgm_exporter_calls_it(
    stage: Stage, tmp_path: Path
) -> None:
    page = await scrape(await where(stage.fleet.scheduler.log), await viewer_token(stage))
    found = await promtool("check", "metrics", given=page.text)
    camel = "label names should be written in 'snake_case' not 'camelCase'"
    assert {line.partition(" ")[2] for line in found} == {camel}
    example = tmp_path / "prometheus.yml"
    example.write_text((DOCS / "examples" / "prometheus.yml").read_text())
    assert not await promtool("check", "config", "--syntax-only", str(example))


async def promtool(*arguments: str, given: str = "") -> list[str]:
    """The lines in which it complains."""

    def run() -> list[str]:
        done = subprocess.run(["promtool", *arguments], input=given, capture_output=True, text=True, timeout=60)
        return done.stderr.splitlines()

    return await asyncio.to_thread(run)
