"""A leader that is killed or stopped, and a standby that goes on: nothing is lost, and nothing runs twice."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import psycopg
import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

from cli.doctor.cluster import judge_leading
from gpufleet.fleet.finding import Verdict
from scheduler.__main__ import SUPERSEDED
from tests.e2e.client import Client, dial
from tests.e2e.processes import SchedulerProcess, clean_environment, until
from tests.e2e.submitting import RUNS, Submitter, each_ran_once
from tests.leading.pair import Pair
from tests.store.postgres_server import PostgresServer

pytestmark = pytest.mark.postgres

SUBMITS = 60
LEADING, STANDING_BY = scheduler_pb2.SCHEDULER_ROLE_LEADING, scheduler_pb2.SCHEDULER_ROLE_STANDING_BY
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


async def test_everybody_is_told_who_leads_and_who_stands_by(pair: Pair) -> None:
    async with pair.client() as client:

        async def is_told() -> bool:
            answer = await client.stub.GetServerInfo(scheduler_pb2.GetServerInfoRequest())
            told = [(run.role, run.process_id, run.term) for run in answer.schedulers]
            leader, standby = pair.scheduler.pid, pair.other.pid
            return told == [(LEADING, leader, answer.term), (STANDING_BY, standby, 0)]

        await until("both are told of, the leader first", is_told)
        answer = await client.stub.GetServerInfo(scheduler_pb2.GetServerInfoRequest())
    found = list(judge_leading(answer.schedulers))
    assert [(each.what, each.verdict) for each in found] == [("leader", Verdict.OK), ("standby", Verdict.OK)]
    assert f"in term {answer.term}" in found[0].sentence


async def test_a_standby_without_the_keys_or_with_other_ones_does_not_start(pair: Pair) -> None:
    third = SchedulerProcess(pair.folder / "third", ("--store", pair.url, "--standby"))
    third.spawn("--port", "0")
    assert await third.ended() == 1
    assert "are not those of the scheduler that leads: worker.key is missing" in third.log_text()
    source, target = pair.scheduler.data / "worker.key", third.data / "worker.key"
    assert f"cp -p {source} {target}" in third.log_text(), "on one machine nothing is copied over the network"
    assert not target.exists(), "no key is made that nobody else has"
    shutil.copy2(source, target)
    third.spawn("--port", "0")
    await pair.is_warm(third)
    assert await third.stop() == 0


async def test_a_standby_in_the_data_folder_of_another_scheduler_does_not_start(pair: Pair) -> None:
    for holder in (pair.scheduler, pair.other):
        for more in ((), ("--standby",)):
            same = SchedulerProcess(holder.data, ("--store", pair.url, *more))
            same.log = pair.folder / "same.log"
            same.spawn("--port", "0")
            assert await same.ended() == 1
            said = f"another scheduler with pid {holder.pid} already uses the data folder {holder.data}"
            assert said in same.log_text(), more
            same.log.unlink()
    assert (pair.scheduler.data / "listening").exists()
    assert pair.scheduler.must_run() and pair.other.must_run()


async def test_a_scheduler_that_is_killed_and_started_again_at_once_has_its_data_folder(pair: Pair) -> None:
    pair.other.kill()
    await pair.stand_by()
    token = pair.scheduler.token("admin")
    pair.scheduler.kill()
    (pair.scheduler.data / "listening").unlink()
    pair.scheduler.spawn("--port", "0", "--standby")
    both = (pair.scheduler, pair.other)

    def roles() -> list[str]:
        rows = [pair.row_of(each) for each in both if each.must_run()]
        return sorted(row[0] for row in rows if row is not None)

    await until("one leads, and the other stands by", lambda: roles() == ["leading", "standing by"])
    leads = [row is not None and row[0] == "leading" for row in map(pair.row_of, both)]
    leader, standby = both if leads[0] else both[::-1]
    await pair.serves(leader)
    await pair.is_warm(standby)
    async with dial(leader.address, token) as channel:
        client = Client(channel, pair.work, pair.seen)
        assert [job.id for job in (await client.queue()).jobs] == []
        client.forget()


async def test_a_database_that_is_killed_and_comes_back_finds_the_same_leader(
    pair: Pair, postgres: PostgresServer, long_lived: Callable[[str], AbstractContextManager[None]]
) -> None:
    await pair.add_node("n1", "--cpus", "4")
    async with pair.client() as client:
        job_id = await client.submit("sh", "-c", "echo begun; until test -e 'go on'; do sleep 0.01; done; echo done")
        await client.wait(job_id, RUNNING)
        term = pair.term()
        postgres.stop()
        try:
            (pair.work / "go on").touch()
            await until("the standby says so", lambda: "the store does not answer" in pair.other.log_text())
            await until("the leader says so", lambda: "the store takes no beats" in pair.scheduler.log_text())
        finally:
            with long_lived("PostgreSQL once more"):
                postgres.start()
        job = await client.wait(job_id)
        assert (job.state, job.attempt_count, job.output_is_complete) == (SUCCEEDED, 1, True)
        assert await client.stdout(job_id) == b"begun\ndone\n"
        await pair.is_warm(pair.other)
        assert pair.term() == term, "nobody took over"
        assert await client.wait(await client.submit("true"))


async def test_submits_that_were_acknowledged_are_there_after_a_takeover_and_run_once(pair: Pair) -> None:
    await pair.add_node("n1", "--cpus", "16")
    token = pair.scheduler.token("admin")
    async with pair.client(token) as client:
        submitter = Submitter(client, RUNS)
        submits = [asyncio.ensure_future(submitter.submit(f"r{number}")) for number in range(SUBMITS)]
        await until("some are acknowledged", lambda: len(submitter.ids) > SUBMITS // 4)
        pair.scheduler.kill()
        await pair.serves(pair.other)
        await asyncio.gather(*submits)
        await each_ran_once(client, pair, submitter, SUBMITS)


def test_without_postgresql_nobody_stands_by(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    command = [sys.executable, "-P", "-m", "gpufleet.scheduler", "--standby", "--data", data]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean_environment(tmp_path, {}))
    assert done.returncode == 1
    assert "only schedulers that share a PostgreSQL stand by for each other" in done.stderr
    assert "--store postgresql://" in done.stderr
