"""The way to the scheduler: one OpenSession stream for all people of this gateway.

When it breaks, people stay, are told that the line is not heard just now, and are joined again with their keys once
the scheduler is back: turns go on meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

import grpc.aio
from gpufleet.v1 import scheduler_pb2_grpc, sessions_pb2

from gpufleet.errors import GpufleetError
from gpufleet.host.facts import first_installed
from gpufleet.net.addresses import addresses_text
from gpufleet.net.channel import Target, connect_async
from gpufleet.net.status import from_rpc_error
from gpufleet.telemetry.logs import fields

log = logging.getLogger(__name__)

RETRY_S_MIN, RETRY_S_MAX = 0.1, 3.0
"""The pause between two tries grows from the first to the second."""

FOLLOWING_RETRY_S_MAX = 1.0
"""The longest pause where a standby may take over."""

MESSAGES_WAITING = 100_000
"""Messages that may wait for a scheduler that does not read; more end the stream, and everybody is joined again."""

NAME_CHARS_MAX = 100
"""More of the gateway's name is not said."""

Request = sessions_pb2.OpenSessionRequest
Response = sessions_pb2.OpenSessionResponse


class Listener(Protocol):
    """One person, as the line sees them."""

    def on_told(self, message: Response) -> None:
        """The scheduler said something about this person."""
        ...

    def on_silence(self) -> None:
        """The scheduler is not heard just now."""
        ...


@dataclass(slots=True, eq=False)
class Place:
    """One person's connection: what joins it, again too."""

    number: int
    join: sessions_pb2.JoinLine
    listener: Listener


class Lines:
    """All places of this gateway, which has a `name`. Made inside the running loop; `run` holds the stream."""

    def __init__(self, target: Target, name: str = "") -> None:
        self._target = target
        self._hello = Request(
            hello=sessions_pb2.GatewayHello(
                gateway=name[:NAME_CHARS_MAX], gateway_version=first_installed(["gpufleet"])
            )
        )
        self._numbers = itertools.count(1)
        self._places: dict[int, Place] = {}
        self._waiting: deque[Request] = deque()
        self._wakeup = asyncio.Event()
        self._is_written = asyncio.Event()
        self._is_written.set()
        self.is_connected = False

    def join(self, join: sessions_pb2.JoinLine, listener: Listener) -> Place:
        """Want a place. What follows is told to the listener."""
        place = Place(next(self._numbers), join, listener)
        self._places[place.number] = place
        self._send(Request(connection=place.number, join=join))
        return place

    def leave(self, place: Place, **body: Any) -> None:
        """Be gone: `leave`, `closed` or `disconnected`; nothing more is told."""
        if self._places.pop(place.number, None) is not None:
            self._send(Request(connection=place.number, **body))

    def join_again(self, place: Place) -> None:
        """Ask for the turn once more: its stream was lost, and a ticket opens one stream only."""
        if self._places.pop(place.number, None) is None:
            return
        self._send(Request(connection=place.number, disconnected=True))
        place.number = next(self._numbers)
        self._places[place.number] = place
        self._send(Request(connection=place.number, join=place.join))

    def forget(self, place: Place) -> None:
        """The scheduler has ended it."""
        self._places.pop(place.number, None)

    def worker_is_unreachable(self, place: Place) -> None:
        """Say that the worker of a turn cannot be reached from here."""
        self._send(Request(connection=place.number, worker_unreachable=True))

    def step_broke(self, place: Place, broken: sessions_pb2.StepBroken) -> None:
        """Say what was under way as the stream of a turn broke."""
        self._send(Request(connection=place.number, step_broken=broken))

    async def flush(self, wait_s: float) -> None:
        """Give what was not written yet a moment to leave."""
        try:
            async with asyncio.timeout(wait_s):
                while self.is_connected and not self._is_written.is_set():
                    await self._is_written.wait()
        except TimeoutError:
            pass

    def _send(self, request: Request) -> None:
        # Without a stream there is nobody to tell: everybody who is still here is joined when there is one.
        if self.is_connected:
            self._waiting.append(request)
            self._is_written.clear()
            self._wakeup.set()

    async def run(self) -> None:
        """Hold the stream until cancelled."""
        pause_s = RETRY_S_MIN
        pause_s_max = FOLLOWING_RETRY_S_MAX if self._target.others else RETRY_S_MAX
        while True:
            held = await self._try()
            pause_s = RETRY_S_MIN if held else min(pause_s * 2, pause_s_max)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))

    async def _try(self) -> bool:
        """Hold one stream as long as it lasts; answers whether it was one."""
        channel = connect_async(self._target)
        was_connected = False
        where = addresses_text(self._target.addresses)
        try:
            call: Any = scheduler_pb2_grpc.SchedulerStub(channel).OpenSession()
            await call.wait_for_connection()
            was_connected = True
            await self._hold(call)
        except grpc.aio.AioRpcError as problem:
            refused = from_rpc_error(problem)
            log.warning("the scheduler is not heard", extra=fields(at=where, why=refused.message))
        except GpufleetError as error:
            log.warning("the scheduler is not heard", extra=fields(at=where, why=error.message))
        finally:
            self.is_connected = False
            await channel.close()
        if was_connected:
            for place in list(self._places.values()):
                place.listener.on_silence()
        return was_connected

    async def _hold(self, call: Any) -> None:
        joins = (Request(connection=each.number, join=each.join) for each in self._places.values())
        self._waiting = deque((self._hello, *joins))
        self._wakeup.set()
        self.is_connected = True
        sending = asyncio.create_task(self._write(call), name="lines-writer")
        try:
            async for message in call:
                place = self._places.get(message.connection)
                if place is not None:
                    self._take(place, message)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            call.cancel()

    def _take(self, place: Place, message: Response) -> None:
        key = message.place.place_key or message.grant.place_key
        if key:
            place.join.place_key = key
        place.listener.on_told(message)

    async def _write(self, call: Any) -> None:
        while True:
            while self._waiting:
                if len(self._waiting) > MESSAGES_WAITING:
                    call.cancel()
                    return
                await call.write(self._waiting.popleft())
            self._is_written.set()
            self._wakeup.clear()
            await self._wakeup.wait()
