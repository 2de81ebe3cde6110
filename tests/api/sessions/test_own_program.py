"""A worker by hand speaks for itself and its model alone, a gateway for itself: by traded tokens, and by older ones."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from gpufleet.v1 import inference_pb2, scheduler_pb2, scheduler_pb2_grpc, sessions_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.addresses import parse_address
from gpufleet.net.channel import Target
from gpufleet.net.program_credential import ProgramCredential
from gpufleet.security.tokens import make_token
from tests.api.calls import Caller
from tests.api.sessions.people import WorkerStream
from tests.e2e.client import Client, dial, refusal
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS

pb, models = scheduler_pb2, sessions_pb2


async def make(admin: Client, role: str, user: str = "ann", **fields: Any) -> scheduler_pb2.CreateTokenResponse:
    request = pb.CreateTokenRequest(user=user, role=pb.Role.Value(f"ROLE_{role.upper()}"), **fields)
    return await admin.stub.CreateToken(request, timeout=DEADLINE_SECONDS)


@asynccontextmanager
async def worker(fleet: Fleet, token: str, model: str, start: str = "") -> AsyncIterator[WorkerStream]:
    """A worker that is ready, by this token."""
    async with dial(fleet.scheduler.address, token) as channel:
        stream = WorkerStream(scheduler_pb2_grpc.SchedulerStub(channel).ConnectWorker(), model, 1)
        stream.start = start or stream.start
        try:
            await stream.hello()
            await stream.report(inference_pb2.WORKER_STATE_READY)
            yield stream
        finally:
            await stream.inbox.end()


async def why(fleet: Fleet, token: str, model: str, start: str = "by hand") -> GpufleetError:
    """Why a worker's stream is refused."""
    hello = models.WorkerHello(model=model, endpoint="127.0.0.1:1", worker_start=start, ticket_secret=b"s" * 32)
    async with dial(fleet.scheduler.address, token) as channel:
        stub = scheduler_pb2_grpc.SchedulerStub(channel)
        return await refusal(stub.ConnectWorker(iter([models.ConnectWorkerRequest(hello=hello)])))


def credential_of(folder: Path, name: str, token: str, model: str = "") -> ProgramCredential:
    return ProgramCredential(folder / f"{name}.token", name, lambda: token, model)


def target_of(fleet: Fleet) -> Target:
    return Target(address=parse_address(fleet.scheduler.address))


async def traded(fleet: Fleet, folder: Path, name: str, token: str, model: str = "") -> ProgramCredential:
    credential = credential_of(folder, name, token, model)
    await credential.settle([target_of(fleet)])
    assert credential.is_settled
    return credential


async def test_a_workers_token_serves_no_model_of_another_user_and_none_that_it_does_not_name(
    fleet: Fleet, admin: Client
) -> None:
    anns = (await make(admin, "worker")).secret
    narrow = (await make(admin, "worker", models="sketch-*")).secret
    mallorys = (await make(admin, "worker", user="mallory")).secret
    async with worker(fleet, anns, "painter"):
        assert (await why(fleet, mallorys, "painter")).reason is Reason.PERMISSION_DENIED
        error = await why(fleet, narrow, "painter")
        assert error.reason is Reason.PERMISSION_DENIED
        assert "'sketch-*'" in error.message and "--model" in error.next_step
    await admin.stub.StopModel(models.StopModelRequest(name="painter"))


async def test_no_worker_takes_the_place_of_another(fleet: Fleet, admin: Client, tmp_path: Path) -> None:
    joining = (await make(admin, "worker", models="canvas-*", uses_max=2)).secret
    first = await traded(fleet, tmp_path, "w1", joining, "canvas-1")
    second = await traded(fleet, tmp_path, "w2", joining, "canvas-1")
    async with worker(fleet, first.token(), "canvas-1") as held:
        error = await why(fleet, second.token(), "canvas-1", held.start)
        assert (error.reason, "hello.worker_start" in error.message) == (Reason.PERMISSION_DENIED, True)
        assert (await why(fleet, first.token(), "canvas-2")).reason is Reason.PERMISSION_DENIED
        await held.report()  # it was not evicted
        (shown,) = [
            each for each in (await admin.stub.ListModels(models.ListModelsRequest())).models if each.name == "canvas-1"
        ]
        assert [each.endpoint for each in shown.workers] == ["127.0.0.1:8001"]
        async with worker(fleet, first.token(), "canvas-1", held.start):
            pass  # its own, come back
    await admin.stub.StopModel(models.StopModelRequest(name="canvas-1"))


@pytest.mark.parametrize("role", ["worker", "gateway"])
async def test_a_token_that_lets_programs_join_is_good_for_nothing_else(
    fleet: Fleet, admin: Client, caller: Caller, role: str
) -> None:
    joining = (await make(admin, role, uses_max=1)).secret
    for call in ("ConnectWorker", "OpenSession", "ListModels", "WatchWorkers", "CountRequests"):
        assert await caller.reason(f"Scheduler/{call}", token=joining) is Reason.PERMISSION_DENIED, call
    assert await caller.reason("Scheduler/GetServerInfo", token=joining) is None


async def test_a_gateway_trades_its_token_renews_what_it_got_and_can_be_revoked(
    fleet: Fleet, admin: Client, caller: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joining = (await make(admin, "gateway", uses_max=1)).secret
    credential = await traded(fleet, tmp_path, "g1", joining)
    first = credential.token()
    assert first != joining
    assert (tmp_path / "g1.token").stat().st_mode & 0o777 == 0o600
    assert await caller.reason("Scheduler/ListModels", token=first) is None
    monkeypatch.setattr("gpufleet.net.program_credential.RENEWED_AFTER_SECONDS", -1.0)
    again = await traded(fleet, tmp_path, "g1", joining)
    assert again.token() != first
    for token in (again.token(), first):
        assert await caller.reason("Scheduler/ListModels", token=token) is None, "the former one, for an hour"
    tokens = (await admin.stub.ListTokens(pb.ListTokensRequest(page_size=1000))).tokens
    (shown,) = [each for each in tokens if each.program == "g1"]
    assert shown.HasField("renew_time") and shown.role == pb.ROLE_GATEWAY
    with pytest.raises(GpufleetError) as caught:
        await traded(fleet, tmp_path, "g2", joining)
    assert caught.value.reason is Reason.TOKEN_USED_UP
    await admin.stub.RevokeToken(pb.RevokeTokenRequest(id=shown.id))
    for token in (again.token(), first):
        assert await caller.reason("Scheduler/ListModels", token=token) is Reason.TOKEN_REVOKED
    with pytest.raises(GpufleetError) as caught:
        await traded(fleet, tmp_path, "g1", joining)
    assert caught.value.reason is Reason.TOKEN_REVOKED
    assert again.token() != joining, "it does not fall back to what lets others join"


async def test_an_answer_that_was_lost_costs_no_use_and_no_credential(
    fleet: Fleet, admin: Client, caller: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler has taken it up, and the program does not know: at the first trade, and at a renewal."""
    joining = (await make(admin, "gateway", uses_max=1, note="lost")).secret
    monkeypatch.setattr("gpufleet.net.program_credential.RENEWED_AFTER_SECONDS", -1.0)
    token = joining
    for _ in range(2):
        credential = credential_of(tmp_path, "g3", joining)
        with monkeypatch.context() as cut:
            cut.setattr(Path, "replace", _cut)
            with pytest.raises(ConnectionAbortedError):
                await credential.settle([target_of(fleet)])
        assert credential.token() == token
        token = (await traded(fleet, tmp_path, "g3", joining)).token()
        assert await caller.reason("Scheduler/ListModels", token=token) is None
    listed = (await admin.stub.ListTokens(pb.ListTokensRequest(page_size=1000))).tokens
    assert [each.uses for each in listed if each.note == "lost"] == [1]


REPLACE = Path.replace


def _cut(self: Path, target: Path) -> Path:
    if self.name.endswith(".next"):
        raise ConnectionAbortedError("cut")
    return REPLACE(self, target)


async def test_an_older_token_goes_on_as_it_did(fleet: Fleet, admin: Client, caller: Caller, tmp_path: Path) -> None:
    plain = (await make(admin, "gateway")).secret
    credential = await traded(fleet, tmp_path, "old", plain)
    assert credential.token() == plain
    assert os.listdir(tmp_path) == []  # noqa: PTH208
    assert await caller.reason("Scheduler/ListModels", token=plain) is None


async def test_a_program_without_a_scheduler_is_not_settled(tmp_path: Path) -> None:
    credential = credential_of(tmp_path, "g", make_token())
    await credential.settle([Target(address=parse_address("127.0.0.1:1"))])
    assert not credential.is_settled
