"""The main promises once more with PostgreSQL as the store: output in rows, a killed scheduler, a lost server."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from pathlib import Path

import psycopg
import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import Reason
from scheduler.__main__ import SUPERSEDED
from tests.e2e.client import Client, joined, refusal
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until
from tests.e2e.submitting import RUNS, Submitter, each_ran_once, kill_while_submitting
from tests.store.postgres_server import PostgresServer

pytestmark = pytest.mark.postgres

SUBMITS = 200
RUNNING, SUCCEEDED = job_pb2.JOB_STATE_RUNNING, job_pb2.JOB_STATE_SUCCEEDED


@pytest.fixture
async def fleet(tmp_path: Path, postgres: PostgresServer) -> AsyncIterator[Fleet]:
    """A fleet whose store and outputs are in a database of its own."""
    url = postgres.url(postgres.new_database())
    async with Fleet(tmp_path / "fleet", "--store", url) as own:
        yield own


async def test_output_and_story_are_kept_in_rows_over_a_restart(fleet: Fleet) -> None:
    await fleet.add_node("n1", "--virtual-gpus", "2", "--cpus", "4")
    script = """
import os, random
for descriptor in (1, 2):
    data = random.Random(descriptor).randbytes(3_000_000)
    while data:
        data = data[os.write(descriptor, data):]
"""
    expected = {(1, 0, stream): random.Random(stream).randbytes(3_000_000) for stream in (1, 2)}
    async with fleet.client() as client:
        assert (await client.stub.GetServerInfo(scheduler_pb2.GetServerInfoRequest())).store_kind == "postgresql"
        job_id = await client.submit(sys.executable, "-c", script, gpus=1)
        assert await client.output(job_id) == expected
        job = await client.wait(job_id)
        story = await client.story(job_id)
    assert not list(fleet.scheduler.data.glob("output/**/*std*")), "nothing of it is in files"
    fleet.scheduler.kill()
    await fleet.scheduler.start()
    async with fleet.client() as client:
        assert await client.job(job_id) == job
        assert await client.story(job_id) == story
        assert joined(await client.messages(job_id)) == expected
        assert [each.id for each in (await client.queue(include_finished=True)).jobs] == [job_id]


async def test_a_scheduler_killed_while_submits_are_in_flight_loses_and_doubles_nothing(
    fleet: Fleet, admin: Client
) -> None:
    await fleet.add_node("n1", "--cpus", "16")
    submitter = Submitter(admin, RUNS)
    await kill_while_submitting(fleet, admin, submitter, SUBMITS, kills=2)
    await each_ran_once(admin, fleet, submitter, SUBMITS)


async def test_a_server_that_is_away_refuses_submits_harms_no_job_and_is_taken_up_again(
    fleet: Fleet, admin: Client, postgres: PostgresServer, long_lived: Callable[[str], AbstractContextManager[None]]
) -> None:
    await fleet.add_node("n1", "--cpus", "4")
    script = "echo begun; until test -e 'go on'; do sleep 0.01; done; echo done"
    job_id = await admin.submit("sh", "-c", script)
    await admin.wait(job_id, RUNNING)
    postgres.stop()
    try:
        request = scheduler_pb2.SubmitRequest(specs=[admin.spec("true")], request_id="asked while away")

        async def is_refused() -> bool:
            error = await refusal(admin.stub.Submit(request))
            assert error.reason in (Reason.STORE_UNAVAILABLE, Reason.OUTCOME_UNKNOWN), error
            return error.reason is Reason.STORE_UNAVAILABLE

        await until("submits are refused", is_refused)
        (fleet.work / "go on").touch()
        assert (await admin.job(job_id)).state == RUNNING, "reads go on"
    finally:
        with long_lived("PostgreSQL once more"):
            postgres.start()
    job = await admin.wait(job_id)
    assert (job.state, job.attempt_count, job.output_is_complete) == (SUCCEEDED, 1, True)
    assert await admin.stdout(job_id) == b"begun\ndone\n"

    async def is_taken() -> int:
        return (await admin.submit_specs(request.specs, request_id=request.request_id)).first_job_id

    assert await admin.wait(await is_taken())
    assert await is_taken() == await is_taken()


async def test_a_second_scheduler_on_the_same_database_is_refused(fleet: Fleet) -> None:
    other = Fleet(fleet.folder / "other", *fleet.scheduler.flags[:2])
    other.scheduler.spawn("--port", "0")
    assert await other.scheduler.ended() == 1
    assert "in use" in other.scheduler.log_text() or "another scheduler" in other.scheduler.log_text()
    assert "Traceback" not in other.scheduler.log_text()


async def test_a_scheduler_whose_database_another_has_taken_over_ends_naming_it(fleet: Fleet, admin: Client) -> None:
    """The job writes, and nothing else is to be stored: the output store finds it out, or the next beat."""
    await fleet.add_node("n1", "--cpus", "4")
    script = "echo begun; until test -e 'go on'; do sleep 0.01; done; echo more; exec sleep 600"
    job_id = await admin.submit("sh", "-c", script, grace=0.1)

    async def has_begun() -> bool:
        return bool(await admin.output(job_id, follow=False))

    await until("the job has begun to write", has_begun)
    url = fleet.scheduler.flags[fleet.scheduler.flags.index("--store") + 1]
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE meta SET term = term + 1")  # as the start of another scheduler does
    (fleet.work / "go on").touch()
    assert await fleet.scheduler.ended() == SUPERSEDED
    said = fleet.scheduler.log_text()
    assert "the store can no longer be used" in said
    assert re.search("another scheduler (has opened the store|leads) in term 2", said)
    assert "Traceback" not in said
    with psycopg.connect(url) as connection:
        stored = connection.execute("SELECT data FROM output_chunk WHERE job_id = %s", (job_id,)).fetchall()
    assert b"".join(data for (data,) in stored) in (b"", b"begun\n"), "nothing was stored in the other's database"
    await fleet.scheduler.start()
    async with fleet.client() as again:

        async def is_whole() -> bool:
            return await again.output(job_id, follow=False) == {(1, 0, job_pb2.STREAM_STDOUT): b"begun\nmore\n"}

        await until("the node has brought all of it to who took over", is_whole)
        await again.cancel(job_id)
        await again.wait(job_id)
