"""Disks fill up while jobs wait on their node behind others: each runs once, and all is known once there is room."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_agent.core.duties import BACKLOG_US_MAX
from tests.e2e.disks import Disk, small_disk
from tests.e2e.faults.test_full_disks import DISK_BYTES, refused_for_want_of_room
from tests.e2e.fleet import Fleet
from tests.e2e.jobs.flood import CPUS, Flood
from tests.e2e.processes import until

JOBS = 10


@pytest.fixture
def disk() -> Iterator[Disk]:
    with small_disk(DISK_BYTES) as mounted:
        yield mounted


@pytest.mark.parametrize("waits_too_long", [False, True])
async def test_each_runs_once_where_nothing_can_be_stored_while_a_node_goes_on(
    tmp_path: Path, disk: Disk, waits_too_long: bool
) -> None:
    store = f"sqlite:///{disk.path / 'scheduler.db'}"
    async with Fleet(tmp_path / "fleet", "--store", store) as fleet, fleet.client() as admin:
        await fleet.add_node("n1", "--cpus", str(CPUS))
        flood = Flood(admin, tmp_path)
        await flood.submit(JOBS, is_held=True)
        await until("some wait on the node", flood.has_a_backlog)
        disk.fill()
        await refused_for_want_of_room(admin)
        if waits_too_long:  # the node hands back what waits, and that cannot be stored either
            await asyncio.sleep(BACKLOG_US_MAX / 1e6)
        flood.gate.touch()
        await until("those that ran have ended", lambda: flood.ended_count >= CPUS)
        disk.make_room()
        await flood.end()


async def test_a_node_that_has_no_room_to_begin_what_waits_on_it_loses_none_of_it(tmp_path: Path, disk: Disk) -> None:
    environment = {"GPUCTL_SCHEDULER_PLACEMENT_DEVICE_PAUSE": "1s"}
    async with Fleet(tmp_path / "fleet", environment=environment) as fleet, fleet.client() as admin:
        await fleet.add_node("n1", "--cpus", str(CPUS), data=disk.path / "agent")
        flood = Flood(admin, tmp_path)
        jobs = await flood.submit(JOBS, is_held=True)
        await until("some wait on the node", flood.has_a_backlog)
        disk.fill()
        flood.gate.touch()

        async def is_refused() -> bool:
            return any(["AttemptVoided" in await admin.kinds(job) for job in jobs[CPUS:]])

        await until("one cannot begin", is_refused)
        disk.make_room()
        await flood.end()
