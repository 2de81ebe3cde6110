"""Two schedulers that are started at once, and a standby unlike its leader: another clock, another version."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from google.protobuf.duration_pb2 import Duration
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.config.scheduler_settings import SchedulerSettings
from gpufleet.errors import GpufleetError, Reason
from scheduler.known_store import KnownStore, Memory, read_known, write_known
from scheduler.leading.standing_by import StandBy
from scheduler.store.migrations import NEWEST_REVISION, upgrade
from scheduler.store.opening import database_at, open_store
from tests.devices.fake_nvml import compiler
from tests.e2e.processes import SchedulerProcess, until
from tests.leading.at_once import Both, go_rounds
from tests.leading.pair import Pair
from tests.store.samples import job, submit

pytestmark = pytest.mark.postgres

ROUNDS = 2
HOUR_SECONDS = 3_600
RUNNING, QUEUED, SUCCEEDED = job_pb2.JOB_STATE_RUNNING, job_pb2.JOB_STATE_QUEUED, job_pb2.JOB_STATE_SUCCEEDED
OLDER_REVISION = "0007"


async def test_of_two_that_are_started_at_once_one_leads_and_the_other_takes_over(tmp_path: Path, url: str) -> None:
    """A hundred times: `python -m tests.leading.at_once --rounds 100`."""
    await go_rounds(Both(tmp_path / "both", url), ROUNDS)


@pytest.fixture
def clock_library(tmp_path: Path) -> Path:
    """What makes the clock of a program differ, compiled."""
    command = compiler()
    if command is None:
        pytest.skip("a clock that is off needs gcc; Debian, Ubuntu: apt-get install gcc libc6-dev")
    library = tmp_path / "clock_ahead.so"
    source = Path(__file__).with_name("clock_ahead.c")
    flags = ("-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
    subprocess.run([command, *flags, "-o", str(library), str(source), "-ldl"], check=True)
    return library


def clock_with(variables: dict[str, str]) -> float:
    """What a program believes to be the time."""
    command = [sys.executable, "-c", "import time; print(time.time())"]
    return float(subprocess.run(command, env=os.environ | variables, capture_output=True, check=True).stdout)


@pytest.mark.parametrize("ahead_seconds", [HOUR_SECONDS, -HOUR_SECONDS])
async def test_a_standby_whose_clock_is_an_hour_off_takes_over_and_no_wait_ends_early_or_late(
    tmp_path: Path, url: str, clock_library: Path, ahead_seconds: int
) -> None:
    pair = Pair(tmp_path / "fleet", url)
    off = {"LD_PRELOAD": str(clock_library), "CLOCK_AHEAD_SECONDS": str(ahead_seconds)}
    pair.other.environment.update(off)
    assert abs(clock_with(off) - time.time() - ahead_seconds) < HOUR_SECONDS / 2, "programs have that clock"
    async with pair:
        await pair.add_node("n1", "--cpus", "1")
        half_an_hour = Duration(seconds=HOUR_SECONDS // 2)
        wanted = scheduler_pb2.CreateTokenRequest(user="ada", role=scheduler_pb2.ROLE_USER, valid_for=half_an_hour)
        async with pair.client() as client:
            runs = await client.submit(
                "sh", "-c", "until test -e 'go on'; do sleep 0.01; done; echo done", cpus=1, seconds=HOUR_SECONDS / 2
            )
            await client.wait(runs, RUNNING)
            waits = await client.submit("true", cpus=1)
            token = (await client.stub.CreateToken(wanted)).secret
            admin = pair.scheduler.token("admin")
        pair.scheduler.kill()
        await pair.serves(pair.other)
        async with pair.client(token) as client:
            assert (await client.job(runs)).state == RUNNING, "the token of half an hour is good, and the job runs"
        async with pair.client(admin) as client:
            assert (await client.job(waits)).state == QUEUED
            (pair.work / "go on").touch()
            job_now = await client.wait(runs)
            assert (job_now.state, job_now.attempt_count, job_now.output_is_complete) == (SUCCEEDED, 1, True)
            assert await client.stdout(runs) == b"done\n"
            last = await client.wait(waits)
            for each in (job_now, last):
                took = each.end_time.ToDatetime() - each.submit_time.ToDatetime()
                assert timedelta(0) < took < timedelta(seconds=HOUR_SECONDS / 2), "both count by one clock"


def revision_of_tables(url: str) -> str:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT version_num FROM schema_revision").fetchone()
    assert row is not None
    return str(row[0])


async def test_a_newer_standby_leaves_the_tables_of_an_older_leader_until_it_takes_over(
    tmp_path: Path, url: str
) -> None:
    # An older version leads: it has the lock, and no row that says so.
    with closing(database_at(url)) as older:
        with older.engine.begin() as connection:
            upgrade(connection, to=OLDER_REVISION)
        standby = SchedulerProcess(tmp_path / "data", ("--store", url, "--standby"))
        standby.spawn("--port", "0")
        told = f"an older version made its tables (revision {OLDER_REVISION}, now {NEWEST_REVISION})"
        try:
            await until("it says so", lambda: standby.must_run() and told in standby.log_text())
            assert revision_of_tables(url) == OLDER_REVISION
            assert not (standby.data / "listening").exists()
            older.close()
            await until("it leads", lambda: standby.must_run() and (standby.data / "listening").exists())
            assert revision_of_tables(url) == NEWEST_REVISION
            assert await standby.stop() == 0
        finally:
            standby.kill()


async def test_an_older_standby_does_not_touch_the_tables_of_a_newer_leader(tmp_path: Path, url: str) -> None:
    open_store(url).close()
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE schema_revision SET version_num = '9999'")
    with closing(database_at(url)):
        standby = SchedulerProcess(tmp_path / "data", ("--store", url, "--standby"))
        standby.spawn("--port", "0")
        assert await standby.ended() == 1
    assert "a newer version of this program made the store's tables" in standby.log_text()
    assert "Traceback" not in standby.log_text()
    assert revision_of_tables(url) == "9999"


async def test_a_standby_of_another_store_or_of_an_older_one_is_refused_and_forgets_nothing(
    tmp_path: Path, url: str
) -> None:
    settings = SchedulerSettings(data=tmp_path, store=url)
    with closing(open_store(url)) as store:
        store.commit(submit(1, job(1)))
        newest = store.newest_sequence()
        own = KnownStore(store_id=store.store_id, lineage=store.lineage, term=1, sequence=newest + 1, next_job=9)
        for known, why in (
            (replace(own, store_id="another"), "is not that of this data folder"),
            (own, "the database is older than it was"),
        ):
            write_known(tmp_path, known)
            with pytest.raises(GpufleetError, match=why) as refused:
                await StandBy(settings, Memory(tmp_path)).lead(asyncio.Event())
            assert refused.value.reason is Reason.STORE_RESTORED
            assert "--accept-restored" in refused.value.next_step
            assert read_known(tmp_path) == known
        stopping = asyncio.Event()
        stands_by = asyncio.create_task(StandBy(settings, Memory(tmp_path, accepts=True)).lead(stopping))

        def has_come_to(sequence: int) -> bool:
            known = read_known(tmp_path)
            return known is not None and known.sequence == sequence

        await until("one that is told to accept it stands by", lambda: has_come_to(newest))
        stopping.set()
        assert await stands_by is None


async def test_a_standby_ends_when_its_database_is_put_back_behind_what_it_has_followed(
    tmp_path: Path, url: str
) -> None:
    with closing(open_store(url)) as store:
        store.commit(submit(1, job(1)))
        before = store.newest_sequence()
        store.commit(submit(2, job(2)))
        stands_by = asyncio.create_task(
            StandBy(SchedulerSettings(data=tmp_path, store=url), Memory(tmp_path)).lead(asyncio.Event())
        )

        def has_followed() -> bool:
            known = read_known(tmp_path)
            return known is not None and known.sequence == store.newest_sequence()

        await until("it has followed", has_followed)
        with psycopg.connect(url) as connection:
            connection.execute("DELETE FROM record WHERE seq > %s", (before,))
            connection.execute("UPDATE meta SET record_seq = %s", (before,))
        with pytest.raises(GpufleetError, match="the database is older than it was"):
            await stands_by
