"""A node speaks for itself alone: what an agent's token, and another node's credential, cannot do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest
from gpufleet.v1 import job_pb2, node_agent_pb2, node_agent_pb2_grpc, node_pb2, scheduler_pb2

from gpufleet.errors import Reason
from gpufleet.net.status import from_rpc_error
from gpufleet.security.tokens import is_token
from tests.api.asking import forget_node
from tests.api.test_agent_streams import told
from tests.api.test_ended_tokens import last_word
from tests.e2e.client import Client, dial
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS, until

INFO = node_pb2.NodeInfo(hostname="here", cpus=1)


def announcement(name: str, agent_id: str = "by hand", incarnation: int = 1) -> node_agent_pb2.RegisterRequest:
    return node_agent_pb2.RegisterRequest(
        node=name,
        agent_id=agent_id,
        incarnation=incarnation,
        boot_id="b",
        info=INFO,
        protocol_version=1,
        takes_credential=True,
    )


@asynccontextmanager
async def agent(fleet: Fleet, token: str) -> AsyncIterator[Any]:
    async with dial(fleet.scheduler.address, token) as channel:
        yield node_agent_pb2_grpc.NodeAgentStub(channel)


async def joined(fleet: Fleet, name: str, token: str) -> str:
    """The credential of a node that joins by hand."""
    async with agent(fleet, token) as stub:
        answer = await stub.Register(announcement(name), timeout=DEADLINE_SECONDS)
    assert is_token(answer.credential)
    return str(answer.credential)


async def why(call: Any) -> Reason:
    """Why a call is refused, after whatever it answers before."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call
    return from_rpc_error(caught.value).reason


def heartbeat(name: str, *more: node_agent_pb2.HeartbeatRequest, incarnation: int = 1) -> Any:
    inventory = node_agent_pb2.Inventory(boot_id="b", info=INFO)
    first = node_agent_pb2.HeartbeatRequest(node=name, incarnation=incarnation, sequence=1, inventory=inventory)
    return told(first, *more)


def forged(job: int, text: bytes) -> node_agent_pb2.OutputChunk:
    key = node_agent_pb2.AttemptKey(job_id=job, attempt=1)
    return node_agent_pb2.OutputChunk(key=key, stream=job_pb2.STREAM_STDOUT, offset=0, data=text)


async def test_an_agents_token_speaks_for_no_node_that_has_a_credential(fleet: Fleet, admin: Client) -> None:
    job = await admin.submit("sleep", "600")
    await admin.wait(job, job_pb2.JOB_STATE_RUNNING)
    assert (await admin.node("n1")).has_credential
    async with agent(fleet, fleet.scheduler.token("agent")) as stub:
        assert await why(stub.Heartbeat(heartbeat("n1"), timeout=DEADLINE_SECONDS)) is Reason.PERMISSION_DENIED
        output = node_agent_pb2.ReportOutputRequest(node="n1", chunks=[forged(job, b"forged\n")])
        assert await why(stub.ReportOutput(told(output), timeout=DEADLINE_SECONDS)) is Reason.PERMISSION_DENIED
        taking = stub.Register(announcement("n1"), timeout=DEADLINE_SECONDS)
        assert await why(taking) is Reason.NODE_ID_TAKEN
    assert (await admin.node("n1")).is_connected, "a stream that is refused takes no other's place"
    await admin.cancel(job)
    assert (await admin.wait(job)).state == job_pb2.JOB_STATE_CANCELLED


async def test_a_nodes_credential_speaks_for_that_node_alone(fleet: Fleet, admin: Client) -> None:
    job = await admin.submit("sleep", "600")
    await admin.wait(job, job_pb2.JOB_STATE_RUNNING)
    credential = await joined(fleet, "other", fleet.scheduler.token("agent"))
    async with agent(fleet, credential) as stub:
        for name in ("n1", "a-new-one"):
            assert await why(stub.Register(announcement(name))) is Reason.PERMISSION_DENIED
            assert await why(stub.Heartbeat(heartbeat(name), timeout=DEADLINE_SECONDS)) is Reason.PERMISSION_DENIED
            output = node_agent_pb2.ReportOutputRequest(node=name, chunks=[forged(job, b"forged\n")])
            assert await why(stub.ReportOutput(told(output), timeout=DEADLINE_SECONDS)) is Reason.PERMISSION_DENIED
        # As itself it may speak, of what was placed on it.
        mine = node_agent_pb2.ReportOutputRequest(node="other", chunks=[forged(job, b"forged\n")])
        answers = [each async for each in stub.ReportOutput(told(mine), timeout=DEADLINE_SECONDS)]
        assert [position.is_unwanted for answer in answers for position in answer.synced] == [True]
        key = node_agent_pb2.AttemptKey(job_id=job, attempt=1)
        exit_ = node_agent_pb2.AttemptExited(key=key, exit=job_pb2.ExitStatus(code=9), reason="EXITED")
        end = node_agent_pb2.HeartbeatRequest(node="other", incarnation=1, sequence=2, attempt_exited=exit_)
        async for _ in stub.Heartbeat(heartbeat("other", end), timeout=DEADLINE_SECONDS):
            pass
    assert (await admin.job(job)).state == job_pb2.JOB_STATE_RUNNING, "its end was another node's to tell"
    await admin.cancel(job)
    await admin.wait(job)
    assert await admin.stdout(job) == b""
    await forget_node(admin, "other")
    async with agent(fleet, credential) as stub:
        assert await why(stub.Register(announcement("other"))) is Reason.TOKEN_INVALID, "it left with its node"


async def test_a_stream_of_another_start_is_refused_before_it_takes_a_place(fleet: Fleet, admin: Client) -> None:
    credential = await joined(fleet, "twice", fleet.scheduler.token("agent"))
    async with agent(fleet, credential) as stub:
        call = stub.Heartbeat(heartbeat("twice", incarnation=7), timeout=DEADLINE_SECONDS)
        assert await why(call) is Reason.CONFLICT
    await forget_node(admin, "twice")


async def test_a_node_that_has_heard_of_more_than_the_store_has_is_named_until_it_is_connected(
    fleet: Fleet, admin: Client
) -> None:
    async def refused() -> dict[str, str]:
        answer = await admin.stub.GetServerInfo(scheduler_pb2.GetServerInfoRequest())
        return {each.node: f"{each.reason}: {each.message}" for each in answer.refused_nodes}

    async with agent(fleet, fleet.scheduler.token("agent")) as stub:
        answer = await stub.Register(announcement("knows-more"), timeout=DEADLINE_SECONDS)
        ahead = announcement("knows-more", incarnation=2)
        ahead.store_id, ahead.highest_term = answer.store_id, answer.term + 1
        for name in ("knows-more", "unknown-here", "n1"):
            ahead.node = name
            assert await why(stub.Register(ahead, timeout=DEADLINE_SECONDS)) is Reason.STORE_RESTORED
    said = await refused()
    assert said.keys() == {"knows-more", "unknown-here"}, "who is connected was not refused, whoever uses its name"
    heard = "STORE_RESTORED: node 'knows-more' has heard a scheduler of this store in term"
    assert said["knows-more"].startswith(heard)
    shown = (await admin.node("knows-more")).refusal
    assert f"{shown.reason}: {shown.message}" == said["knows-more"] and shown.HasField("refuse_time")
    assert not (await admin.node("n1")).HasField("refusal")
    async with agent(fleet, answer.credential) as stub:
        stream: Any = stub.Heartbeat(timeout=DEADLINE_SECONDS)
        await stream.write(await anext(heartbeat("knows-more")))
        assert await stream.read()
        assert (await refused()).keys() == {"unknown-here"}
        assert not (await admin.node("knows-more")).HasField("refusal")
        stream.cancel()
        del stream
    await forget_node(admin, "knows-more")


async def test_a_token_lets_nodes_of_its_names_join_and_does_nothing_else(fleet: Fleet, admin: Client) -> None:
    made = await admin.stub.CreateToken(
        scheduler_pb2.CreateTokenRequest(user="nodes", role=scheduler_pb2.ROLE_NODE, nodes="room-*", uses_max=1)
    )
    assert (made.token.nodes, made.token.uses_max, made.token.uses) == ("room-*", 1, 0)
    async with agent(fleet, made.secret) as stub:
        assert await why(stub.Register(announcement("hall-1"))) is Reason.PERMISSION_DENIED
        assert await why(stub.Heartbeat(heartbeat("room-1"))) is Reason.PERMISSION_DENIED
    credential = await joined(fleet, "room-1", made.secret)
    assert await joined(fleet, "room-1", made.secret) == credential, "an answer that was lost is given again"
    async with agent(fleet, made.secret) as stub:
        assert await why(stub.Register(announcement("room-2"))) is Reason.TOKEN_USED_UP
        assert await why(stub.Register(announcement("room-1", agent_id="thief"))) is Reason.NODE_ID_TAKEN
    listed = (await admin.stub.ListTokens(scheduler_pb2.ListTokensRequest(page_size=1000))).tokens
    assert [token.uses for token in listed if token.id == made.token.id] == [1]
    await forget_node(admin, "room-1")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"role": scheduler_pb2.ROLE_USER, "nodes": "gpu-*"}, "nodes"),
        ({"role": scheduler_pb2.ROLE_USER, "uses_max": 1}, "uses_max"),
        ({"role": scheduler_pb2.ROLE_NODE, "nodes": "gpu-[1]"}, "nodes"),
        ({"role": scheduler_pb2.ROLE_NODE, "uses_max": -1}, "uses_max"),
        ({"role": scheduler_pb2.ROLE_NODE, "uses_max": 10_001}, "uses_max"),
    ],
)
async def test_a_wrong_token_for_nodes_is_refused_with_its_field(
    admin: Client, fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await admin.stub.CreateToken(scheduler_pb2.CreateTokenRequest(user="nodes", **fields))
    error = from_rpc_error(caught.value)
    assert (error.reason, [each.field for each in error.violations]) == (Reason.INVALID_ARGUMENT, [field])
    assert error.next_step


async def test_a_revoked_nodes_streams_end_and_its_name_stays_shut_until_it_is_approved(
    fleet: Fleet, admin: Client
) -> None:
    credential = await joined(fleet, "stolen", fleet.scheduler.token("agent"))
    async with agent(fleet, credential) as stub:
        stream: Any = stub.Heartbeat()
        await stream.write(await anext(heartbeat("stolen")))
        assert await stream.read()
        await admin.stub.RevokeNode(scheduler_pb2.RevokeNodeRequest(node="stolen", reason="by hand"))
        assert await last_word(stream) is Reason.TOKEN_REVOKED
        assert await why(stub.Register(announcement("stolen"))) is Reason.TOKEN_INVALID
        del stream
    async with agent(fleet, fleet.scheduler.token("agent")) as stub:
        assert await why(stub.Register(announcement("stolen", incarnation=2))) is Reason.NODE_REVOKED
        assert await why(stub.Heartbeat(heartbeat("stolen"))) is Reason.PERMISSION_DENIED
        shown = (await admin.stub.ApproveNode(scheduler_pb2.ApproveNodeRequest(node="stolen"))).node
        assert (shown.is_revoked, shown.is_draining, shown.has_credential) == (False, False, False)
        answer = await stub.Register(announcement("stolen", incarnation=2))
        assert answer.credential not in ("", credential)
    await forget_node(admin, "stolen")


async def test_an_agent_keeps_its_credential_and_needs_no_token_any_more(fleet: Fleet, admin: Client) -> None:
    made = await admin.stub.CreateToken(
        scheduler_pb2.CreateTokenRequest(user="nodes", role=scheduler_pb2.ROLE_NODE, nodes="kept", uses_max=1)
    )
    token_file = fleet.folder / "join.token"
    token_file.touch(mode=0o600)
    token_file.write_text(made.secret)
    node = await fleet.add_node("kept", "--token-file", str(token_file), "--virtual-gpus", "1")
    kept = node.data / "credential.token"
    assert kept.stat().st_mode & 0o777 == 0o600
    await admin.stub.RevokeToken(scheduler_pb2.RevokeTokenRequest(id=made.token.id))
    node.kill()
    node.spawn()
    await fleet.node_is_ready("kept")
    await admin.stub.RevokeNode(scheduler_pb2.RevokeNodeRequest(node="kept"))

    async def is_away() -> bool:
        return not (await admin.node("kept")).is_connected

    await until("the node's stream has ended", is_away)
    node.kill()
    await node.end_keeper()
    del fleet.agents["kept"]
    await forget_node(admin, "kept")
