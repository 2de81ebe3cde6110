"""A worker in this process behind a real gRPC server, and a client of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc.aio
from google.rpc import status_pb2
from gpufleet.v1 import inference_pb2, inference_pb2_grpc

from gpufleet.model import traits_of
from gpufleet.net.addresses import Address
from gpufleet.net.channel import Target, connect_async
from gpufleet.net.local_stream import MESSAGE, LocalStream, connect_local
from gpufleet.net.status import from_proto, from_rpc_error
from gpufleet.security.tickets import sign_ticket, ticket_for
from inference.loading import Loaded, NotLoaded, Wanted
from inference.service import Server
from inference.worker import Described, Worker

WAIT_S_MAX = 60.0
"""How long anything may take that a test waits for: the start of a worker on a busy machine is far from it."""

FRAME_BYTES_MAX = 4_000_000

ME = "0" * 64


@dataclass
class Running:
    """A worker that serves, and how to reach it."""

    worker: Worker
    server: Server
    stub: Any
    stub_channel: Any
    endpoint: str = ""
    local_key: bytes = b""
    is_local: bool = False
    """Whether clients are at its local socket."""

    def ticket(self, session: str, epoch: int = 1, *, identity: str = ME, at_s: float | None = None) -> str:
        described = self.worker.described
        now_s = time.time() if at_s is None else at_s
        made = ticket_for(session, epoch, worker_start=described.start, identity=identity, now_s=now_s)
        return sign_ticket(made, described.secret)

    async def client(self) -> Client:
        """A stream that is not open yet."""
        if not self.is_local:
            return Client(GrpcStream(self.stub.Stream()))
        return Client(SocketStream(await connect_local(self.local_key, FRAME_BYTES_MAX)))

    async def open(self, session: str, epoch: int = 1, **wanted: Any) -> Client:
        client = await self.client()
        await client.open(self.ticket(session, epoch), **wanted)
        return client


@asynccontextmanager
async def serving(
    model: Callable[[], Any] | None = None, entry_point: str = "a.b:C", *, is_local: bool = False
) -> AsyncIterator[Running]:
    """A worker with the model that the call makes, or what the entry point names. `is_local`: by its local socket."""

    def load() -> Loaded:
        assert model is not None
        try:
            made = model()
        except Exception as problem:
            raise NotLoaded(str(problem)) from problem
        return Loaded(made, traits_of(made))

    worker = Worker(
        Described(wanted=Wanted(entry_point=entry_point, arguments={}, device="cpu")),
        load if model is not None else None,
    )
    server = Server(worker)
    address = Address("127.0.0.1", server.listen(Address("127.0.0.1", 0), None))
    await server.start()
    key = await server.listen_locally()
    running = asyncio.create_task(worker.run())
    channel = connect_async(Target(address=address))
    try:
        async with asyncio.timeout(WAIT_S_MAX):
            await worker.wait_until_loaded()
        stub = inference_pb2_grpc.InferenceStub(channel)
        yield Running(worker, server, stub, channel, str(address), key, is_local)
    finally:
        await channel.close()
        worker.stop()
        await running
        await server.stop(0)


class Stream(Protocol):
    """What carries a stream. A refusal is raised as GpufleetError."""

    async def write(self, message: inference_pb2.StreamRequest) -> None: ...

    async def read(self) -> inference_pb2.StreamResponse | None: ...

    def cancel(self) -> None: ...


@dataclass
class GrpcStream:
    """A call of Inference.Stream."""

    call: Any

    async def write(self, message: inference_pb2.StreamRequest) -> None:
        await self.call.write(message)

    async def read(self) -> inference_pb2.StreamResponse | None:
        try:
            message = await self.call.read()
        except grpc.aio.AioRpcError as problem:
            raise from_rpc_error(problem) from None
        return None if message is grpc.aio.EOF else message

    def cancel(self) -> None:
        self.call.cancel()


@dataclass
class SocketStream:
    """A connection to the local socket."""

    stream: LocalStream

    async def write(self, message: inference_pb2.StreamRequest) -> None:
        await self.stream.write(message.SerializeToString())

    async def read(self) -> inference_pb2.StreamResponse | None:
        kind, data = await self.stream.read()
        if kind == MESSAGE:
            return inference_pb2.StreamResponse.FromString(data)
        status = status_pb2.Status.FromString(data)
        if status.code:
            raise from_proto(status)
        return None

    def cancel(self) -> None:
        self.stream.abort()


@dataclass
class Client:
    """One stream, as a gateway would hold it."""

    call: Stream
    opened: inference_pb2.TurnOpened | None = None
    sequence: int = 0
    notices: list[inference_pb2.StreamNotice] = field(default_factory=list)

    async def open(self, ticket: str, **wanted: Any) -> None:
        await self.say(open=inference_pb2.OpenTurn(ticket=ticket, **wanted))
        first = await self.next()
        assert first is not None and first.WhichOneof("body") == "opened", first
        self.opened = first.opened

    async def say(self, **body: Any) -> None:
        await self.call.write(inference_pb2.StreamRequest(**body))

    async def move(self, x: float, y: float) -> None:
        await self.input(pointer=inference_pb2.PointerInput(x=x, y=y))

    async def click(self, x: float = 0.5, y: float = 0.5, buttons: int = 1) -> None:
        await self.input(pointer=inference_pb2.PointerInput(x=x, y=y, buttons=buttons, is_button_change=True))

    async def key(self, key: str, is_down: bool = True, is_repeat: bool = False) -> None:
        await self.input(key=inference_pb2.KeyInput(key=key, is_down=is_down, is_repeat=is_repeat))

    async def input(self, **kind: Any) -> int:
        self.sequence += 1
        await self.say(input=inference_pb2.Input(sequence=self.sequence, **kind))
        return self.sequence

    async def next(self) -> inference_pb2.StreamResponse | None:
        """The next message; None at the end of the stream."""
        async with asyncio.timeout(WAIT_S_MAX):
            return await self.call.read()

    async def frame(self, *, says_shown: bool = True) -> inference_pb2.Frame:
        """The next frame; notices are put aside."""
        while (message := await self.next()) is not None:
            if message.WhichOneof("body") == "notice":
                self.notices.append(message.notice)
                assert not message.notice.is_end, message.notice
                continue
            if says_shown:
                await self.say(shown=inference_pb2.FrameShown(frame=message.frame.sequence))
            return message.frame
        raise AssertionError("the stream has ended")

    async def frame_with(self, sequence: int) -> inference_pb2.Frame:
        """The first frame that shows this input."""
        while (frame := await self.frame()).input_sequence < sequence:
            pass
        return frame

    async def end(self) -> inference_pb2.StreamNotice | None:
        """Read to the end; the notice that it ended with, if any."""
        last = None
        while (message := await self.next()) is not None:
            if message.WhichOneof("body") == "notice":
                last = message.notice
        return last

    async def leave(self) -> None:
        await self.say(leave=True)
        last = await self.end()
        assert last is not None and (last.reason, last.is_end) == ("LEFT", True)

    def vanish(self) -> None:
        """Go without a word."""
        self.call.cancel()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for it, within bounds."""
    async with asyncio.timeout(WAIT_S_MAX):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
