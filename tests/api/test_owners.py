"""Whose job it is, and who may not touch it: every call that changes jobs, with another person's token."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import Reason
from tests.api.calls import Caller
from tests.e2e.client import Client, refusal, select
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS


async def secret_of(admin: Client, user: str) -> str:
    """A new token's secret."""
    request = scheduler_pb2.CreateTokenRequest(user=user, role=scheduler_pb2.ROLE_USER)
    return str((await admin.stub.CreateToken(request)).secret)


async def test_another_persons_job_is_changed_by_nobody_but_an_admin(fleet: Fleet, admin: Client) -> None:
    anns, bobs = await secret_of(admin, "ann@lab"), await secret_of(admin, "bob")
    async with fleet.client(anns) as ann, fleet.client(bobs) as bob:
        job, own = await ann.submit("true", is_held=True), await bob.submit("true", is_held=True)
        before = await ann.job(job)
        its = select(job)
        hold, band = FieldMask(paths=["is_held"]), FieldMask(paths=["band"])
        for call in (
            bob.stub.Cancel(scheduler_pb2.CancelRequest(jobs=its)),
            bob.stub.Cancel(scheduler_pb2.CancelRequest(jobs=select(own, job))),
            bob.stub.Cancel(scheduler_pb2.CancelRequest(jobs=its, abandon=True)),
            bob.stub.UpdateJob(scheduler_pb2.UpdateJobRequest(jobs=its, update_mask=hold)),
            bob.stub.UpdateJob(scheduler_pb2.UpdateJobRequest(jobs=its, update_mask=band, band=job_pb2.BAND_LOW)),
            bob.stub.SignalJob(scheduler_pb2.SignalJobRequest(jobs=its, signal=15)),
            bob.stub.RequeueJob(scheduler_pb2.RequeueJobRequest(jobs=its)),
        ):
            error = await refusal(call)
            assert error.reason is Reason.NOT_YOUR_JOB
            assert "ann@lab" in str(error)
            assert error.next_step
        assert await ann.job(job) == before
        assert (await bob.job(own)).state == job_pb2.JOB_STATE_HELD, "all or none"
        all_mine = scheduler_pb2.CancelRequest(jobs=scheduler_pb2.JobSelector(all_mine=True))
        assert [change.job_id for change in (await bob.stub.Cancel(all_mine)).changes] == [own]
        (change,) = await admin.cancel(job)
        assert change.changed
        assert change.state == job_pb2.JOB_STATE_CANCELLED


async def test_only_admins_read_the_logs_of_programs(fleet: Fleet, admin: Client) -> None:
    request = scheduler_pb2.StreamOutputRequest(program=scheduler_pb2.ProgramSelector(program="scheduler"))
    async with fleet.client(await secret_of(admin, "bob")) as bob:
        error = await refusal(bob.stub.StreamOutput(request))
    assert error.reason is Reason.PERMISSION_DENIED
    messages = [message async for message in admin.stub.StreamOutput(request, timeout=DEADLINE_SECONDS)]
    assert messages[-1].is_end


@pytest.mark.parametrize("change", [lambda t: t[:-1], lambda t: t + "x", str.swapcase, lambda t: t * 200])
async def test_a_token_that_is_nearly_right_is_wrong(
    fleet: Fleet, caller: Caller, change: Callable[[str], str]
) -> None:
    secret = change(fleet.scheduler.token("admin"))
    assert await caller.reason("Scheduler/Queue", token=secret) is Reason.TOKEN_INVALID
