"""Who may call what: this table is written by hand, from what each role is for, and not taken from the program."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration
from gpufleet.v1 import scheduler_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from gpufleet.errors import Reason
from gpufleet.security.tokens import make_token
from tests.api.calls import METHODS, Caller
from tests.e2e.client import Client
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until

ROLES = ("admin", "user", "viewer", "agent", "gateway", "worker")
MAY_CALL = {
    # Everybody who has a token may ask what this server is.
    "GetServerInfo": ROLES,
    # Who logs in has no token yet; one that is brought does no harm.
    "DescribeLogin BeginLogin Login": ROLES,
    "Logout": ROLES[:3],
    # Those who look.
    "StreamOutput Queue GetJob GetStory Explain ListArrayItems Watch CheckCapacity Estimate": ROLES[:3],
    "ListEndedJobs": ROLES[:3],
    "GetJobStats GetNodeHistory GetQueueHistory ListDevices ListUsage ListSessions WatchDevices": ROLES[:3],
    "ListFiles DownloadFile AccessFiles": ROLES[:3],
    "ListGroups": ROLES[:3],
    "ListSessionUsage ListWorkers": ROLES[:3],
    "ListNodes": (*ROLES[:3], "agent"),
    "ListModels WatchWorkers": (*ROLES[:3], "gateway"),
    "ReportRequests": ("admin", "gateway"),
    "CountRequests": ("admin", "gateway"),
    "ListRequestUsage": ROLES[:3],
    # Those who run things.
    "Submit Cancel UpdateJob SignalJob RequeueJob AttachJob ServeModel StopModel CloseSession": ROLES[:2],
    "ForwardPort": ROLES[:2],
    "KeepFiles": ROLES[:2],
    "ExecJob": ROLES[:2],
    "DrainWorker": ROLES[:2],
    "SetSecret ListSecrets RemoveSecret": ROLES[:2],
    "FindMissingBlobs UploadBlob DownloadBlob CheckFiles Ingest": ROLES[:2],
    "OpenSession": ("admin", "user", "gateway"),
    # Those who look after the fleet.
    "UpdateNode ForgetNode ApproveNode RevokeNode UpdateServer": ("admin",),
    "SetGroup RenameGroup RemoveGroup": ("admin",),
    "CreateToken ListTokens RevokeToken": ("admin",),
    "ListAuditEntries": ROLES[:2],
    # The fleet's own programs.
    "ConnectWorker": ("admin", "worker"),
    "JoinProgram": ("gateway", "worker"),
    "Register": ("agent", "node"),
    "Heartbeat ReportOutput OpenChannel CarryPort CarryExec CarryFiles FetchBlob StoreResults": ("agent",),
}
ALLOWED = {name: set(roles) for names, roles in MAY_CALL.items() for name in names.split()}
WITHOUT_TOKEN = {"Scheduler/DescribeLogin", "Scheduler/BeginLogin", "Scheduler/Login"}
NOT_LET_IN = (Reason.PERMISSION_DENIED, Reason.TOKEN_MISSING, Reason.TOKEN_INVALID, Reason.TOKEN_REVOKED)


async def make(admin: Client, role: str, **fields: object) -> scheduler_pb2.CreateTokenResponse:
    number = scheduler_pb2.Role.Value(f"ROLE_{role.upper()}")
    request = scheduler_pb2.CreateTokenRequest(user=f"some-{role}", role=number, **fields)  # type: ignore[arg-type]
    return await admin.stub.CreateToken(request)


def test_the_table_names_every_call_once() -> None:
    assert sorted(ALLOWED) == sorted(name.partition("/")[2] for name in METHODS)


@pytest.mark.parametrize("role", ROLES)
async def test_each_role_may_call_what_it_is_for_and_nothing_else(admin: Client, caller: Caller, role: str) -> None:
    token = (await make(admin, role)).secret
    reasons = await asyncio.gather(*(caller.reason(name, token=token) for name in METHODS))
    for name, reason in zip(METHODS, reasons, strict=True):
        if role in ALLOWED[name.partition("/")[2]]:
            assert reason not in NOT_LET_IN, f"{role} may call {name}, and is refused: {reason}"
            assert reason is not Reason.INTERNAL, name
        else:
            assert reason is Reason.PERMISSION_DENIED, f"{role} may not call {name}: {reason}"


async def test_no_call_is_answered_without_a_token(caller: Caller) -> None:
    for name in METHODS:
        is_missed = await caller.reason(name) is Reason.TOKEN_MISSING
        assert is_missed is (name not in WITHOUT_TOKEN), name


async def test_no_call_is_answered_with_a_token_that_nobody_made(caller: Caller) -> None:
    for name in METHODS:
        assert await caller.reason(name, token=make_token()) is Reason.TOKEN_INVALID, name


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer ", "Basic YTpi", "gf_without_scheme", "Bearer a b c"])
async def test_a_malformed_authorization_is_refused(caller: Caller, authorization: str) -> None:
    call = caller.channel.unary_unary("/gpufleet.v1.Scheduler/GetServerInfo")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"", metadata=(("authorization", authorization),))
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_the_scheme_of_the_token_may_be_in_any_case(fleet: Fleet, caller: Caller) -> None:
    call = caller.channel.unary_unary("/gpufleet.v1.Scheduler/GetServerInfo")
    token = fleet.scheduler.token("admin")
    for scheme in ("bearer", "BEARER", "Bearer "):
        assert await call(b"", metadata=(("authorization", f"{scheme} {token}"),))


async def test_a_revoked_token_is_useless_at_once(fleet: Fleet, admin: Client, caller: Caller) -> None:
    made = await make(admin, "user", note="for a moment")
    async with fleet.client(made.secret) as user:
        assert (await user.stub.GetServerInfo(scheduler_pb2.GetServerInfoRequest())).user == "some-user"
        revoked = await admin.stub.RevokeToken(scheduler_pb2.RevokeTokenRequest(id=made.token.id))
        assert revoked.token.is_revoked
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await user.queue()
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert await caller.reason("Scheduler/Queue", token=made.secret) is Reason.TOKEN_REVOKED


async def test_an_expired_token_is_useless(admin: Client, caller: Caller) -> None:
    made = await make(admin, "user", valid_for=Duration(nanos=50_000_000))
    assert made.token.expire_time.ToMicroseconds() - made.token.create_time.ToMicroseconds() == 50_000

    async def has_expired() -> bool:
        return await caller.reason("Scheduler/Queue", token=made.secret) is Reason.TOKEN_REVOKED

    await until("the token has expired", has_expired)


async def test_secrets_are_stored_hashed_and_told_once(fleet: Fleet, admin: Client) -> None:
    made = await make(admin, "viewer", note="look only")
    listed = (await admin.stub.ListTokens(scheduler_pb2.ListTokensRequest(page_size=1000))).tokens
    (shown,) = [token for token in listed if token.id == made.token.id]
    assert (shown.user, shown.note) == ("some-viewer", "look only")
    for file in fleet.scheduler.data.rglob("*"):
        if file.is_file() and not file.name.endswith(".token"):
            assert made.secret.encode() not in file.read_bytes(), file
    assert made.secret not in fleet.scheduler.log_text()


async def test_the_files_of_the_first_tokens_are_for_their_owner_only(fleet: Fleet) -> None:
    for role in ("admin", "agent", "gateway"):
        file = fleet.scheduler.data / f"{role}.token"
        assert file.stat().st_mode & 0o777 == 0o600
    assert fleet.scheduler.data.stat().st_mode & 0o077 == 0


async def test_a_person_changes_only_the_jobs_of_their_own(fleet: Fleet, admin: Client) -> None:
    job_id = await admin.submit("true", is_held=True)
    async with fleet.client((await make(admin, "user")).secret) as user:
        assert (await user.job(job_id)).id == job_id, "everybody may look"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await user.cancel(job_id)
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        own = await user.submit("true", is_held=True)
        assert (await user.job(own)).user == "some-user"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await user.cancel(own, job_id)
        assert (await user.job(own)).state == (await admin.job(job_id)).state, "nothing of a refused request is done"
    assert (await admin.cancel(own))[0].changed, "an admin may change everybody's"
    await admin.cancel(job_id)


async def test_what_people_do_is_audited_with_their_names(fleet: Fleet, admin: Client) -> None:
    made = await make(admin, "user")
    async with fleet.client(made.secret) as user:
        job_id = await user.submit("true", is_held=True)
        await user.cancel(job_id, reason="not needed")
    await admin.stub.RevokeToken(scheduler_pb2.RevokeTokenRequest(id=made.token.id))
    entries = (await admin.stub.ListAuditEntries(scheduler_pb2.ListAuditEntriesRequest(page_size=1000))).entries
    told = {(entry.user, entry.action, entry.target) for entry in entries}
    me = (await admin.stub.GetServerInfo(scheduler_pb2.GetServerInfoRequest())).user
    assert ("some-user", "Submit", f"job {job_id}") in told
    assert ("some-user", "Cancel", f"job {job_id}") in told
    assert (me, "RevokeToken", f"token {made.token.id}") in told
    sequences = [entry.sequence for entry in entries]
    assert sequences == sorted(sequences, reverse=True)
    own = (await admin.stub.ListAuditEntries(scheduler_pb2.ListAuditEntriesRequest(user="some-user"))).entries
    assert {entry.user for entry in own} == {"some-user"}


async def test_health_and_reflection_want_no_token(caller: Caller) -> None:
    health: Any = health_pb2_grpc.HealthStub(caller.channel)
    for service in ("", "gpufleet.v1.Scheduler", "gpufleet.v1.NodeAgent"):
        answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    reflection: Any = reflection_pb2_grpc.ServerReflectionStub(caller.channel)
    call = reflection.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    names = {service.name for service in (await call.read()).list_services_response.service}
    assert {"gpufleet.v1.Scheduler", "gpufleet.v1.NodeAgent", "grpc.health.v1.Health"} <= names
    call.cancel()
    del health, reflection, call
