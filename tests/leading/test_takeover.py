"""A leader that is killed or stopped, and a standby that goes on: nothing is lost, and nothing runs twice."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import psycopg
import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

from scheduler.__main__ import SUPERSEDED
from tests.e2e.client import Client, dial
from tests.leading.pair import Pair

pytestmark = pytest.mark.postgres

RUNNING, SUCCEEDED = job_pb2.JOB_STATE_RUNNING, job_pb2.JOB_STATE_SUCCEEDED


async def test_a_job_runs_on_through_a_takeover_and_ends_once_with_all_of_its_output(pair: Pair) -> None:
    await pair.add_node("n1", "--cpus", "4")
    async with pair.client() as client:
        job_id = await client.submit("sh", "-c", "echo begun; until test -e 'go on'; do sleep 0.01; done; echo done")
        await client.wait(job_id, RUNNING)
    term = pair.term()
    token = pair.scheduler.token("admin")
    pair.scheduler.kill()
    await pair.serves(pair.other)
    assert pair.term() == term + 1
    (pair.work / "go on").touch()
    async with pair.client(token) as client:
        job = await client.wait(job_id)
        assert (job.state, job.attempt_count, job.output_is_complete) == (SUCCEEDED, 1, True)
        assert await client.stdout(job_id) == b"begun\ndone\n"
        assert await client.wait(await client.submit("true"))
    assert "warm=True" in pair.other.log_text(), "nothing of it was read again"


async def test_a_standby_listens_nowhere_and_calls_itself_no_leader(pair: Pair) -> None:
    assert not (pair.other.data / "listening").exists()
    row = pair.row_of(pair.other)
    assert row is not None and row[0] == "standing by" and row[2] == ""
    assert await pair.other.stop() == 0
    assert "Traceback" not in pair.other.log_text()


async def test_a_leader_that_stops_in_order_is_followed_at_once(pair: Pair) -> None:
    token, term = pair.scheduler.token("admin"), pair.term()
    async with pair.client() as client:
        job_id = await client.submit("true")
    assert await pair.scheduler.stop() == 0
    await pair.serves(pair.other)
    assert pair.term() == term + 1
    async with pair.client(token) as client:
        assert (await client.job(job_id)).state == job_pb2.JOB_STATE_QUEUED


async def test_a_leader_that_is_paused_is_replaced_and_writes_nothing_more_when_it_goes_on(
    tmp_path: Path, url: str
) -> None:
    async with Pair(tmp_path / "fleet", url, silence_max="2s", has_own_port=True) as pair:
        async with pair.client() as client:
            job_id = await client.submit("true")
            pair.scheduler.signal(signal.SIGSTOP)
            # Taken by its socket, and read when it goes on: by then somebody else leads.
            late = asyncio.ensure_future(client.stub.Submit(scheduler_pb2.SubmitRequest(specs=[client.spec("false")])))
            await pair.serves(pair.other)
            term, sequence = pair.term(), pair.newest_sequence()
            pair.scheduler.signal(signal.SIGCONT)
            assert await pair.scheduler.ended() == SUPERSEDED
            assert isinstance(await asyncio.wait_for(asyncio.gather(late, return_exceptions=True), 60), list)
            assert late.exception() is not None, "nothing was acknowledged"
        assert "Traceback" not in pair.scheduler.log_text()
        assert "does not lead any more" in pair.scheduler.log_text()
        assert "Start it again with --standby" in pair.scheduler.log_text()
        with psycopg.connect(url) as connection:
            terms = connection.execute("SELECT DISTINCT term FROM record WHERE seq > %s", (sequence,)).fetchall()
        assert all(each == (term,) for each in terms)
        token = (pair.scheduler.data / "admin.token").read_text().strip()
        async with dial(pair.other.address, token) as channel:
            other = Client(channel, pair.work, pair.seen)
            assert [job.id for job in (await other.queue()).jobs] == [job_id]
            other.forget()
