"""What a turn says to its worker, which is a bare server here that notes every message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from gpufleet.v1 import inference_pb2, sessions_pb2

from gateway.protocol import Hello
from gateway.turn import Down, Turn, Up
from gateway.workers import Workers
from gpufleet.addresses import parse_address
from gpufleet.channel import Target
from tests.e2e.processes import until


class Noting:
    """A worker that opens every turn, and keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[Up] = []

    async def stream(self, requests: Any, context: Any) -> None:
        await context.write(Down(opened=inference_pb2.TurnOpened(session="s1", epoch=1, encoding="jpeg")))
        async for request in requests:
            self.told.append(request)


@asynccontextmanager
async def turn_at(worker: Noting) -> AsyncIterator[Turn]:
    """A turn that is open."""
    server = grpc.aio.server()
    method = grpc.stream_stream_rpc_method_handler(
        worker.stream, request_deserializer=Up.FromString, response_serializer=Down.SerializeToString
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("gpufleet.v1.Inference", {"Stream": method}),)
    )
    grant = sessions_pb2.TurnGrant(session="s1", endpoint=f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    await server.start()
    workers = Workers(lambda grant: Target(address=parse_address(grant.endpoint)))
    turn = Turn(grant, Hello("drawn", "", 0, 0, ()), workers)
    opened = asyncio.Event()

    async def take(message: Down) -> None:
        opened.set()

    running = asyncio.create_task(turn.run(take))
    try:
        await opened.wait()
        yield turn
    finally:
        turn.stop()
        await running
        await workers.close()
        await server.stop(None)


def key(sequence: int) -> inference_pb2.Input:
    return inference_pb2.Input(sequence=sequence, key=inference_pb2.KeyInput(key="a", is_down=True))


async def test_what_was_shown_goes_with_an_input_that_comes_at_the_same_time() -> None:
    worker = Noting()
    async with turn_at(worker) as turn:
        turn.put_shown(1)
        turn.put_shown(2)
        await turn.put_input(key(1))
        await turn.put_input(key(2))
        await until("both are told", lambda: len(worker.told) == 3)
    assert [(each.WhichOneof("body"), each.shown_frame) for each in worker.told[1:]] == [("input", 2), ("input", 0)]


async def test_what_was_shown_goes_alone_where_no_input_comes() -> None:
    worker = Noting()
    async with turn_at(worker) as turn:
        turn.put_shown(7)
        await until("it is told", lambda: len(worker.told) == 2)
        turn.put_shown(9)
        await until("it is told", lambda: len(worker.told) == 3)
    assert [each.shown.frame for each in worker.told[1:]] == [7, 9]
