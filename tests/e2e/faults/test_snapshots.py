"""A snapshot of the scheduler's machine that was put back: the nodes know better than its database and its folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from gpufleet.v1 import job_pb2

from tests.e2e.faults.test_restored_stores import accepted, refused
from tests.e2e.fleet import Fleet

SUCCEEDED = job_pb2.JOB_STATE_SUCCEEDED


def copy_of(fleet: Fleet, name: str) -> Path:
    """The scheduler's whole folder as it is now."""
    copy = fleet.folder / name
    shutil.copytree(fleet.scheduler.data, copy)
    return copy


def put_back(fleet: Fleet, copy: Path) -> None:
    shutil.rmtree(fleet.scheduler.data)
    shutil.copytree(copy, fleet.scheduler.data)


async def ended_by_a_node(fleet: Fleet) -> str:
    """What a scheduler says that starts, and leaves once a node has told what it knows."""
    before = len(fleet.scheduler.log_text())
    fleet.scheduler.spawn("--port", fleet.scheduler.address.rpartition(":")[2])
    assert await fleet.scheduler.ended() == 1
    return fleet.scheduler.log_text()[before:]


async def test_a_node_stops_a_scheduler_whose_machine_was_put_back_before_anything_is_placed(fleet: Fleet) -> None:
    agent = await fleet.add_node("n1")
    absent = await fleet.add_node("n2")
    ran = fleet.work / "ran"
    run = ("sh", "-c", f"echo $GPUFLEET_JOB_ID >> {ran}")
    async with fleet.client() as client:
        await client.run("true")
    await agent.stop()
    await absent.stop()
    async with fleet.client() as client:
        waits = await client.submit(*run)  # as the copy knows it
    await fleet.scheduler.stop()
    copy = copy_of(fleet, "copy")

    await fleet.scheduler.start()
    agent.spawn()
    async with fleet.client() as client:
        await client.wait(waits, SUCCEEDED)
        for _ in range(3):
            await client.run(*run)
    absent.spawn()
    await fleet.node_is_ready("n2")  # with its registration it is told how far the store is
    await absent.stop()
    await fleet.scheduler.stop()

    put_back(fleet, copy)
    said = await ended_by_a_node(fleet)
    assert "the database is older than it was" in said and "gpuctl scheduler --accept-restored" in said, said
    assert "Traceback" not in said and "stopping" in said, said
    assert ran.read_text().split() == ["2", "3", "4", "5"], "nothing ran again"
    await agent.stop()
    said = await refused(fleet)  # by its own folder now
    assert "the database is older than it was" in said, said

    await accepted(fleet)
    agent.spawn()
    await fleet.node_is_ready("n1")
    async with fleet.client() as client:
        assert (await client.wait(waits, SUCCEEDED)).id == 2
        assert (await client.run(*run)).id == 1_001
    absent.spawn()  # it brings what it was told of the lost history, too
    await fleet.node_is_ready("n2")
    await fleet.scheduler.stop()
    await fleet.scheduler.start()
    for name in ("n1", "n2"):
        await fleet.node_is_ready(name)
    assert ran.read_text().split() == ["2", "3", "4", "5", "1001"]


async def test_a_node_of_a_lost_database_works_for_the_one_that_follows(fleet: Fleet) -> None:
    agent = await fleet.add_node("n1")
    for _ in range(3):  # it has heard of higher terms than the new database begins with
        await fleet.scheduler.stop()
        await fleet.scheduler.start()
        await fleet.node_is_ready("n1")
    async with fleet.client() as client:
        await client.run("true")
    await fleet.scheduler.stop()
    for file in fleet.scheduler.data.glob("scheduler.db*"):
        file.unlink()
    assert "the database is empty" in await refused(fleet)
    await accepted(fleet)
    async with fleet.client() as client:
        assert (await client.run("true")).id == 1_001
    agent.must_run()


async def test_a_node_goes_over_to_a_new_fleet_at_the_same_address(fleet: Fleet) -> None:
    agent = await fleet.add_node("n1")
    for _ in range(2):
        await fleet.scheduler.stop()
        await fleet.scheduler.start()
        await fleet.node_is_ready("n1")
    await fleet.scheduler.stop()
    shutil.rmtree(fleet.scheduler.data)
    await fleet.scheduler.start()
    async with fleet.client() as client:
        assert (await client.run("true")).id == 1
    assert "another store than the one before" in agent.log_text()
