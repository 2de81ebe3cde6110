"""Another time limit, name and band for jobs that wait or run, through real processes and over their restarts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from gpufleet.v1 import job_pb2, node_pb2, scheduler_pb2

from gpufleet.errors import Reason
from tests.e2e.client import Client, refusal, select, span
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until

HOUR = 3_600
OBEDIENT = "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done"


@asynccontextmanager
async def person(fleet: Fleet, user: str) -> AsyncIterator[Client]:
    """Somebody of role user."""
    async with fleet.client() as admin:
        request = scheduler_pb2.CreateTokenRequest(user=user, role=scheduler_pb2.ROLE_USER)
        secret = (await admin.stub.CreateToken(request)).secret
    async with fleet.client(secret) as client:
        yield client


def updated(*jobs: int, paths: str = "time_limit", seconds: float | None = None, **fields: Any) -> Any:
    limit = None if seconds is None else span(seconds)
    mask = FieldMask(paths=paths.split())
    return scheduler_pb2.UpdateJobRequest(jobs=select(*jobs), update_mask=mask, time_limit=limit, **fields)


async def limit_of(client: Client, job: int) -> float | None:
    spec = (await client.job(job)).spec
    return spec.time_limit.ToSeconds() if spec.HasField("time_limit") else None


async def test_an_owner_shortens_a_running_job_and_only_an_admin_lets_it_run_for_longer(
    fleet: Fleet, admin: Client
) -> None:
    await fleet.add_node()
    async with person(fleet, "ann") as ann:
        job = await ann.submit("sh", "-c", OBEDIENT, seconds=HOUR)
        await ann.wait(job, job_pb2.JOB_STATE_RUNNING)
        for seconds in (2 * HOUR, None):
            error = await refusal(ann.stub.UpdateJob(updated(job, seconds=seconds)))
            assert (error.reason, error.violations[0].field) == (Reason.TIME_LIMIT_REFUSED, "time_limit")
        assert await limit_of(ann, job) == HOUR, "what is refused changes nothing"
        await admin.stub.UpdateJob(updated(job, seconds=3 * HOUR))
        assert await limit_of(ann, job) == 3 * HOUR

        # A scheduler that starts anew knows it, and so does the node.
        await fleet.scheduler.stop()
        await fleet.scheduler.start()
        await fleet.node_is_ready("n1")
    async with fleet.client() as again:
        assert await limit_of(again, job) == 3 * HOUR
        (change,) = (await again.stub.UpdateJob(updated(job, seconds=3 * HOUR))).changes
        assert (change.changed, change.message) == (False, f"job {job} is like that already")
        await again.stub.UpdateJob(updated(job, seconds=0.5))
        ended = await again.wait(job)
        assert ended.state == job_pb2.JOB_STATE_TIMED_OUT, await again.story(job)
        assert await again.stdout(job) == b"ready\nbye\n", "by the grace rule"
        told = [line for line in await again.story(job) if " gave job " in line]
        assert [line.partition(" gave ")[2] for line in told] == [
            f"job {job} a time limit of 3h.",
            f"job {job} a time limit of 500ms.",
        ]


async def test_a_node_that_was_away_hears_of_the_limit_when_it_is_back_and_the_keeper_holds_it_alone(
    fleet: Fleet, admin: Client
) -> None:
    agent = await fleet.add_node()
    job = await admin.submit("sh", "-c", OBEDIENT, seconds=HOUR)
    longer = await admin.submit("sh", "-c", OBEDIENT, seconds=HOUR)
    for each in (job, longer):
        await admin.wait(each, job_pb2.JOB_STATE_RUNNING)
    agent.kill()

    async def is_away() -> bool:
        return bool((await admin.node("n1")).state != node_pb2.NODE_STATE_READY)

    await until("the node is away", is_away)
    await admin.stub.UpdateJob(updated(job, seconds=0.5))
    await admin.stub.UpdateJob(updated(longer, seconds=2 * HOUR, paths="time_limit name", name="longer"))
    agent.spawn()
    ended = await admin.wait(job)
    assert ended.state == job_pb2.JOB_STATE_TIMED_OUT, await admin.story(job)
    still = await admin.job(longer)
    assert (still.state, still.spec.name) == (job_pb2.JOB_STATE_RUNNING, "longer")
    await admin.cancel(longer)
    await admin.wait(longer)


async def test_a_waiting_job_is_renamed_limited_and_moved_at_once_or_not_at_all(fleet: Fleet, admin: Client) -> None:
    async with person(fleet, "ann") as ann:
        job = await ann.submit("true", is_held=True, name="before")
        everything = "time_limit name band"
        error = await refusal(
            ann.stub.UpdateJob(updated(job, paths=everything, seconds=60, name="x", band=job_pb2.BAND_URGENT))
        )
        assert error.reason is Reason.BAND_REFUSED
        assert ((await ann.job(job)).spec.name, await limit_of(ann, job)) == ("before", None)
        await ann.stub.UpdateJob(updated(job, paths=everything, seconds=60, name="after", band=job_pb2.BAND_LOW))
        spec = (await ann.job(job)).spec
        assert (spec.name, spec.band, spec.time_limit.seconds) == ("after", job_pb2.BAND_LOW, 60)
        async with person(fleet, "bob") as bob:
            error = await refusal(bob.stub.UpdateJob(updated(job, seconds=1)))
            assert error.reason is Reason.NOT_YOUR_JOB


async def test_an_array_is_changed_as_a_whole_and_an_item_keeps_its_arrays_name(fleet: Fleet, admin: Client) -> None:
    spec = admin.spec("true", is_held=True, seconds=60)
    spec.array.indices = "1-5"
    array = (await admin.submit_specs([spec])).first_job_id
    await admin.stub.UpdateJob(updated(array + 2, seconds=20))
    error = await refusal(admin.stub.UpdateJob(updated(array + 2, paths="name", name="mine")))
    assert error.violations[0].field == "name" and f"gpuctl update {array} --name NAME" in error.next_step
    await admin.stub.UpdateJob(updated(array, paths="time_limit name", seconds=30, name="every"))
    for each in range(array, array + 6):
        assert ((await admin.job(each)).spec.name, await limit_of(admin, each)) == ("every", 30)


@pytest.mark.parametrize(("asked", "seconds"), [("signal", 4.0), ("signal", None), ("requeue", None)])
async def test_what_comes_at_the_limit_needs_one(shared_fleet: Fleet, asked: str, seconds: float | None) -> None:
    fields: dict[str, Any] = {"requeue_on_timeout": True}
    if asked == "signal":
        fields = {"limit_signal": job_pb2.LimitSignal(signal=10, before=span(5))}
    async with shared_fleet.client() as admin:
        job = await admin.submit("true", is_held=True, seconds=60, **fields)
        try:
            error = await refusal(admin.stub.UpdateJob(updated(job, seconds=seconds)))
            assert (error.reason, error.violations[0].field) == (Reason.INVALID_ARGUMENT, "time_limit")
            assert await limit_of(admin, job) == 60
        finally:
            await admin.cancel(job)
