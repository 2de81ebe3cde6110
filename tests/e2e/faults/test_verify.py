"""`gpuctl scheduler --verify` over what a scheduler stored: well, in use, damaged, with output that is not whole."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import psycopg
import pytest
from gpufleet.v1 import job_pb2

from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS, SchedulerProcess, clean_environment, until
from tests.store.postgres_server import PostgresServer
from tests.store.samples import behind_its_back

SCRIPT = "head -c 100000 /dev/zero; echo wrong >&2"


async def verify(scheduler: SchedulerProcess) -> tuple[int, str, str]:
    """The exit code, what was printed, and what was complained about."""
    process = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).with_name("gpuctl")), "scheduler", "--verify", *scheduler.flags),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=clean_environment(scheduler.log.parent, {}),
        cwd=scheduler.log.parent,
    )
    async with asyncio.timeout(DEADLINE_SECONDS):
        printed, complained = await process.communicate()
    assert process.returncode is not None
    return process.returncode, printed.decode(), complained.decode()


async def run_jobs(fleet: Fleet) -> None:
    """A job that wrote to both streams and ended, one that wrote nothing, one that waits; then the scheduler leaves."""
    await fleet.add_node("n1")
    async with fleet.client() as client:
        for script in (SCRIPT, "true"):
            assert (await client.run("sh", "-c", script)).exit.code == 0
        await client.submit_specs([client.spec("true", is_held=True)])
    await fleet.agents["n1"].stop()
    await fleet.scheduler.stop()


WELL = "all is well: 1 living and 2 ended jobs; the output of 1 is whole, that of 0 was dropped by age or size"


async def test_a_store_in_files_and_its_output(fleet: Fleet) -> None:
    code, printed, complained = await verify(fleet.scheduler)
    assert (code, printed) == (1, "")
    assert f"is in use by pid {fleet.scheduler.pid}" in complained and "stop that scheduler" in complained
    assert "of its own" not in complained
    fleet.scheduler.must_run()
    await run_jobs(fleet)
    code, printed, complained = await verify(fleet.scheduler)
    assert (code, complained) == (0, "") and printed.startswith(WELL), printed
    (output,) = fleet.scheduler.data.glob("output/*/*/1.0.*.stdout")
    whole = output.read_bytes()
    output.write_bytes(whole[:-1])
    code, printed, complained = await verify(fleet.scheduler)
    assert code == 1 and "troubleshooting" in complained
    assert printed == "output of 1/1: 99,999 bytes of stdout are stored, and the job ended with 100,000\n"
    output.unlink()
    code, printed, _ = await verify(fleet.scheduler)
    assert (code, printed.count("\n")) == (1, 1) and "0 bytes of stdout" in printed
    flipped = bytearray(whole)
    flipped[77_777] ^= 4
    output.write_bytes(flipped)
    code, printed, _ = await verify(fleet.scheduler)
    assert (code, printed) == (1, f"output of 1/1, stdout: bytes 0 to 100,000 of {output} are not what was written\n")
    output.write_bytes(whole)
    other = output.parent.with_name("999")
    shutil.copytree(output.parent, other)
    code, printed, _ = await verify(fleet.scheduler)
    assert code == 1 and printed.startswith("output of job 999 is stored, and no job above 3 was ever submitted here")
    shutil.rmtree(other)
    behind_its_back(f"sqlite:///{fleet.scheduler.data / 'scheduler.db'}", "UPDATE finished_job SET outcome = 'FAILED'")
    code, printed, _ = await verify(fleet.scheduler)
    assert (code, printed.count("its columns differ from its payload\n")) == (1, 2)
    await fleet.scheduler.start()


async def gpuctl(scheduler: SchedulerProcess, *words: str) -> str:
    """What gpuctl says, on both of its outputs."""
    process = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).with_name("gpuctl")), "--scheduler", scheduler.address),
        *("--token-file", str(scheduler.data / "admin.token"), *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=clean_environment(scheduler.log.parent, {}),
    )
    async with asyncio.timeout(DEADLINE_SECONDS):
        printed, _ = await process.communicate()
    return printed.decode()


async def test_an_output_folder_that_somebody_deleted_is_told_by_verify_logs_and_job(fleet: Fleet) -> None:
    async with fleet.client() as client:
        await fleet.add_node("n1")
        assert (await client.run("echo", "hello")).exit.code == 0
        shutil.rmtree(fleet.scheduler.data / "output")
        assert "6 bytes are left out here (offsets 0 to 6)" in await gpuctl(fleet.scheduler, "logs", "1")
        assert "6B (6B gone)" in await gpuctl(fleet.scheduler, "job", "1")
        assert (await client.run("echo", "goes on")).exit.code == 0
        assert await gpuctl(fleet.scheduler, "logs", "2") == "goes on\n"
    await fleet.scheduler.stop()
    code, printed, _ = await verify(fleet.scheduler)
    missing = (
        "output of job 1: nothing is stored, the job ended with 6 bytes, and none as new was ever dropped by age or"
    )
    assert (code, printed.count("\n")) == (1, 1) and printed.startswith(missing)
    await fleet.scheduler.start()
    assert "6 bytes are left out here (offsets 0 to 6)" in await gpuctl(fleet.scheduler, "logs", "1")


async def test_a_folder_without_a_store_is_refused_and_left_as_it_is(fleet: Fleet, tmp_path: Path) -> None:
    await fleet.scheduler.stop()
    other = SchedulerProcess(tmp_path / "nowhere")
    code, printed, complained = await verify(other)
    assert (code, printed) == (1, "")
    assert "nowhere/scheduler.db: there is no such file" in complained
    assert not other.data.exists()
    await fleet.scheduler.start()


@pytest.mark.nightly
@pytest.mark.postgres
async def test_a_store_in_postgresql_and_its_output(
    tmp_path: Path, postgres: PostgresServer, long_lived: Callable[[str], AbstractContextManager[None]]
) -> None:
    url = postgres.url(postgres.new_database())
    async with Fleet(tmp_path / "fleet", "--store", url) as fleet:
        code, _, complained = await verify(fleet.scheduler)
        assert code == 1 and f"is in use by gpufleet pid {fleet.scheduler.pid}" in complained
        await run_jobs(fleet)
        code, printed, complained = await verify(fleet.scheduler)
        assert (code, complained) == (0, "") and printed.startswith(WELL), printed
        flip = "UPDATE output_chunk SET data = set_byte(data, 9, get_byte(data, 9) # 1) WHERE start = 16384"
        with psycopg.connect(url) as connection:
            connection.execute(flip)
        code, printed, _ = await verify(fleet.scheduler)
        not_so = "output of 1/1, stdout: bytes 16,384 to 32,768 in output_chunk are not what was written\n"
        assert (code, printed) == (1, not_so)
        with psycopg.connect(url) as connection:
            connection.execute("DELETE FROM output_chunk WHERE start > 0")
        code, printed, _ = await verify(fleet.scheduler)
        assert code == 1
        assert printed == "output of 1/1: 16,384 bytes of stdout are stored, and the job ended with 100,000\n"
        with psycopg.connect(url) as connection:
            connection.execute("DELETE FROM meta")
        code, printed, _ = await verify(fleet.scheduler)
        assert (code, printed) == (1, "meta: 0 rows instead of one\n")
        with long_lived("PostgreSQL"):
            postgres.stop()
            try:
                code, printed, complained = await verify(fleet.scheduler)
            finally:
                postgres.start()
        assert (code, printed) == (1, "") and "the store cannot be used" in complained


async def test_output_that_was_cut_off_on_its_node_before_it_was_sent_is_told_and_waited_for_by_nobody(
    fleet: Fleet,
) -> None:
    agent = await fleet.add_node("n1")
    go = fleet.work / "go"
    async with fleet.client() as client:
        script = f"echo first; until [ -e {go} ]; do sleep 0.05; done; echo second; echo third"
        job = await client.submit("sh", "-c", script)
        await client.wait(job, job_pb2.JOB_STATE_RUNNING)
        (spool,) = agent.data.glob(f"keeper/attempts/{job}.*")
        await until("it has said something", lambda: any(each.stat().st_size for each in spool.glob("stdout.*")))
    await fleet.scheduler.stop()
    go.touch()
    await until("the attempt has ended", lambda: b'"end"' in (spool / "record").read_bytes())
    segments = sorted(spool.glob("stdout.*"))
    at = int(segments[-1].suffix[1:])
    os.truncate(segments[-1], len("first\nsec") - at)
    verified = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).with_name("gpuctl")), "agent", "--verify", "--data", str(agent.data)),
        stdout=asyncio.subprocess.PIPE,
        env=clean_environment(agent.log.parent, {}),
    )
    async with asyncio.timeout(DEADLINE_SECONDS):
        printed, _ = await verified.communicate()
    missing = "10 bytes of stdout are missing from its spool, which ends at byte 9"
    assert (verified.returncode, missing in printed.decode()) == (1, True), printed
    await fleet.scheduler.start()
    async with fleet.client() as client:
        ended = await client.wait(job, job_pb2.JOB_STATE_SUCCEEDED)
        assert not ended.output_is_complete
        assert await client.stdout(job) == b"first\nsec"
        (end,) = (line for line in await client.story(job) if "succeeded" in line)
        assert "its stdout is lost from byte 9 on" in end and "Not all of its output is stored." in end
    assert "19 bytes of stdout were written" in agent.log_text()


async def test_a_bit_that_flips_in_a_nodes_spool_is_told_where_it_is_and_all_else_is_stored(fleet: Fleet) -> None:
    agent = await fleet.add_node("n1")
    go = fleet.work / "go"
    whole = b"".join(b"%06d\n" % number for number in range(10_000))
    async with fleet.client() as client:
        script = (
            f"echo first; until [ -e {go} ]; do sleep 0.05; done; for n in $(seq 0 9999); do printf '%06d\\n' $n; done"
        )
        job = await client.submit("sh", "-c", script)
        await client.wait(job, job_pb2.JOB_STATE_RUNNING)
        (spool,) = agent.data.glob(f"keeper/attempts/{job}.*")
        await until("it has said something", lambda: any(each.stat().st_size for each in spool.glob("stdout.*")))
    await fleet.scheduler.stop()
    go.touch()
    await until("the attempt has ended", lambda: b'"end"' in (spool / "record").read_bytes())
    (segment,) = spool.glob("stdout.*")
    changed = bytearray(segment.read_bytes())
    assert changed == b"first\n" + whole
    changed[40_000] ^= 1
    segment.write_bytes(changed)
    verified = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).with_name("gpuctl")), "agent", "--verify", "--data", str(agent.data)),
        stdout=asyncio.subprocess.PIPE,
        env=clean_environment(agent.log.parent, {}),
    )
    async with asyncio.timeout(DEADLINE_SECONDS):
        printed, _ = await verified.communicate()
    named = "bytes 32,768 to 49,151 of stdout in its spool are not as they were written"
    assert (verified.returncode, named in printed.decode()) == (1, True), printed
    await fleet.scheduler.start()
    async with fleet.client() as client:
        ended = await client.wait(job, job_pb2.JOB_STATE_SUCCEEDED)
        assert not ended.output_is_complete
        assert await client.stdout(job) == bytes(changed), "all of it is there, the changed byte too"
        (warning,) = ended.warnings
        assert warning.kind == "OUTPUT_DAMAGED"
        assert warning.sentence.startswith("Bytes 32,768 to 49,151 of stdout are not as they were written")
        story = await client.story(job)
        assert warning.sentence in story
        assert any("succeeded" in line and "Not all of its output is stored." in line for line in story)
    assert "bytes 32768 to 49151 are damaged on disk" in agent.log_text()


async def test_a_write_ahead_log_that_is_gone_or_cut_off_is_named_though_sqlite_says_nothing(fleet: Fleet) -> None:
    await fleet.scheduler.stop()  # what was in its log is in the database now
    await fleet.scheduler.start()
    async with fleet.client() as client:
        await client.submit_specs([client.spec("true", is_held=True) for _ in range(3)])
        known = fleet.scheduler.data / "known-store.json"
        await until("the folder has seen them", lambda: json.loads(known.read_text())["next_job"] == 4)
    fleet.scheduler.kill()
    log = fleet.scheduler.data / "scheduler.db-wal"
    whole = log.read_bytes()
    assert len(whole) > 3 * 4096, "the commits are in it"
    code, printed, _ = await verify(fleet.scheduler)
    assert (code, printed[:11]) == (0, "all is well")
    for kept_bytes in (0, 31, len(whole) // 4, None):
        log.unlink() if kept_bytes is None else log.write_bytes(whole[:kept_bytes])
        (fleet.scheduler.data / "scheduler.db-shm").unlink(missing_ok=True)
        code, printed, complained = await verify(fleet.scheduler)
        assert code == 1, (kept_bytes, printed, complained)
        told = printed + complained
        assert "is older than it was" in told and "scheduler.db-wal was cut off or removed" in told, (kept_bytes, told)
    database = fleet.scheduler.data / "scheduler.db"
    database.rename(fleet.scheduler.data / "elsewhere")
    code, printed, _ = await verify(fleet.scheduler)
    assert (
        code == 1 and "there is no such file: the database is empty, and the data folder has seen one with" in printed
    )
    (fleet.scheduler.data / "elsewhere").rename(database)
    log.write_bytes(whole)
    await fleet.scheduler.start()
