"""How the processes of a job run: what it asks for is what a real process finds."""

from __future__ import annotations

import os
import resource

import pytest
from gpufleet.v1 import job_pb2

from tests.e2e.client import Client
from tests.e2e.fleet import Fleet

READ = """
import resource
while resource.getrlimit(resource.RLIMIT_NOFILE)[1] != {hard}:
    pass  # it is lowered right after the start
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def descriptors(soft: int, hard: int | None) -> job_pb2.ProcessSettings:
    return job_pb2.ProcessSettings(rlimits=[job_pb2.ResourceLimit(name="NOFILE", soft=soft, hard=hard)])


@pytest.mark.parametrize(("hard", "found"), [(None, 123), (456, 456)])
async def test_a_process_has_the_limits_that_were_asked_for(
    shared_fleet: Fleet, person: Client, hard: int | None, found: int
) -> None:
    job = await person.submit("python3", "-c", READ.format(hard=found), process=descriptors(123, hard))
    ended = await person.wait(job)
    assert ended.state == job_pb2.JOB_STATE_SUCCEEDED, ended.exit_message
    assert (await person.stdout(job)).decode().strip() == f"(123, {found})"


async def test_a_process_is_as_nice_as_was_asked_for_and_what_comes_after_it_is_not(
    shared_fleet: Fleet, person: Client
) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)  # that of the fleet's programs, too
    read = ("python3", "-c", "import os; print(os.getpriority(os.PRIO_PROCESS, 0))")
    for asked in (own + 3, 19, 0):
        job = await person.submit(*read, process=job_pb2.ProcessSettings(nice=min(asked, 19)))
        ended = await person.wait(job)
        assert ended.state == job_pb2.JOB_STATE_SUCCEEDED, ended.exit_message
        assert int(await person.stdout(job)) == max(own, min(asked, 19))


async def test_a_limit_above_that_of_the_agent_ends_the_job_before_it_begins_and_says_both(
    shared_fleet: Fleet, person: Client
) -> None:
    highest = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    ended = await person.run("true", process=descriptors(100, highest + 1))
    assert (ended.state, ended.exit_reason) == (job_pb2.JOB_STATE_FAILED, "RLIMIT_TOO_HIGH")
    assert f"{highest + 1} is above the agent's own hard limit, {highest}" in ended.exit_message
