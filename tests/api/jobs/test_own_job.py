"""The token that a running job has of itself: what it may do, to whom, for how long, and where it is never shown."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import Reason
from scheduler.api.own_job import JOB_NAMED_BY
from tests.api.calls import METHODS, Caller
from tests.api.test_owners import secret_of
from tests.api.test_roles import NOT_LET_IN, WITHOUT_TOKEN
from tests.e2e.client import Client, select, span
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until

MINE = (
    "StreamOutput Cancel GetJob GetStory Explain UpdateJob SignalJob RequeueJob GetJobStats "
    "KeepFiles ListFiles DownloadFile"
)
"""Written by hand, from what a job may want of itself."""

OF_NOTHING = {"KeepFiles": Reason.INVALID_ARGUMENT, "DownloadFile": Reason.FILE_NOT_FOUND}
"""What is answered to a job that keeps nothing, and has left nothing."""


class Running:
    """A job of ann's that runs, with the token that it found in its environment."""

    def __init__(self, ann: Client, job: int, token: str) -> None:
        self.ann = ann
        self.job = job
        self.token = token


@pytest.fixture
async def running(fleet: Fleet, admin: Client) -> AsyncIterator[Running]:
    async with fleet.client(await secret_of(admin, "ann")) as ann:
        running = await started(ann)
        yield running
        await admin.cancel(running.job)


async def started(owner: Client, **fields: Any) -> Running:
    """A job of this person's that runs and has said its token."""
    job = await owner.submit("sh", "-c", "echo $GPUFLEET_JOB_TOKEN; exec sleep 600", **fields)

    async def has_told() -> bool:
        await owner.wait(job, job_pb2.JOB_STATE_RUNNING)
        return (await owner.stdout(job, follow=False)).endswith(b"\n")

    await until("the job has said its token", has_told)
    return Running(owner, job, (await owner.stdout(job, follow=False)).decode().strip())


def limited(job_id: int, seconds: float | None) -> scheduler_pb2.UpdateJobRequest:
    """The request for another time limit, or for none."""
    limit = None if seconds is None else span(seconds)
    mask = FieldMask(paths=["time_limit"])
    return scheduler_pb2.UpdateJobRequest(jobs=select(job_id), update_mask=mask, time_limit=limit)


def naming(name: str, job_id: int) -> Any:
    """A request of this call that names this job, and asks for nothing that would change much."""
    jobs = select(job_id)
    special: dict[str, Message] = {
        "UpdateJob": scheduler_pb2.UpdateJobRequest(
            jobs=jobs, update_mask=FieldMask(paths=["band"]), band=job_pb2.BAND_LOW
        ),
        "SignalJob": scheduler_pb2.SignalJobRequest(jobs=jobs, signal=18),
        "Cancel": scheduler_pb2.CancelRequest(jobs=jobs),
        "RequeueJob": scheduler_pb2.RequeueJobRequest(jobs=jobs),
    }
    if name in special:
        return special[name]
    request: Any = GetMessageClass(METHODS[f"Scheduler/{name}"].input_type)()
    if "job_id" in request.DESCRIPTOR.fields_by_name:
        request.job_id = job_id
    return request


def test_a_job_may_ask_of_itself_what_stands_here() -> None:
    assert {f"Scheduler/{name}" for name in MINE.split()} == set(JOB_NAMED_BY)


async def test_a_job_reads_and_changes_itself_and_makes_no_other_call(running: Running, caller: Caller) -> None:
    for name in METHODS:
        service, _, call = name.partition("/")
        request = naming(call, running.job) if service == "Scheduler" else None
        if call in ("Cancel", "RequeueJob"):
            continue  # they end what the others need: below
        reason = await caller.reason(name, request, running.token)
        if call in MINE.split() or call == "GetServerInfo":
            assert reason is OF_NOTHING.get(call), f"{name}: {reason}"
        elif name in WITHOUT_TOKEN:
            assert reason is await caller.reason(name, request), f"{name}: a job is answered what anybody is"
            assert reason not in NOT_LET_IN, f"{name}: {reason}"
        else:
            assert reason is Reason.PERMISSION_DENIED, f"{name}: {reason}"
    assert (await running.ann.job(running.job)).spec.band == job_pb2.BAND_LOW


@pytest.mark.parametrize("name", MINE.split())
async def test_no_call_of_a_job_touches_another_one(running: Running, caller: Caller, admin: Client, name: str) -> None:
    """Neither a stranger's nor one of the same person's, whichever way it is named."""
    others = [await admin.submit("true", is_held=True), await running.ann.submit("true", is_held=True, name="other")]
    before = [await admin.job(each) for each in others]
    requests = [naming(name, each) for each in [*others, 1, 0, 10**12]]
    if hasattr(requests[0], "jobs"):
        for selector in (
            select(running.job, others[1]),
            scheduler_pb2.JobSelector(all_mine=True),
            scheduler_pb2.JobSelector(name="other"),
            scheduler_pb2.JobSelector(job_ids=[running.job], all_mine=True),
            scheduler_pb2.JobSelector(job_ids=[running.job], name="other"),
        ):
            request = naming(name, 0)
            request.jobs.CopyFrom(selector)
            requests.append(request)
    if name == "GetJob":
        requests += [scheduler_pb2.GetJobRequest(last=True), scheduler_pb2.GetJobRequest(name="other")]
    if name == "StreamOutput":
        log = scheduler_pb2.ProgramSelector(program="scheduler")
        requests.append(scheduler_pb2.StreamOutputRequest(program=log))
    for request in requests:
        error = await caller.error(f"Scheduler/{name}", request, running.token)
        assert error is not None and error.reason is Reason.PERMISSION_DENIED, request
        assert f"job {running.job}" in error.message and "--context" in error.next_step
    assert [await admin.job(each) for each in others] == before
    assert (await admin.job(running.job)).state == job_pb2.JOB_STATE_RUNNING
    await admin.cancel(*others)


@pytest.mark.parametrize("owner", ["user", "admin"])
async def test_a_job_may_shorten_its_own_time_limit_and_extend_none(
    fleet: Fleet, admin: Client, caller: Caller, owner: str
) -> None:
    """Its owner may be an admin: a job may do less with its token than that."""
    async with fleet.client(await secret_of(admin, "ann")) as ann:
        own = await started(ann if owner == "user" else admin, seconds=3_600)
        other = await own.ann.submit("true", is_held=True, seconds=3_600)
        before = await admin.job(other)
        for seconds in (7_200, None):
            error = await caller.error("Scheduler/UpdateJob", limited(own.job, seconds), own.token)
            assert error is not None and error.reason is Reason.TIME_LIMIT_REFUSED, seconds
            assert error.violations[0].field == "time_limit" and "at most 1h" in error.next_step
        assert (await admin.job(own.job)).spec.time_limit.ToSeconds() == 3_600
        for seconds in (1_800, 1_800, 900):
            assert await caller.error("Scheduler/UpdateJob", limited(own.job, seconds), own.token) is None
        assert (await admin.job(own.job)).spec.time_limit.ToSeconds() == 900
        assert await caller.reason("Scheduler/UpdateJob", limited(own.job, 3_600), own.token) is (
            Reason.TIME_LIMIT_REFUSED
        ), "what it gave away it does not get back"
        error = await caller.error("Scheduler/UpdateJob", limited(other, 60), own.token)
        assert error is not None and error.reason is Reason.PERMISSION_DENIED
        assert await admin.job(other) == before
        (told,) = [line for line in await admin.story(own.job) if "a time limit of 15m" in line]
        assert own.ann is admin or told.startswith("ann "), told
        await admin.cancel(own.job, other)


async def test_its_token_ends_with_its_attempt(running: Running, caller: Caller) -> None:
    assert await caller.reason("Scheduler/RequeueJob", naming("RequeueJob", running.job), running.token) is None

    async def has_a_new_one() -> bool:
        job = await running.ann.job(running.job)
        return job.attempt_count == 2 and job.state == job_pb2.JOB_STATE_RUNNING

    await until("the job runs again", has_a_new_one)
    reason = await caller.reason("Scheduler/GetJob", naming("GetJob", running.job), running.token)
    assert reason in (Reason.TOKEN_INVALID, Reason.TOKEN_REVOKED)


async def test_a_job_may_cancel_itself(running: Running, caller: Caller) -> None:
    assert await caller.reason("Scheduler/Cancel", naming("Cancel", running.job), running.token) is None
    assert (await running.ann.wait(running.job)).state == job_pb2.JOB_STATE_CANCELLED


async def test_a_jobs_token_is_shown_by_no_call_and_stands_in_no_file(
    fleet: Fleet, running: Running, admin: Client, caller: Caller
) -> None:
    answers = [
        await admin.job(running.job),
        await admin.queue(),
        await admin.stub.GetStory(scheduler_pb2.GetStoryRequest(job_id=running.job)),
        await admin.stub.ListTokens(scheduler_pb2.ListTokensRequest(page_size=1000)),
    ]
    assert not any(running.token in str(answer) for answer in answers)
    secret = running.token.encode()
    kept = [file for file in fleet.folder.rglob("*") if file.is_file() and secret in file.read_bytes()]
    # What the job itself wrote is its output, on its node and in the scheduler's folder.
    assert [file for file in kept if not file.name.startswith("stdout") and "output" not in file.parts[-4:]] == []


@pytest.mark.parametrize("change", [lambda t: t[:-1], lambda t: t + "x", str.swapcase, lambda t: t[:10] + "B" + t[11:]])
async def test_a_jobs_token_that_is_nearly_right_is_wrong(running: Running, caller: Caller, change: Any) -> None:
    reason = await caller.reason("Scheduler/GetJob", naming("GetJob", running.job), change(running.token))
    assert reason is Reason.TOKEN_INVALID
