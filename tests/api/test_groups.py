"""Groups over the contract: who sees which, who changes them, and what others try."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from gpufleet.v1 import job_pb2, scheduler_pb2, sessions_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.status import from_rpc_error
from tests.e2e.client import Client, select
from tests.e2e.fleet import Fleet

pytestmark = pytest.mark.asyncio

s = scheduler_pb2


@asynccontextmanager
async def person(fleet: Fleet, user: str, role: s.Role.ValueType = s.ROLE_USER) -> AsyncIterator[Client]:
    """Somebody with a token of their own."""
    async with fleet.client() as admin:
        secret = (await admin.stub.CreateToken(s.CreateTokenRequest(user=user, role=role))).secret
    async with fleet.client(secret) as client:
        yield client


async def refused(call: Awaitable[object]) -> GpufleetError:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    return from_rpc_error(failure.value)


async def names(client: Client, name: str = "") -> list[str]:
    return [each.name for each in (await client.stub.ListGroups(s.ListGroupsRequest(name=name))).groups]


async def submitted(client: Client, group: str = "", **fields: object) -> job_pb2.Job:
    spec = job_pb2.JobSpec(argv=["true"], cwd="/", group=group, is_held=True, **fields)  # type: ignore[arg-type]
    return (await client.stub.Submit(s.SubmitRequest(specs=[spec]))).job


async def test_a_user_sees_their_own_groups_and_changes_none(fleet: Fleet) -> None:
    async with fleet.client() as admin, person(fleet, "gina") as gina, person(fleet, "hugo") as hugo:
        made = await admin.stub.SetGroup(
            s.SetGroupRequest(name="seen-ml", gpus_max=8, gpu_hours_week=500, shares=3, add_members=["gina", "nobody"])
        )
        assert made.is_new and made.changed
        assert [note.partition(" ")[0] for note in made.notes] == ["no"]
        await admin.stub.SetGroup(s.SetGroupRequest(name="seen-vision", add_members=["hugo"]))
        assert await names(gina) == ["seen-ml"]
        assert await names(hugo) == ["seen-vision"]
        assert await names(gina, "seen-vision") == []
        assert {"seen-ml", "seen-vision"} <= set(await names(admin))
        async with person(fleet, "vera", s.ROLE_VIEWER) as viewer:
            assert {"seen-ml", "seen-vision"} <= set(await names(viewer))
        for call in (
            gina.stub.SetGroup(s.SetGroupRequest(name="seen-ml", gpus_max=0)),
            gina.stub.RenameGroup(s.RenameGroupRequest(name="seen-ml", new_name="mine")),
            gina.stub.RemoveGroup(s.RemoveGroupRequest(name="seen-ml")),
        ):
            assert (await refused(call)).reason is Reason.PERMISSION_DENIED
        (group,) = (await gina.stub.ListGroups(s.ListGroupsRequest())).groups
        assert (group.gpus_max, group.gpu_hours_week, group.shares) == (8, 500, 3)
        assert [(each.user, each.is_default) for each in group.members] == [("gina", True), ("nobody", True)]


async def test_pages_of_groups_come_in_the_order_of_their_names(fleet: Fleet) -> None:
    async with fleet.client() as admin, person(fleet, "paul") as paul:
        for name in ("page-c", "page-a", "page-b"):
            await admin.stub.SetGroup(s.SetGroupRequest(name=name, add_members=["paul"]))
        found: list[str] = []
        token = ""
        while True:
            page = await paul.stub.ListGroups(s.ListGroupsRequest(page_size=1, page_token=token))
            found += [each.name for each in page.groups]
            token = page.next_page_token
            if not token:
                break
        assert found == ["page-a", "page-b", "page-c"]


async def test_a_job_is_given_back_with_the_name_that_its_group_has_now(fleet: Fleet) -> None:
    async with fleet.client() as admin, person(fleet, "nora") as nora, person(fleet, "otto") as otto:
        await admin.stub.SetGroup(s.SetGroupRequest(name="now-one", add_members=["nora"]))
        await admin.stub.SetGroup(s.SetGroupRequest(name="now-two", add_members=["nora", "otto"]))
        job = await submitted(nora)
        assert job.spec.group == "now-one"
        assert (await submitted(nora, "now-two")).spec.group == "now-two"
        stranger = await refused(submitted(otto, "now-one"))
        unknown = await refused(submitted(otto, "now-three"))
        assert stranger.reason is unknown.reason is Reason.GROUP_NOT_FOUND
        assert [each.field for each in stranger.violations] == ["specs[0].group"]
        assert stranger.message.replace("now-one", "now-three") == unknown.message  # nothing of others is told
        await admin.stub.RenameGroup(s.RenameGroupRequest(name="now-one", new_name="now-uno"))
        shown = (await nora.stub.GetJob(s.GetJobRequest(job_id=job.id))).job
        assert (shown.spec.group, shown.group_is_removed) == ("now-uno", False)
        await admin.stub.RemoveGroup(s.RemoveGroupRequest(name="now-uno"))
        shown = (await nora.stub.GetJob(s.GetJobRequest(job_id=job.id))).job
        assert (shown.spec.group, shown.group_is_removed) == ("now-uno", True)
        assert (await refused(submitted(nora, "now-uno"))).reason is Reason.GROUP_NOT_FOUND


async def test_everybody_sees_the_group_of_a_job_and_nothing_else_of_it(fleet: Fleet) -> None:
    async with (
        fleet.client() as admin,
        person(fleet, "iris") as iris,
        person(fleet, "jack") as jack,
        person(fleet, "kate", s.ROLE_VIEWER) as kate,
    ):
        await admin.stub.SetGroup(s.SetGroupRequest(name="open-ml", gpus_max=7, add_members=["iris"]))
        job = await submitted(iris)
        for other in (jack, kate):
            assert (await other.job(job.id)).spec.group == "open-ml"
            queued = (await other.stub.Queue(s.QueueRequest(page_size=1000))).jobs
            assert [each.spec.group for each in queued if each.id == job.id] == ["open-ml"]
        assert await names(jack) == []
        await admin.cancel(job.id)


async def test_nobody_gets_above_the_highest_band_of_their_group(fleet: Fleet) -> None:
    async with fleet.client() as admin, person(fleet, "liza") as liza:
        await admin.stub.SetGroup(s.SetGroupRequest(name="low", max_band=job_pb2.BAND_LOW, add_members=["liza"]))
        job = await submitted(liza)
        assert job.spec.band == job_pb2.BAND_LOW
        told = await refused(submitted(liza, band=job_pb2.BAND_NORMAL))
        assert told.reason is Reason.BAND_REFUSED and [each.field for each in told.violations] == ["specs[0].band"]
        assert "gpuctl group set low --max-band normal" in told.next_step
        up = s.UpdateJobRequest(jobs=select(job.id), update_mask=FieldMask(paths=["band"]), band=job_pb2.BAND_NORMAL)
        assert (await refused(liza.stub.UpdateJob(up))).reason is Reason.BAND_REFUSED
        # Not even by way of a model: what its workers ask for is the scheduler's, and their group the owner's.
        worker = job_pb2.JobSpec(argv=["sleep", "600"], cwd="/", group="low")
        model = sessions_pb2.Model(name="of-liza", entry_point="demo:Demo", worker=worker, min_workers=1)
        served = await refused(liza.stub.ServeModel(sessions_pb2.ServeModelRequest(model=model)))
        assert [each.field for each in served.violations] == ["model.worker.group"]
        await admin.stub.RemoveGroup(s.RemoveGroupRequest(name="low"))
