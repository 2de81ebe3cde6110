"""The scheduler's /metrics: who may read it, what it says of a real fleet, and that old samples say nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

from tests.e2e.fleet import Fleet
from tests.e2e.processes import until
from tests.metrics.scraping import Page, scrape, where

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fleet(
    long_lived: Callable[[str], AbstractContextManager[None]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """A scheduler with a page and one node, on which nothing but what one test starts ever runs."""
    fleet = Fleet(tmp_path_factory.mktemp("page") / "fleet", "--metrics-port", "0")

    async def start() -> None:
        await fleet.scheduler.start()
        await fleet.add_node()

    try:
        with long_lived("the fleet with a page"):
            asyncio.run(start())
        yield fleet
    finally:
        asyncio.run(fleet.end())


async def read(fleet: Fleet) -> Page:
    page = await scrape(await where(fleet.scheduler.log), fleet.scheduler.token("admin"))
    assert page.status == 200, page.text
    return page


def writers(fleet: Fleet) -> list[int]:
    """The processes that write pages for the scheduler."""
    pid = fleet.scheduler.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(pid) for pid in children if b"metrics.rendering" in Path(f"/proc/{pid}/cmdline").read_bytes()]


async def test_only_who_may_list_devices_may_read_metrics(fleet: Fleet) -> None:
    address = await where(fleet.scheduler.log)
    async with fleet.client() as admin:
        request = scheduler_pb2.CreateTokenRequest(user="prometheus", role=scheduler_pb2.ROLE_VIEWER)
        viewer = (await admin.stub.CreateToken(request)).secret
    assert (await scrape(address, viewer)).status == 200
    missing = await scrape(address)
    assert missing.status == 401 and missing.headers["www-authenticate"] == "Bearer"
    assert missing.text.startswith("TOKEN_MISSING: ")
    assert (await scrape(address, "gf_nobody")).text.startswith("TOKEN_INVALID: ")
    agent = await scrape(address, fleet.scheduler.token("agent"))
    assert agent.status == 403 and agent.text.startswith("PERMISSION_DENIED: ")


async def test_nothing_else_is_served_beside_the_metrics(fleet: Fleet) -> None:
    address, token = await where(fleet.scheduler.log), fleet.scheduler.token("admin")
    assert (await scrape(address, token, path="/")).status == 404
    posted = await scrape(address, token, method="POST")
    assert posted.status == 405 and posted.headers["allow"] == "GET, HEAD"
    asked = await scrape(address, token, method="HEAD")
    assert asked.status == 200 and not asked.text
    plain = await scrape(address, token, pack=False)
    assert plain.status == 200 and "content-encoding" not in plain.headers
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")


async def test_a_page_tells_what_runs_who_waits_and_what_happened(fleet: Fleet) -> None:
    async with fleet.client() as person:
        held = await person.submit("sleep", "600", gpus=1)
        await person.wait(held, job_pb2.JOB_STATE_RUNNING)
        waiting = await person.submit("sleep", "600", gpus=2)
        try:
            await person.run("true")

            page = await read(fleet)

            async def is_told() -> bool:
                nonlocal page
                page = await read(fleet)
                return (
                    page.values("gpufleet_jobs", state="running", band="normal") == [1]
                    and page.values("gpufleet_jobs", state="queued", band="normal") == [1]
                    and page.values("gpufleet_job_ends_total", outcome="succeeded") == [1]
                    and page.values("gpufleet_devices", state="held") == [1]
                )

            await until("the page tells it", is_told)
            assert sorted(page.values("gpufleet_device_held_ratio", node="n1")) == [0, 1]
            assert page.values("gpufleet_nodes", state="ready") == [1]
            assert page.values("gpufleet_job_wait_seconds_count", band="normal") == [2]
            assert page.values("gpufleet_commit_duration_seconds_count")[0] > 0
            assert page.values("process_memory_usage_bytes")[0] > 1e6
        finally:
            await person.cancel(held, waiting)
        await person.wait(held)


async def test_devices_have_the_labels_of_dcgm_exporter_and_the_names_of_the_conventions(fleet: Fleet) -> None:
    page = await read(fleet)

    async def has_samples() -> bool:
        nonlocal page
        page = await read(fleet)
        return len(page.values("hw_gpu_utilization_ratio")) == 2

    await until("both devices have samples", has_samples)
    first = page.labels("hw_gpu_memory_usage_bytes")[0]
    assert {"UUID", "gpu", "pci_bus_id", "modelName", "Hostname", "node", "hw_type"} == set(first)
    assert (first["UUID"], first["gpu"], first["node"], first["hw_type"]) == ("VIRTUAL-n1-0", "0", "n1", "gpu")
    assert first["Hostname"] == os.uname().nodename
    assert page.values("hw_gpu_memory_limit_bytes", gpu="1") == [16e9]
    assert page.values("hw_status", gpu="0", hw_state="ok") == [1]


async def test_a_device_of_a_node_that_is_not_heard_shows_its_age_and_no_old_values(tmp_path: Path) -> None:
    fast = tmp_path / "fast.toml"
    fast.write_text('[nodes]\nheartbeat = "100ms"\nmissed_heartbeats_max = 1\nlease = "1s"\n')
    async with Fleet(tmp_path / "fleet", "--metrics-port", "0", "--config", str(fast)) as fleet:
        agent = await fleet.add_node()

        async def values() -> bool:
            return bool((await read(fleet)).values("hw_gpu_utilization_ratio"))

        async def no_values() -> bool:
            return not (await read(fleet)).values("hw_gpu_utilization_ratio")

        await until("there are values", values)
        # A busy machine may have lost it before.
        (losses,) = (await read(fleet)).values("gpufleet_node_losses_total") or [0.0]
        agent.signal(signal.SIGSTOP)
        try:
            await until("old values are gone", no_values)
            page = await read(fleet)
            assert len(page.values("gpufleet_device_sample_age_seconds")) == 2
            assert min(page.values("gpufleet_device_sample_age_seconds")) > 5
            assert page.values("gpufleet_nodes", state="lost") == [1]
            assert page.values("gpufleet_node_losses_total")[0] > losses
        finally:
            agent.signal(signal.SIGCONT)
        await until("they are back", values)


async def test_a_page_is_written_again_when_the_process_that_writes_it_was_killed(fleet: Fleet) -> None:
    await read(fleet)
    (writer,) = writers(fleet)
    os.kill(writer, signal.SIGKILL)
    address, token = await where(fleet.scheduler.log), fleet.scheduler.token("admin")

    async def is_written() -> bool:
        # Within a second the page that was made before is still told.
        page = await scrape(address, token)
        is_whole = page.status == 200 and len(page.values("hw_status", hw_state="ok")) == 2
        return is_whole and len(others := writers(fleet)) == 1 and writer not in others

    await until("another process writes it", is_written)
