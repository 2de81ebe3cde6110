"""What earlier releases left goes on with today's programs: stores, agents, gpuctl, workers, schedulers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from gpufleet.v1 import job_pb2, node_agent_pb2

from gpufleet.net import channel
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS, clean_environment, end_keepers, until
from tests.node_agent.fake_scheduler import FakeScheduler
from tests.releases.kept import Release, answered_calls, data_of, path_of, releases
from tests.releases.old_agent import HEARTBEAT, OldAgent
from tests.releases.wire import DOWN, UP, Recorder

pytestmark = [pytest.mark.nightly, pytest.mark.slow]

STATES = {
    "ended": job_pb2.JOB_STATE_SUCCEEDED,
    "failed": job_pb2.JOB_STATE_FAILED,
    "held": job_pb2.JOB_STATE_HELD,
    "cancelled": job_pb2.JOB_STATE_CANCELLED,
    "stopped": job_pb2.JOB_STATE_CANCELLED,
    "running": job_pb2.JOB_STATE_RUNNING,
    "queued": job_pb2.JOB_STATE_QUEUED,
}
KEPT_FOR_LONG = {"GPUCTL_SCHEDULER_RETENTION": "3650d", "GPUCTL_SCHEDULER_LIMITS_REQUEST_ID_RETENTION": "3650d"}
"""The kept store is older than what a scheduler would keep."""

READS = (
    "Queue",
    "GetJob",
    "GetStory",
    "StreamOutput",
    "ListNodes",
    "ListUsage",
    "ListEndedJobs",
    "ListTokens",
    "ListSecrets",
)
"""Calls whose answers hold what they held, as long as nothing else was done."""


@pytest.fixture(params=releases(), ids=lambda release: release.name)
def release(request: pytest.FixtureRequest) -> Release:
    found: Release = request.param
    return found


@pytest.fixture
async def opened(release: Release, tmp_path: Path) -> AsyncIterator[Fleet]:
    """Today's scheduler on the store of the release; nobody has dialled it."""
    data = tmp_path / "kept"
    release.unpack_store(data)
    async with Fleet(tmp_path / "fleet", environment=KEPT_FOR_LONG, data=data) as fleet:
        yield fleet


def test_the_first_release_is_kept() -> None:
    assert [release.name for release in releases()][:1] == ["0.1.0"]


async def test_everything_in_its_store_is_there_after_todays_scheduler_opened_it(
    release: Release, opened: Fleet
) -> None:
    async with opened.client() as admin:
        for name, state in STATES.items():
            job = await admin.job(release.jobs[name])
            assert (job.spec.name, job_pb2.JobState.Name(job.state)) == (name, job_pb2.JobState.Name(state))
        output = await admin.output(release.jobs["ended"])
        assert sorted(output.values()) == [b"hello\n", b"trouble\n"]
        assert await admin.stdout(release.jobs["running"], follow=False) == b"before\n"


async def test_its_agent_goes_on_with_todays_scheduler_and_understands_each_command(
    release: Release, opened: Fleet
) -> None:
    agent = OldAgent(release, opened.scheduler.address)
    await agent.run()
    assert agent.not_understood == []
    async with opened.client() as admin:
        for name, printed in (("running", b"before\nafter\n"), ("queued", b"queued\n")):
            job = await admin.wait(release.jobs[name])
            assert job_pb2.JobState.Name(job.state) == "JOB_STATE_SUCCEEDED"
            assert len(job.attempts) == 1, "it was started anew"
            assert await admin.stdout(release.jobs[name]) == printed


async def test_its_gpuctl_is_answered_with_what_it_knows(release: Release, opened: Fleet) -> None:
    calls = [each for each in answered_calls(release.before) if path_of(each).rpartition("/")[2] in READS]
    assert len(calls) >= len(READS)
    options = channel.client_options()
    async with grpc.aio.insecure_channel(opened.scheduler.address, options=options) as line:
        for call in calls:
            path, (request,) = path_of(call), data_of(call, UP)
            asking: Any = _bytes_calls(line).unary_stream(path)(
                request, metadata=call[0].metadata, timeout=DEADLINE_SECONDS
            )
            answers = [release.answered(path, data) async for data in asking]
            assert _said(answers) >= _said([release.answered(path, each) for each in data_of(call, DOWN)]), path
            del asking


def _bytes_calls(line: grpc.aio.Channel) -> Any:
    """The channel, whose stubs' types do not know calls of bytes."""
    return line


def _said(answers: list[Any]) -> set[str]:
    """Which fields of the messages say something."""
    return {field.name for answer in answers for field, _ in answer.ListFields()}


async def test_its_worker_and_its_gateway_are_taken(release: Release, opened: Fleet) -> None:
    """The first words of each stream are answered; what a worker says needs its job, which no node runs here."""
    options = channel.client_options()
    async with grpc.aio.insecure_channel(opened.scheduler.address, options=options) as line:
        for name in ("ConnectWorker", "OpenSession"):
            call = next(each for each in answered_calls(release.before) if path_of(each).endswith(f"/{name}"))
            path, first = path_of(call), data_of(call, UP)[0]
            stream: Any = _bytes_calls(line).stream_stream(path)(metadata=call[0].metadata, timeout=DEADLINE_SECONDS)
            await stream.write(first)
            answer: Any = release.answered(path, await stream.read())
            assert answer.ListFields(), f"{path} is answered with what {release.name} does not know"
            stream.cancel()
            del stream


async def test_todays_agent_serves_a_scheduler_of_the_release(release: Release, tmp_path: Path) -> None:
    launch = _launch_of(release, release.jobs["queued"])
    async with FakeScheduler() as scheduler, Recorder(scheduler.address) as recorder:
        agent = await _agent(tmp_path, scheduler, recorder.address)
        try:
            await until("the agent has come", lambda: scheduler.inventories)
            key = (launch.key.job_id, launch.key.attempt, launch.key.rank)
            scheduler.known.add(key)
            scheduler.command(launch=launch)
            await until("the job has ended", lambda: key in scheduler.finished)
        finally:
            agent.terminate()
            await agent.wait()
            await end_keepers(tmp_path / "agent")
        assert scheduler.exited[key].exit.code == 0
        assert bytes(scheduler.outputs[(*key, job_pb2.STREAM_STDOUT)].data) == b"queued\n"
        _all_understood(release, recorder)


def _launch_of(release: Release, job: int) -> node_agent_pb2.Launch:
    """The launch of a job as the release's scheduler sent it, read by today's agent."""
    for call in answered_calls(release.after):
        if path_of(call) == HEARTBEAT:
            for data in data_of(call, DOWN):
                message = node_agent_pb2.HeartbeatResponse.FromString(data)
                for each in (message, *message.more):
                    if each.HasField("launch") and each.launch.key.job_id == job:
                        return each.launch
    raise AssertionError(f"{release.name} launched no job {job}")


async def _agent(folder: Path, scheduler: FakeScheduler, address: str) -> asyncio.subprocess.Process:
    token = folder / "token"
    token.write_text(scheduler.token)
    token.chmod(0o600)
    more = {"GPUCTL_AGENT_ISOLATION_USERS": "shared"}
    flags = ("--scheduler", address, "--node-id", "n1", "--token-file", str(token), "--virtual-gpus", "2")
    with (folder / "agent.log").open("wb") as log:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "gpufleet.node_agent", *flags, "--data", str(folder / "agent")),
            env=clean_environment(folder, more),
            stdout=log,
            stderr=log,
        )


def _all_understood(release: Release, recorder: Recorder) -> None:
    """Everything that today's agent said means to the release's descriptors what it means to today's."""
    for call in answered_calls(recorder.lines):
        path = path_of(call)
        assert path in release.methods, f"{release.name} has no {path}"
        for data in data_of(call, UP):
            message: Any = release.asked(path, data)
            if path == HEARTBEAT:
                today = node_agent_pb2.HeartbeatRequest.FromString(data)
                assert message.WhichOneof("body") == today.WhichOneof("body")
