"""Who may ask for which band: by role and by user, in every call that takes one, and from the next reload on."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from gpufleet.v1 import job_pb2, scheduler_pb2, sessions_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.status import from_rpc_error
from tests.e2e.client import Client, select
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS, until

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

ANN_HAS_HIGH = '[policy.bands.users]\nann = ["low", "normal", "high"]\n'


@asynccontextmanager
async def person(fleet: Fleet, user: str) -> AsyncIterator[Client]:
    """Somebody of role user."""
    async with fleet.client() as admin:
        request = scheduler_pb2.CreateTokenRequest(user=user, role=scheduler_pb2.ROLE_USER)
        secret = (await admin.stub.CreateToken(request)).secret
    async with fleet.client(secret) as client:
        yield client


async def refused(call: object) -> GpufleetError:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call  # type: ignore[misc]
    return from_rpc_error(failure.value)


def moved(job: int, band: job_pb2.Band.ValueType) -> scheduler_pb2.UpdateJobRequest:
    return scheduler_pb2.UpdateJobRequest(jobs=select(job), update_mask=FieldMask(paths=["band"]), band=band)


def served(name: str, band: job_pb2.Band.ValueType = job_pb2.BAND_UNSPECIFIED) -> sessions_pb2.ServeModelRequest:
    worker = job_pb2.JobSpec(argv=["sleep", "600"], cwd="/", band=band)
    return sessions_pb2.ServeModelRequest(
        model=sessions_pb2.Model(name=name, entry_point="demo:Demo", worker=worker, min_workers=1)
    )


async def bands_of(client: Client) -> list[str]:
    info = await client.stub.GetServerInfo(scheduler_pb2.GetServerInfoRequest())
    return [job_pb2.Band.Name(band)[5:].lower() for band in info.bands]


async def test_high_and_urgent_need_an_admin_or_an_entry_in_every_call_that_takes_a_band(tmp_path: Path) -> None:
    settings = tmp_path / "scheduler.toml"
    settings.write_text(ANN_HAS_HIGH)
    async with (
        Fleet(tmp_path / "fleet", "--config", str(settings)) as fleet,
        fleet.client() as admin,
        person(fleet, "ann") as ann,
        person(fleet, "bob") as bob,
    ):
        assert await bands_of(admin) == ["low", "normal", "high", "urgent"]
        assert await bands_of(ann) == ["low", "normal", "high"]
        assert await bands_of(bob) == ["low", "normal"]
        # Submit, whole or not at all; a dry run says the same.
        specs = [bob.spec("true"), bob.spec("true", band=job_pb2.BAND_HIGH)]
        for fields in ({}, {"dry_run": True}):
            error = await refused(bob.submit_specs(specs, **fields))
            assert (error.reason, error.violations[0].field) == (Reason.BAND_REFUSED, "specs[1].band")
            assert "high is for admins, and for users who have it by a setting; bob has low and normal" in error.message
            assert error.next_step.startswith("Choose low or normal, or ask an admin for an entry in [policy] bands")
        assert not (await bob.queue()).jobs
        hers = await ann.submit("true", is_held=True, band=job_pb2.BAND_HIGH)
        assert (await ann.job(hers)).spec.band == job_pb2.BAND_HIGH
        assert (await refused(ann.submit("true", band=job_pb2.BAND_URGENT))).reason is Reason.BAND_REFUSED
        # UpdateJob: whose right counts is the caller's.
        his = await bob.submit("true", is_held=True)
        error = await refused(bob.stub.UpdateJob(moved(his, job_pb2.BAND_URGENT)))
        assert (error.reason, error.violations[0].field) == (Reason.BAND_REFUSED, "band")
        assert (await bob.job(his)).spec.band == job_pb2.BAND_NORMAL
        await bob.stub.UpdateJob(moved(his, job_pb2.BAND_LOW))
        await admin.stub.UpdateJob(moved(his, job_pb2.BAND_URGENT))
        assert (await bob.job(his)).spec.band == job_pb2.BAND_URGENT
        # ServeModel: workers are in band high whoever serves; urgent is asked for like any other.
        await bob.stub.ServeModel(served("his"))
        worker = next(job for job in (await bob.queue(user="bob")).jobs if job.spec.serves == "his")
        assert worker.spec.band == job_pb2.BAND_HIGH
        error = await refused(bob.stub.ServeModel(served("hers", job_pb2.BAND_URGENT)))
        assert (error.reason, error.violations[0].field) == (Reason.BAND_REFUSED, "model.worker.band")
        await admin.stub.ServeModel(served("theirs", job_pb2.BAND_URGENT))

        # The settings are read again while it runs: ann has it no more, bob does.
        settings.write_text(ANN_HAS_HIGH.replace("ann", "bob"))
        fleet.scheduler.signal(signal.SIGHUP)

        async def is_read() -> bool:
            return await bands_of(bob) == ["low", "normal", "high"]

        await until("the settings are read", is_read)
        assert (await refused(ann.submit("true", band=job_pb2.BAND_HIGH))).reason is Reason.BAND_REFUSED
        assert (await ann.job(hers)).spec.band == job_pb2.BAND_HIGH, "what was given is kept"
        await bob.submit("true", is_held=True, band=job_pb2.BAND_HIGH)


async def test_who_names_no_band_has_the_nearest_one_and_a_repeated_request_is_answered_again(tmp_path: Path) -> None:
    settings = tmp_path / "scheduler.toml"
    settings.write_text(ANN_HAS_HIGH + 'bob = ["low"]\n')
    async with (
        Fleet(tmp_path / "fleet", "--config", str(settings)) as fleet,
        fleet.client() as admin,
        person(fleet, "ann") as ann,
        person(fleet, "bob") as bob,
    ):
        await fleet.add_node("n1", "--cpus", "4")
        job = await bob.submit("true", is_held=True)
        assert (await bob.job(job)).spec.band == job_pb2.BAND_LOW
        first = await ann.submit_specs([ann.spec("false", band=job_pb2.BAND_HIGH)], request_id="r1")
        await ann.wait(first.first_job_id)
        settings.write_text("")
        fleet.scheduler.signal(signal.SIGHUP)

        async def is_read() -> bool:
            return await bands_of(ann) == ["low", "normal"]

        await until("the settings are read", is_read)
        again = await ann.submit_specs([ann.spec("false", band=job_pb2.BAND_HIGH)], request_id="r1")
        assert again.first_job_id == first.first_job_id
        # What failed in a band that she has no more runs again in one that she has, and she is told.
        request = scheduler_pb2.SubmitRequest(rerun_failed_job_id=first.first_job_id)
        rerun = await ann.stub.Submit(request, timeout=DEADLINE_SECONDS)
        assert rerun.job.spec.band == job_pb2.BAND_NORMAL
        assert any("is in band high; you have normal" in note for note in rerun.notes)
        await admin.wait(rerun.first_job_id)
