"""What a turn says to its worker, which is a bare server here that notes every message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import pytest
from gpufleet.v1 import inference_pb2, sessions_pb2

from gateway.carriers import LOCAL_VARIABLE, Down, Up
from gateway.protocol import Hello
from gateway.turn import INPUTS_WAITING, Turn
from gateway.workers import Workers
from gpufleet.net.addresses import parse_address
from gpufleet.net.channel import Target
from gpufleet.net.local_stream import LocalListener, LocalStream, Lost, can_be_local
from tests.e2e.processes import DEADLINE_SECONDS, until


class Noting:
    """A worker that opens every turn, and keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[Up] = []
        self.opened = inference_pb2.OpenTurn()
        self.reads = asyncio.Event()
        self.reads.set()

    async def stream(self, requests: Any, context: Any) -> None:
        self.opened = (await anext(requests)).open
        await context.write(Down(opened=inference_pb2.TurnOpened(session="s1", epoch=1, encoding="jpeg")))
        await self.reads.wait()
        async for request in requests:
            self.told.append(request)


@dataclass(frozen=True)
class Context:
    """What a worker writes to, on its local socket."""

    stream: LocalStream

    async def write(self, message: Down) -> None:
        await self.stream.write(message.SerializeToString())


async def requests_of(stream: LocalStream) -> AsyncIterator[Up]:
    with suppress(Lost):
        while True:
            yield Up.FromString((await stream.read())[1])


CARRIERS = ("grpc", "local") if can_be_local() else ("grpc",)


@pytest.fixture(params=CARRIERS)
def carrier(request: pytest.FixtureRequest) -> str:
    """How the worker is reached: all that is said is the same."""
    return str(request.param)


@asynccontextmanager
async def turn_at(worker: Noting, carrier: str) -> AsyncIterator[Turn]:
    """A turn that is open."""
    local = LocalListener(
        lambda stream: worker.stream(requests_of(stream), Context(stream)), message_bytes_max=64_000, streams_max=8
    )
    server = grpc.aio.server()
    method = grpc.stream_stream_rpc_method_handler(
        worker.stream, request_deserializer=Up.FromString, response_serializer=Down.SerializeToString
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("gpufleet.v1.Inference", {"Stream": method}),)
    )
    grant = sessions_pb2.TurnGrant(session="s1", endpoint="127.0.0.1:1")
    if carrier != "grpc":
        grant.local_key = await local.listen()
    if carrier != "local":
        grant.endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    if carrier == "gone":
        await local.stop(0.0)
    await server.start()
    workers = Workers(lambda grant: Target(address=parse_address(grant.endpoint)))
    turn = Turn(grant, Hello("drawn", "", 640, 480, (), density=1.5, is_deliberate=True), workers)
    opened = asyncio.Event()

    async def take(message: Down) -> None:
        opened.set()

    running = asyncio.create_task(turn.run(take))
    try:
        await opened.wait()
        yield turn
    finally:
        turn.stop()
        try:
            await running
        finally:
            await workers.close()
            await server.stop(None)
            await local.stop(0.0)


def key(sequence: int) -> inference_pb2.Input:
    return inference_pb2.Input(sequence=sequence, key=inference_pb2.KeyInput(key="a", is_down=True))


async def test_what_was_shown_goes_with_an_input_that_comes_at_the_same_time(carrier: str) -> None:
    worker = Noting()
    async with turn_at(worker, carrier) as turn:
        turn.put_shown(1)
        turn.put_shown(2)
        await turn.put_input(key(1))
        await turn.put_input(key(2))
        await until("both are told", lambda: len(worker.told) == 2)
    assert [(each.WhichOneof("body"), each.shown_frame) for each in worker.told] == [("input", 2), ("input", 0)]


async def test_what_was_shown_goes_alone_where_no_input_comes(carrier: str) -> None:
    worker = Noting()
    async with turn_at(worker, carrier) as turn:
        turn.put_shown(7)
        await until("it is told", lambda: len(worker.told) == 1)
        turn.put_shown(9)
        await until("it is told", lambda: len(worker.told) == 2)
    assert [each.shown.frame for each in worker.told] == [7, 9]


async def test_who_waits_for_room_at_a_turn_that_ends_waits_no_longer(carrier: str) -> None:
    """Else nothing of the browser would be read any more: no input of the next turn, and not that it has gone."""
    worker = Noting()
    worker.reads.clear()
    async with turn_at(worker, carrier) as turn:
        text = inference_pb2.Input(text="x" * 1_000)
        full = asyncio.create_task(put_many(turn, text))
        await until("the turn holds as much as it may", lambda: not turn._room.is_set())
        assert not full.done()
        turn.stop()
        await asyncio.wait_for(full, DEADLINE_SECONDS)
        worker.reads.set()


async def put_many(turn: Turn, said: inference_pb2.Input) -> None:
    """More than fits on the way and waits here."""
    for number in range(20 * INPUTS_WAITING):
        said.sequence = number + 1
        copy = inference_pb2.Input()
        copy.CopyFrom(said)
        await turn.put_input(copy)


async def test_the_worker_is_told_the_room_for_the_picture_and_that_a_person_asked_for_it(carrier: str) -> None:
    worker = Noting()
    async with turn_at(worker, carrier):
        opened = worker.opened
        assert (opened.width, opened.height, opened.density, opened.is_deliberate) == (640, 480, 1.5, True)


@pytest.mark.skipif(not can_be_local(), reason="this system has no abstract Unix sockets")
async def test_a_worker_whose_local_socket_is_gone_is_reached_by_grpc() -> None:
    worker = Noting()
    async with turn_at(worker, "gone") as turn:
        turn.put_shown(1)
        await until("it is told", lambda: len(worker.told) == 1)


@pytest.mark.skipif(not can_be_local(), reason="this system has no abstract Unix sockets")
async def test_local_sockets_can_be_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Noting()
    monkeypatch.setenv(LOCAL_VARIABLE, "off")
    monkeypatch.setattr("gateway.carriers.connect_local", None)
    async with turn_at(worker, "both") as turn:
        turn.put_shown(1)
        await until("it is told", lambda: len(worker.told) == 1)


@pytest.mark.skipif(not can_be_local(), reason="this system has no abstract Unix sockets")
@pytest.mark.parametrize("said", [b"\xff\xff", b""], ids=["no message", "nothing"])
async def test_a_worker_that_says_what_is_none_of_its_messages_loses_the_stream(said: bytes) -> None:
    async def serve(stream: LocalStream) -> None:
        await stream.read()
        await stream.write(Down(opened=inference_pb2.TurnOpened(session="s1", epoch=1)).SerializeToString())
        if said:
            await stream.write(said)

    local = LocalListener(serve, message_bytes_max=64_000, streams_max=8)
    grant = sessions_pb2.TurnGrant(session="s1", endpoint="127.0.0.1:1", local_key=await local.listen())
    workers = Workers(lambda grant: Target(address=parse_address(grant.endpoint)))
    turn = Turn(grant, Hello("drawn", "", 640, 480, (), density=1.5, is_deliberate=True), workers)
    taken: list[Down] = []

    async def take(message: Down) -> None:
        taken.append(message)

    with pytest.raises(Lost):
        await turn.run(take)
    assert [each.WhichOneof("body") for each in taken] == ["opened"]
    assert not turn.has_ended, "it is opened again"
    await local.stop(0.0)
