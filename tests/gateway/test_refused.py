"""A turn that the worker does not open yet: the gateway asks for another ticket. Scheduler and worker are fakes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from gpufleet.v1 import inference_pb2, sessions_pb2
from grpc_health.v1 import health, health_pb2_grpc

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.status import to_status
from gpufleet.security.tokens import make_token
from tests.gateway.stage import Side, browser_at

Said = sessions_pb2.OpenSessionResponse
Down = inference_pb2.StreamResponse


class Pretending:
    """A scheduler that grants a turn to whoever joins, and a worker that opens it at the third ticket."""

    def __init__(self, reason: Reason) -> None:
        self.reason = reason
        self.joins: list[tuple[int, str]] = []
        self.gone: list[int] = []
        self.tickets: list[str] = []
        self.inputs: list[inference_pb2.Input] = []
        self.endpoint = ""

    async def open_session(self, requests: Any, context: Any) -> None:
        async for request in requests:
            if request.HasField("hello"):
                continue
            if request.WhichOneof("body") != "join":
                self.gone.append(request.connection)
                continue
            self.joins.append((request.connection, request.join.place_key))
            epoch = len(self.joins)
            grant = sessions_pb2.TurnGrant(
                session="s1", endpoint=self.endpoint, ticket=f"ticket {epoch}", epoch=epoch, place_key="key"
            )
            await context.write(Said(connection=request.connection, grant=grant))

    async def stream(self, requests: Any, context: Any) -> None:
        first = await anext(requests)
        self.tickets.append(first.open.ticket)
        if len(self.tickets) < 3:
            await context.abort_with_status(to_status(GpufleetError(self.reason, "not now")))
        await context.write(Down(opened=inference_pb2.TurnOpened(session="s1", epoch=3, encoding="jpeg")))
        async for request in requests:
            if request.HasField("input"):
                self.inputs.append(request.input)


def method(call: Any, request: Any, response: Any) -> Any:
    return grpc.stream_stream_rpc_method_handler(
        call, request_deserializer=request.FromString, response_serializer=response.SerializeToString
    )


@asynccontextmanager
async def pretended(reason: Reason, folder: Path) -> AsyncIterator[tuple[Pretending, str]]:
    """Both fakes, and the address of a real gateway between them and a browser."""
    fake = Pretending(reason)
    server = grpc.aio.server()
    sessions = method(fake.open_session, sessions_pb2.OpenSessionRequest, Said)
    streams = method(fake.stream, inference_pb2.StreamRequest, Down)
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler("gpufleet.v1.Scheduler", {"OpenSession": sessions}),
            grpc.method_handlers_generic_handler("gpufleet.v1.Inference", {"Stream": streams}),
        )
    )
    healthy: Any = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue] (its stubs lack it)
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    fake.endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    token = folder / "token"
    token.write_text(make_token() + "\n")
    token.chmod(0o600)
    flags = ("--port", "0", "--data", str(folder / "gateway"), "--token-file", str(token))
    gateway = Side(folder, "gateway", "gpufleet.gateway", *flags, "--scheduler", fake.endpoint)
    gateway.start()
    try:
        yield fake, await gateway.address()
    finally:
        gateway.end()
        await server.stop(0)


@pytest.mark.parametrize("reason", [Reason.NO_FREE_SEAT, Reason.WORKER_NOT_READY])
async def test_a_turn_whose_seat_is_not_free_yet_is_opened_with_a_new_ticket_a_little_later(
    reason: Reason, tmp_path: Path
) -> None:
    async with pretended(reason, tmp_path) as (fake, gateway), browser_at(gateway) as ann:
        await ann.hello("drawn")
        turn = await ann.text("turn")
        assert turn["session"] == "s1"
        # Each ticket opens one stream only, so each try is another one, of a connection that shows its place key.
        assert fake.tickets == ["ticket 1", "ticket 2", "ticket 3"]
        assert fake.joins == [(1, ""), (2, "key"), (3, "key")]
        assert fake.gone == [1, 2]
