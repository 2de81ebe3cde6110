"""What only hand-made callers send: messages of streams that cannot be read, tokens and paths that are no text."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from gpufleet.v1 import node_agent_pb2, scheduler_pb2

from gpufleet.errors import Reason
from gpufleet.net.channel import bearer
from scheduler.api.roles import ROLES_OF
from scheduler.api.server import NOT_BUILT
from tests.e2e.client import Client, dial, refusal
from tests.e2e.fleet import Fleet
from tests.fuzz.http2 import call, message, statuses

STREAMS = {
    f"{service.name}/{method.name}": method
    for service in (
        scheduler_pb2.DESCRIPTOR.services_by_name["Scheduler"],
        node_agent_pb2.DESCRIPTOR.services_by_name["NodeAgent"],
    )
    for method in service.methods
    if method.client_streaming and method.name not in NOT_BUILT
}
BEGUN = ("Scheduler/OpenSession", "Scheduler/ReportRequests", "NodeAgent/ReportOutput")
"""Streams that go on behind an empty first message."""

UNREADABLE = b"\xff\xff\xff\xff"
UNAUTHENTICATED = 16


def path_of(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def secret_for(fleet: Fleet, name: str) -> str:
    roles = {each.value for each in ROLES_OF[name]}
    return fleet.scheduler.token("admin" if "admin" in roles else min(roles & {"agent", "gateway"}, default="admin"))


@pytest.mark.parametrize("name", [*sorted(STREAMS), *(f"{name} begun" for name in BEGUN)])
async def test_a_stream_with_a_message_that_cannot_be_read_is_refused_without_a_trace(fleet: Fleet, name: str) -> None:
    name, _, begun = name.partition(" ")
    logged = len(fleet.scheduler.log_text())
    secret = secret_for(fleet, name)

    async def ask(channel: Any) -> None:
        asked = channel.stream_stream(path_of(STREAMS[name]))(metadata=bearer(secret))
        for each in (b"", UNREADABLE) if begun else (UNREADABLE,):
            await asked.write(each)
        await asked.done_writing()
        async for _ in asked:
            pass

    async with dial(fleet.scheduler.address, None) as channel:
        error = await refusal(ask(channel))
    assert error.reason is Reason.INVALID_ARGUMENT and "cannot be read" in error.message, error
    assert "Traceback" not in fleet.scheduler.log_text()[logged:]


@pytest.mark.parametrize("token", [b"Bearer \xff\xfe", "Bearer ☃".encode(), b"Bearer \xed\xa0\x80"])
async def test_a_token_that_is_no_text_is_not_known(fleet: Fleet, token: bytes) -> None:
    logged = len(fleet.scheduler.log_text())
    host, _, port = fleet.scheduler.address.rpartition(":")
    sent = call("/gpufleet.v1.Scheduler/Queue", "", message(b""), (b"authorization", token))
    assert await statuses(host, int(port), sent, seconds=30) == [UNAUTHENTICATED]
    assert "Traceback" not in fleet.scheduler.log_text()[logged:]


async def test_a_call_whose_path_is_no_text_ends_nothing_but_itself(fleet: Fleet, admin: Client) -> None:
    logged = len(fleet.scheduler.log_text())
    host, _, port = fleet.scheduler.address.rpartition(":")
    sent = call(b"/gpufleet.v1.Scheduler/Que\x9be", "", message(b""))
    assert await statuses(host, int(port), sent, seconds=30) == [grpc.StatusCode.UNKNOWN.value[0]]
    # Over a connection of its own: the port is still listened at.
    async with fleet.client() as another:
        await another.queue()
    assert "Traceback" not in fleet.scheduler.log_text()[logged:]
