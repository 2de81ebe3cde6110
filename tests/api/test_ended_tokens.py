"""A token that is revoked, or expires, takes its open streams with it; and a refused stream always says why."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration
from gpufleet.v1 import job_pb2, node_agent_pb2, node_agent_pb2_grpc, node_pb2, scheduler_pb2

from gpufleet.errors import Reason
from gpufleet.net.status import from_rpc_error
from gpufleet.security.tokens import make_token
from tests.api.asking import forget_node
from tests.e2e.client import Client, dial, refusal
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS
from tests.e2e.typist import Typist

IN_A_ROW = 50


async def make(admin: Client, role: str, **fields: Any) -> scheduler_pb2.CreateTokenResponse:
    number = scheduler_pb2.Role.Value(f"ROLE_{role.upper()}")
    return await admin.stub.CreateToken(scheduler_pb2.CreateTokenRequest(user="leaver", role=number, **fields))


async def revoke(admin: Client, made: scheduler_pb2.CreateTokenResponse) -> None:
    await admin.stub.RevokeToken(scheduler_pb2.RevokeTokenRequest(id=made.token.id))


async def test_a_revoked_token_ends_what_its_holder_follows(fleet: Fleet, admin: Client) -> None:
    made = await make(admin, "admin")
    job = await admin.submit("sh", "-c", "while :; do echo line; sleep 0.05; done")
    quiet = await admin.submit("true", is_held=True)
    async with fleet.client(made.secret) as leaver:
        watch = scheduler_pb2.WatchRequest()
        output = [scheduler_pb2.StreamOutputRequest(job_id=each, follow=True) for each in (job, quiet)]
        program = scheduler_pb2.ProgramSelector(program="scheduler")
        own_log = scheduler_pb2.StreamOutputRequest(program=program, follow=True)
        agents_log = scheduler_pb2.StreamOutputRequest(
            program=scheduler_pb2.ProgramSelector(program="agent", node="n1"), follow=True
        )
        calls: list[Any] = [leaver.stub.Watch(watch)]
        calls += [leaver.stub.StreamOutput(each) for each in (*output, own_log, agents_log)]
        others: Any = admin.stub.Watch(watch)
        for call in (*calls, others):
            assert await call.read(), "the stream is open"
        await revoke(admin, made)
        async with asyncio.timeout(DEADLINE_SECONDS):
            reasons = await asyncio.gather(*(last_word(call) for call in calls))
        assert reasons == [Reason.TOKEN_REVOKED] * len(calls)
        assert (await refusal(leaver.stub.Watch(watch))).reason is Reason.TOKEN_REVOKED
    await admin.cancel(job, quiet)
    assert await others.read(), "a stream of another token goes on"
    others.cancel()
    await admin.wait(job)


async def test_a_revoked_token_ends_what_its_holder_types_into(fleet: Fleet, admin: Client) -> None:
    made = await make(admin, "user")
    async with fleet.client(made.secret) as leaver:
        job = await leaver.submit("cat", input=job_pb2.INPUT_MODE_PIPE)
        async with Typist(leaver, job) as typist:
            await typist.type(b"still here\n")
            await typist.shows(b"still here")
            await revoke(admin, made)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await typist.end()
        assert from_rpc_error(caught.value).reason is Reason.TOKEN_REVOKED
    assert (await admin.job(job)).state == job_pb2.JOB_STATE_RUNNING, "the job goes on"
    await admin.cancel(job)
    await admin.wait(job)


async def test_a_token_that_expires_ends_its_streams(fleet: Fleet, admin: Client) -> None:
    made = await make(admin, "viewer", valid_for=Duration(seconds=10))
    async with fleet.client(made.secret) as leaver:
        call: Any = leaver.stub.Watch(scheduler_pb2.WatchRequest())
        assert await call.read(), "the stream is open"
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert await last_word(call) is Reason.TOKEN_REVOKED


async def test_a_revoked_token_ends_an_agents_streams(fleet: Fleet, admin: Client) -> None:
    made = await make(admin, "agent")
    info = node_pb2.NodeInfo(hostname="here", cpus=1)
    async with dial(fleet.scheduler.address, made.secret) as channel:
        stub = node_agent_pb2_grpc.NodeAgentStub(channel)
        announced = node_agent_pb2.RegisterRequest(
            node="leaving", agent_id="a", incarnation=1, boot_id="b", info=info, protocol_version=1
        )
        await stub.Register(announced, timeout=DEADLINE_SECONDS)
        heartbeat: Any = stub.Heartbeat()
        inventory = node_agent_pb2.Inventory(boot_id="b", info=info)
        await heartbeat.write(
            node_agent_pb2.HeartbeatRequest(node="leaving", incarnation=1, sequence=1, inventory=inventory)
        )
        assert await heartbeat.read()
        output: Any = stub.ReportOutput()
        await output.write(node_agent_pb2.ReportOutputRequest(node="leaving"))
        ends = [asyncio.ensure_future(last_word(call)) for call in (heartbeat, output)]
        await revoke(admin, made)
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert await asyncio.gather(*ends) == [Reason.TOKEN_REVOKED] * 2
        error = await refusal(stub.Register(announced))
        assert error.reason is Reason.TOKEN_REVOKED
        del stub, heartbeat, output
    await forget_node(admin, "leaving")


async def last_word(call: Any) -> Reason:
    """Why a stream ends that one reads message by message."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        while await call.read() is not grpc.aio.EOF:
            pass
    return from_rpc_error(caught.value).reason


async def beats(count: int) -> AsyncIterator[node_agent_pb2.HeartbeatRequest]:
    for number in range(count):
        yield node_agent_pb2.HeartbeatRequest(node="n1", sequence=number)


@pytest.mark.parametrize("count", [1, 20])
async def test_a_refused_stream_says_why_each_time(fleet: Fleet, count: int) -> None:
    async with dial(fleet.scheduler.address, make_token()) as channel:
        stub = node_agent_pb2_grpc.NodeAgentStub(channel)
        for _ in range(IN_A_ROW):
            assert (await refusal(stub.Heartbeat(beats(count)))).reason is Reason.TOKEN_INVALID
        del stub


@pytest.mark.parametrize("count", [1, 20])
async def test_a_client_of_grpc_itself_is_told_why_each_time_once_it_has_said_all(fleet: Fleet, count: int) -> None:
    token = (("authorization", f"Bearer {make_token()}"),)
    async with grpc.aio.insecure_channel(fleet.scheduler.address) as channel:
        stub = node_agent_pb2_grpc.NodeAgentStub(channel)
        for _ in range(IN_A_ROW):
            assert (await refusal(stub.Heartbeat(beats(count), metadata=token))).reason is Reason.TOKEN_INVALID
        del stub
