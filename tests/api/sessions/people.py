"""A gateway with its people and a worker, as the scheduler sees them: two open streams each, and what came down."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from google.protobuf.duration_pb2 import Duration
from gpufleet.v1 import inference_pb2, scheduler_pb2_grpc, sessions_pb2

from gpufleet.security.tickets import make_secret
from tests.e2e.client import dial
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS

M = TypeVar("M")


class Inbox(Generic[M]):
    """Everything that came down a stream, in order."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.messages: list[M] = []
        self._changed = asyncio.Condition()
        self._reader = asyncio.create_task(self._read(), name="inbox")

    async def _read(self) -> None:
        async for message in self.call:
            async with self._changed:
                self.messages.append(message)
                self._changed.notify_all()

    async def first(self, wanted: Callable[[M], bool]) -> M:
        """The first message like this, waited for and taken out."""
        async with asyncio.timeout(DEADLINE_SECONDS), self._changed:
            while True:
                for index, message in enumerate(self.messages):
                    if wanted(message):
                        del self.messages[index]
                        return message
                if self._reader.done():
                    self._reader.result()
                    raise AssertionError(f"the stream ended without it: {self.messages}")
                await self._changed.wait()

    async def end(self) -> None:
        self.call.cancel()
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)


class GatewayStream:
    """One OpenSession stream."""

    def __init__(self, call: Any) -> None:
        self.inbox: Inbox[sessions_pb2.OpenSessionResponse] = Inbox(call)

    async def say(self, connection: int, **body: Any) -> None:
        await self.inbox.call.write(sessions_pb2.OpenSessionRequest(connection=connection, **body))

    async def join(self, connection: int, model: str, identity: str, place_key: str = "") -> None:
        join = sessions_pb2.JoinLine(model=model, identity=identity, place_key=place_key)
        await self.say(connection, join=join)

    async def grant(self, connection: int) -> sessions_pb2.TurnGrant:
        """The next seat that is offered to a connection."""
        return (await self._next(connection, "grant")).grant

    async def place(self, connection: int) -> sessions_pb2.PlaceInfo:
        return (await self._next(connection, "place")).place

    async def notice(self, connection: int) -> sessions_pb2.SessionNotice:
        return (await self._next(connection, "notice")).notice

    async def _next(self, connection: int, body: str) -> sessions_pb2.OpenSessionResponse:
        return await self.inbox.first(
            lambda message: message.connection == connection and message.WhichOneof("body") == body
        )


class WorkerStream:
    """One ConnectWorker stream of a worker that was started by hand."""

    def __init__(self, call: Any, model: str, seats: int) -> None:
        self.inbox: Inbox[sessions_pb2.ConnectWorkerResponse] = Inbox(call)
        self.model = model
        self.seats = seats
        self.start = secrets.token_hex(8)
        self.secret = make_secret()
        self.turns: dict[str, int] = {}
        self.ends = 0

    async def hello(self) -> None:
        hello = sessions_pb2.WorkerHello(
            model=self.model, endpoint="127.0.0.1:8001", worker_start=self.start, ticket_secret=self.secret
        )
        await self.inbox.call.write(sessions_pb2.ConnectWorkerRequest(hello=hello))
        await self.inbox.first(lambda message: message.HasField("welcome"))

    async def report(self, state: inference_pb2.WorkerState.ValueType = inference_pb2.WORKER_STATE_READY) -> None:
        """Say what lives here; every turn has just had input."""
        turns = [
            sessions_pb2.LiveTurn(
                session=session, epoch=epoch, age=Duration(), since_input=Duration(), is_attached=True
            )
            for session, epoch in self.turns.items()
        ]
        report = sessions_pb2.WorkerReport(state=state, progress=1.0, turns=turns, seats=self.seats)
        await self.inbox.call.write(sessions_pb2.ConnectWorkerRequest(report=report))

    async def open(self, grant: sessions_pb2.TurnGrant) -> None:
        """The person's stream was opened here."""
        self.turns[grant.session] = grant.epoch
        await self.report()

    async def ended(self, session: str, epoch: int, reason: str) -> None:
        self.ends += 1
        self.turns.pop(session, None)
        end = sessions_pb2.TurnEnded(session=session, epoch=epoch, reason=reason, number=self.ends)
        await self.inbox.call.write(sessions_pb2.ConnectWorkerRequest(ended=end))

    async def expected(self) -> sessions_pb2.ExpectTurn:
        return (await self.inbox.first(lambda message: message.HasField("expect"))).expect

    async def told_to_end(self) -> sessions_pb2.EndTurn:
        return (await self.inbox.first(lambda message: message.HasField("end"))).end


@asynccontextmanager
async def gateway(fleet: Fleet) -> AsyncIterator[GatewayStream]:
    """A gateway with its own token."""
    async with dial(fleet.scheduler.address, fleet.scheduler.token("gateway")) as channel:
        stream = GatewayStream(scheduler_pb2_grpc.SchedulerStub(channel).OpenSession())
        try:
            yield stream
        finally:
            await stream.inbox.end()


@asynccontextmanager
async def worker(fleet: Fleet, model: str, seats: int = 1) -> AsyncIterator[WorkerStream]:
    """A worker that is ready."""
    async with dial(fleet.scheduler.address, fleet.scheduler.token("admin")) as channel:
        stream = WorkerStream(scheduler_pb2_grpc.SchedulerStub(channel).ConnectWorker(), model, seats)
        try:
            await stream.hello()
            await stream.report()
            yield stream
        finally:
            await stream.inbox.end()
