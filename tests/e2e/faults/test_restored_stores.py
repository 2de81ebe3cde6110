"""A database that was put back, or is gone, with all else as it was: it is said, and nobody gets another's output."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from gpufleet.v1 import job_pb2, scheduler_pb2

from tests.e2e.client import Client, select
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until

SUCCEEDED, FAILED = job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_FAILED


def marking(line: str, proof: Path) -> tuple[str, ...]:
    """A command that prints a line, and leaves a mark that it ran."""
    return ("sh", "-c", f"echo {line} && echo ran >> {proof}")


async def refused(fleet: Fleet) -> str:
    """What the scheduler says that does not start."""
    before = len(fleet.scheduler.log_text())
    fleet.scheduler.spawn()
    assert await fleet.scheduler.ended() == 1
    return fleet.scheduler.log_text()[before:]


async def accepted(fleet: Fleet) -> None:
    fleet.scheduler.flags.append("--accept-restored")
    await fleet.scheduler.start()
    fleet.scheduler.flags.remove("--accept-restored")


async def test_a_job_of_a_restored_database_is_given_nothing_of_what_the_lost_one_ran(fleet: Fleet) -> None:
    agent = await fleet.add_node("n1")
    alices, bobs, carols = (fleet.work / name for name in ("alice", "bob", "carol"))
    async with fleet.client() as client:
        assert (await client.run("true")).id == 1
    await fleet.scheduler.stop()
    data = fleet.scheduler.data
    database, copy, seen = data / "scheduler.db", fleet.folder / "copy.db", fleet.folder / "copy.seen"
    shutil.copy(database, copy)
    shutil.copy(data / "known-store.json", seen)
    await fleet.scheduler.start()
    async with fleet.client() as client:
        alice = await client.run(*marking("secret of alice", alices))
        assert (alice.id, alice.exit.code) == (2, 0)
        assert await client.stdout(2) == b"secret of alice\n"
    await fleet.scheduler.stop()

    # Where all that remembers is as old as the database nobody notices: the same number, term and tombstone, another
    # lineage.
    await agent.stop()
    (agent.data / "store-position").unlink()
    shutil.copy(data / "known-store.json", newest := fleet.folder / "newest.seen")
    shutil.copy(copy, database)
    shutil.copy(seen, data / "known-store.json")
    await fleet.scheduler.start()
    agent.spawn()
    await fleet.node_is_ready("n1")
    async with fleet.client() as client:
        bob = await client.run(*marking("of bob", bobs))
        assert (bob.id, bob.state) == (2, SUCCEEDED)
        assert await client.stdout(2) == await client.stdout(2, all_attempts=True) == b"of bob\n"
        assert bob.attempts[0].lineage not in ("", alice.attempts[0].lineage)
    await fleet.scheduler.stop()

    # Where it remembers, the scheduler does not start, changes nothing, and says what to type.
    shutil.copy(copy, database)
    shutil.copy(newest, data / "known-store.json")
    for _ in range(2):
        said = await refused(fleet)
        assert "the database is older than it was" in said and "jobs up to 2 (term 2)" in said, said
        assert "gpuctl scheduler --accept-restored" in said and "Traceback" not in said
    assert database.read_bytes() == copy.read_bytes()
    await accepted(fleet)
    await fleet.node_is_ready("n1")
    async with fleet.client() as client:
        carol = await client.run(*marking("of carol", carols))
        assert (carol.id, carol.state) == (1001, SUCCEEDED)
        assert await client.stdout(carol.id) == b"of carol\n"
    assert [each.read_text() for each in (alices, bobs, carols)] == ["ran\n"] * 3
    await fleet.scheduler.stop()
    await fleet.scheduler.start()  # what was accepted is what the folder has seen from then on


async def test_a_copy_that_lacks_only_the_last_answer_before_a_kill_is_refused(fleet: Fleet) -> None:
    database, copy = fleet.scheduler.data / "scheduler.db", fleet.folder / "copy.db"
    async with fleet.client() as client:
        assert await client.submit("true") == 1
        with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        assert await client.submit("true") == 2
    fleet.scheduler.kill()
    for file in fleet.scheduler.data.glob("scheduler.db*"):
        file.unlink()
    shutil.copy(copy, database)
    said = await refused(fleet)
    assert "the database is older than it was" in said and "jobs up to 2 (term 1)" in said, said
    await accepted(fleet)
    async with fleet.client() as client:
        assert await client.submit("true") == 1001


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
    said = await refused(fleet)
    assert "the database is empty, and the data folder has seen one with jobs up to 1 (term 1)" in said, said
    (fleet.scheduler.data / "known-store.json").unlink()
    said = await refused(fleet)
    assert "the data folder holds what another has left (worker.key" in said and "output" in said, said
    await accepted(fleet)
    agent.spawn()
    await fleet.node_is_ready("n1")
    async with fleet.client() as client:
        bob = await client.run("sh", "-c", "echo of bob, who wrote more")
        assert (bob.id, bob.state) == (1001, SUCCEEDED)
        assert await client.stdout(bob.id, all_attempts=True) == b"of bob, who wrote more\n"
    (alices,) = fleet.scheduler.data.glob("output/*/1/1.0.*.stdout")
    assert alices.read_bytes() == b"of alice\n", "old output stays what it was"


async def test_what_nodes_know_of_the_lost_history_is_kept_and_nothing_runs_twice(fleet: Fleet) -> None:
    agent = await fleet.add_node("n1")
    gate, ran = fleet.work / "gate", fleet.work / "ran"
    until_gate = f"echo $GPUFLEET_JOB_ID >> {ran}; echo begun; while [ ! -e {gate} ]; do sleep 0.05; done; echo over"
    await agent.stop()
    async with fleet.client() as client:
        goes_on = await client.submit("sh", "-c", until_gate)
        ended = await client.submit("sh", "-c", f"echo $GPUFLEET_JOB_ID >> {ran}; echo of an end; exit 3")
    await fleet.scheduler.stop()
    database, copy = fleet.scheduler.data / "scheduler.db", fleet.folder / "copy.db"
    shutil.copy(database, copy)

    # Both run in the time that is lost, and two jobs that only that time knows.
    await fleet.scheduler.start()
    agent.spawn()
    async with fleet.client() as client:
        await client.wait(goes_on, job_pb2.JOB_STATE_RUNNING)
        assert (await client.wait(ended, FAILED)).exit.code == 3
        lacking_and_ended = (await client.run("sh", "-c", "echo kept")).id
        lacking = await client.submit("sh", "-c", until_gate)
        await client.wait(lacking, job_pb2.JOB_STATE_RUNNING)
    await fleet.scheduler.stop()

    shutil.copy(copy, database)
    await accepted(fleet)
    await fleet.node_is_ready("n1")
    async with fleet.client() as client:
        assert (await client.wait(goes_on, job_pb2.JOB_STATE_RUNNING)).attempts[0].number == 1
        as_it_was = await client.wait(ended, FAILED)
        assert as_it_was.exit.code == 3 and await client.stdout(ended) == b"of an end\n"
        assert "AttemptFound" in await client.kinds(ended)
        found = await client.wait(lacking_and_ended, SUCCEEDED)
        assert "found on node n1" in found.exit_message and await client.stdout(found.id) == b"kept\n"
        assert (await client.wait(lacking, job_pb2.JOB_STATE_CANCELLED)).exit_reason == "STORE_GAP"
        gate.touch()
        assert (await client.wait(goes_on, SUCCEEDED)).exit.code == 0
        assert await client.stdout(goes_on) == b"begun\nover\n"
        assert (await client.run("true")).id == 1001
    assert sorted(ran.read_text().split()) == sorted(map(str, (goes_on, ended, lacking)))


async def test_a_newer_attempt_than_that_of_the_copy_goes_on_and_an_admin_ends_the_wait_of_others(fleet: Fleet) -> None:
    await fleet.add_node("n1")
    away = await fleet.add_node("n2")
    await away.stop()  # whoever waits since the gap waits for this one's fence, too
    gate, ran = fleet.work / "gate", fleet.work / "ran"
    until_gate = f"echo run >> {ran}; while [ ! -e {gate} ]; do sleep 0.05; done"
    async with fleet.client() as client:
        job = await client.submit("sh", "-c", until_gate, gpus=1)
        await client.wait(job, job_pb2.JOB_STATE_RUNNING)
        waits = await client.submit("true", gpus=2)
    await fleet.scheduler.stop()
    database, copy = fleet.scheduler.data / "scheduler.db", fleet.folder / "copy.db"
    shutil.copy(database, copy)

    await fleet.scheduler.start()
    await fleet.node_is_ready("n1")
    async with fleet.client() as client:
        await client.stub.RequeueJob(scheduler_pb2.RequeueJobRequest(jobs=select(job)))
        await until("it runs again", lambda: ran.read_text().split() == ["run"] * 2)
    await fleet.scheduler.stop()

    shutil.copy(copy, database)
    await accepted(fleet)
    await fleet.node_is_ready("n1")
    async with fleet.client() as client:
        await until("its newest attempt is told", lambda: client_knows(client, job, 2))
        gate.touch()
        assert [each.number for each in (await client.wait(job, SUCCEEDED)).attempts] == [1, 2]
        assert {"AttemptEnded", "AttemptFound"} <= set(await client.kinds(job))
        server = await client.stub.GetServerInfo(scheduler_pb2.GetServerInfoRequest())
        assert list(server.store_gap.awaited_nodes) == ["n2"] and not server.store_gap.is_released
        assert (await client.job(waits)).state == job_pb2.JOB_STATE_QUEUED
        await client.stub.UpdateServer(scheduler_pb2.UpdateServerRequest(releases_gap=True))
        await client.wait(waits, SUCCEEDED)
        server = await client.stub.GetServerInfo(scheduler_pb2.GetServerInfoRequest())
        assert server.store_gap.is_released
    assert ran.read_text().split() == ["run"] * 2


async def client_knows(client: Client, job: int, attempt: int) -> bool:
    """Whether the store has this attempt of the job."""
    return any(each.number == attempt for each in (await client.job(job)).attempts)
