"""A database that was put back, or is gone, with all else as it was: nobody is given what another's job did."""

from __future__ import annotations

import shutil
from pathlib import Path

from gpufleet.v1 import job_pb2

from tests.e2e.fleet import Fleet

SUCCEEDED = job_pb2.JOB_STATE_SUCCEEDED


def saves(line: str, proof: Path) -> str:
    """A command that prints a line, and leaves a mark that it ran."""
    return f"echo {line} && echo ran >> {proof}"


async def test_a_job_of_a_restored_database_is_given_nothing_of_what_the_lost_one_ran(fleet: Fleet) -> None:
    """Even where nobody notices that it was put back: numbers, terms and tombstones are the same, lineages are not."""
    await fleet.add_node("n1")
    alices, bobs = (fleet.work / name for name in ("alice", "bob"))
    async with fleet.client() as client:
        assert (await client.run("true")).id == 1
    await fleet.scheduler.stop()
    database, copy = fleet.scheduler.data / "scheduler.db", fleet.folder / "copy.db"
    shutil.copy(database, copy)
    await fleet.scheduler.start()
    async with fleet.client() as client:
        alice = await client.run("sh", "-c", saves("secret of alice", alices))
        assert (alice.id, alice.exit.code) == (2, 0)
        assert await client.stdout(2) == b"secret of alice\n"
    await fleet.scheduler.stop()
    shutil.copy(copy, database)
    await fleet.scheduler.start()
    await fleet.node_is_ready("n1")
    async with fleet.client() as client:
        bob = await client.run("sh", "-c", saves("of bob", bobs))
        assert (bob.id, bob.state) == (2, SUCCEEDED)
        assert await client.stdout(2) == b"of bob\n"
        assert await client.stdout(2, all_attempts=True) == b"of bob\n"
        assert bob.attempts[0].lineage not in ("", alice.attempts[0].lineage)
    assert (alices.read_text(), bobs.read_text()) == ("ran\n", "ran\n")


async def test_of_a_lost_database_and_a_new_agent_no_old_output_is_a_new_jobs(fleet: Fleet) -> None:
    agent = await fleet.add_node("n1")
    async with fleet.client() as client:
        await client.run("sh", "-c", "echo of alice")
    await agent.stop()
    await agent.end_keeper()
    shutil.rmtree(agent.data)
    await fleet.scheduler.stop()
    for file in fleet.scheduler.data.glob("scheduler.db*"):
        file.unlink()
    await fleet.scheduler.start()
    agent.spawn()
    await fleet.node_is_ready("n1")
    async with fleet.client() as client:
        bob = await client.run("sh", "-c", "echo of bob, who wrote more")
        assert (bob.id, bob.state) == (1, SUCCEEDED)
        assert await client.stdout(1, all_attempts=True) == b"of bob, who wrote more\n"
