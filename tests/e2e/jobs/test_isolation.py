"""Jobs of a node that runs each user's as that user, through the real programs."""

from __future__ import annotations

import os

import pytest
from gpufleet.v1 import job_pb2

from node_agent.control_groups.files import CONTROLLERS
from node_agent.control_groups.finding import find_groups
from tests.e2e.client import Client
from tests.e2e.files import file, upload
from tests.e2e.fleet import Fleet

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only an agent that is root runs jobs as other accounts")

RANGE = {"GPUCTL_AGENT_ISOLATION_USERS": "range"}
LIMIT_BYTES = 64_000_000
WORDS = b"as uploaded\n"
PROGRAM = b'#!/bin/sh\ncat words; pwd; id -u; echo $HOME; ls -A "$HOME" /tmp; echo changed > words && cat words\n'


async def test_a_job_with_files_is_its_users_and_reaches_neither_tokens_nor_its_agents_folder(
    fleet: Fleet, admin: Client
) -> None:
    agent = await fleet.add_node("n1", "--cpus", "2", environment=RANGE)
    for data in (PROGRAM, WORDS):
        await upload(admin, data)
    files = [file("run", PROGRAM, is_executable=True), file("words", WORDS)]
    job = await admin.wait(first := await admin.submit("./run", cwd="", files=files))
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED, (job.exit_reason, job.exit_message)
    said = (await admin.stdout(first)).decode().split()
    assert said[:5] == ["as", "uploaded", "/run/gpufleet/files", "1900000000", "/run/gpufleet/home"]
    assert said[-1] == "changed"

    token = fleet.scheduler.data / "admin.token"
    assert token.exists()
    for forbidden in (token, agent.data / "keeper"):
        job = await admin.wait(await admin.submit("/bin/cat", str(forbidden), cwd="/"))
        assert job.state == job_pb2.JOB_STATE_FAILED
        assert job.exit.code == 1

    # The agent dies and comes back: what runs goes on, and the uid stays.
    running = await admin.submit("/bin/sh", "-c", "echo begun; sleep 1000", cwd="/")
    await admin.wait(running, job_pb2.JOB_STATE_RUNNING)
    agent.kill()
    agent.spawn()
    again = await admin.submit("/usr/bin/id", "-u", cwd="/")
    await admin.wait(again)
    assert await admin.stdout(again) == b"1900000000\n"
    assert (await admin.job(running)).state == job_pb2.JOB_STATE_RUNNING
    await admin.cancel(running)
    await admin.wait(running)


async def test_a_job_that_takes_more_memory_than_it_reserved_fails_alone_and_says_so(
    fleet: Fleet, admin: Client
) -> None:
    if why := _no_limits():
        pytest.skip(why)
    await fleet.add_node("n1", "--cpus", "2", environment=RANGE)
    bystander = await admin.submit("/bin/sleep", "1000", cwd="/", memory_bytes=LIMIT_BYTES)
    eater = await admin.submit("/usr/bin/tail", "/dev/zero", cwd="/", memory_bytes=LIMIT_BYTES)
    job = await admin.wait(eater)
    assert (job.state, job.exit_reason, job.exit.signal) == (job_pb2.JOB_STATE_FAILED, "OUT_OF_MEMORY", 9)
    assert "MB at its peak, limit 64MB" in job.exit_message
    assert (job.attempt_count, job.requeue_count) == (1, 0)
    assert any("OUT_OF_MEMORY" in sentence for sentence in await admin.story(eater))
    assert (await admin.job(bystander)).state == job_pb2.JOB_STATE_RUNNING
    assert (await admin.run("/bin/true", cwd="/", memory_bytes=LIMIT_BYTES)).state == job_pb2.JOB_STATE_SUCCEEDED
    await admin.cancel(bystander)
    await admin.wait(bystander)


def _no_limits() -> str:
    facts = find_groups()
    return "" if facts.controllers == CONTROLLERS else f"no control groups: {facts.why_not}"
