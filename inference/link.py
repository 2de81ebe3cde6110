"""The worker's line to its scheduler: says what it holds, hears what to expect and to end, and dials again.

Turns go on while the scheduler is away. On each connection the worker lists what it holds; ends are told again until
they are acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

import grpc.aio
from gpufleet.v1 import inference_pb2, scheduler_pb2_grpc, sessions_pb2

from gpufleet.errors import GpufleetError
from gpufleet.net.addresses import Address
from gpufleet.net.channel import Target, connect_async, connected_within
from gpufleet.net.status import from_rpc_error

_log = logging.getLogger(__name__)

RETRY_S_MIN = 0.1
RETRY_S_MAX = 5.0
"""The pause between two rounds over the addresses doubles from the first to the second."""

FOLLOWING_PAUSE_S_MAX = 1.0
CONNECT_S_MAX = 1.0
"""Of several addresses: the longest pause, and how long one of them may take to be connected before the next."""

REPORT_S = 1.0
"""While there are turns, their idle times are told this often; what changes is told at once."""

QUIET_REPORT_S = 10.0
"""Without turns: so that when a worker was heard last, and its load, are those of now."""

WELCOME_S_MAX = 10.0
"""A scheduler that does not answer a hello in this time is taken for absent."""


class LinkedWorker(Protocol):
    """What the line needs of a worker, whatever it serves."""

    @property
    def changed(self) -> asyncio.Event:
        """Set when a report would say something new; the line clears it."""
        ...

    @property
    def has_turns(self) -> bool:
        """Whether its reports say something new all the time."""
        ...

    @property
    def ends(self) -> Sequence[sessions_pb2.TurnEnded]:
        """Ends of turns that were not acknowledged yet, by rising number."""
        ...

    @property
    def card(self) -> sessions_pb2.ModelCard | None:
        """What people are shown of its model, once it is ready; None where there is nothing to show."""
        ...

    def tell(self) -> None:
        """Set `changed`."""
        ...

    def report(self) -> sessions_pb2.ConnectWorkerRequest:
        """What it says of itself now."""
        ...

    def expect(self, session: str, epoch: int, identity: str) -> None:
        """A turn was granted here."""
        ...

    def end(self, session: str, epoch: int, reason: str) -> None:
        """A turn is over."""
        ...

    def acknowledged(self, number: int) -> None:
        """The ends up to this number are stored."""
        ...

    def drain(self) -> None:
        """Take nothing new, and finish after the last that goes on."""
        ...

    def set_scheduler_time(self, now_s: float) -> None:
        """The scheduler's clock says this now."""
        ...


async def _nothing() -> None:
    """What is done before a round of dials, where nothing is."""


class Link:
    """One worker's connection to the schedulers at these addresses, one after the other.

    `target_of` is asked before each dial, so that a token file that was replaced is read again. `hello` is the first
    message on each connection; `before` comes before each round of dials.
    """

    def __init__(
        self,
        worker: LinkedWorker,
        addresses: Sequence[Address],
        *,
        target_of: Callable[[Address], Target],
        hello: Callable[[], sessions_pb2.WorkerHello],
        before: Callable[[], Coroutine[Any, Any, None]] = _nothing,
    ) -> None:
        assert addresses
        self._worker = worker
        self._addresses = tuple(addresses)
        self._target_of = target_of
        self._hello = hello
        self._before = before
        self._problem = ""
        self._held_s = 0.0
        self._ends_told = 0
        self._is_leaving = False
        self._has_said_all = False
        self._left = asyncio.Event()
        self._has_several = len(self._addresses) > 1
        self._pause_s_max = FOLLOWING_PAUSE_S_MAX if self._has_several else RETRY_S_MAX

    async def run(self) -> None:
        """Stay connected until cancelled, or until `leave` has been heard."""
        pause_s = RETRY_S_MIN
        while True:
            self._held_s = 0.0
            await self._before()
            for address in self._addresses:
                await self._try(address)
                if self._has_said_all:
                    self._left.set()
                    return
            if self._held_s > RETRY_S_MAX:
                pause_s = RETRY_S_MIN
            # Workers whose scheduler restarts must not all come back in one beat.
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, self._pause_s_max)

    async def leave(self, wait_s: float) -> None:
        """Say what was not told yet, and wait until the scheduler has read it, for so long at most.

        What a stream still carries when it is cut gets lost, such as which session a worker hung in.
        """
        self._is_leaving = True
        self._worker.tell()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._left.wait()

    async def _try(self, address: Address) -> None:
        try:
            target = self._target_of(address)
            channel = connect_async(replace(target, is_one_of_several=self._has_several))
        except GpufleetError as error:
            self._say(logging.ERROR, f"cannot connect to {address}: {error.message} {error.next_step}")
            return
        try:
            if self._has_several:
                await connected_within(channel, CONNECT_S_MAX)
            await self._hold(address, scheduler_pb2_grpc.SchedulerStub(channel))
        except grpc.aio.AioRpcError as problem:
            refused = from_rpc_error(problem)
            why = f"{refused.reason.name}: {refused.message} {refused.next_step}".rstrip()
            self._say(logging.WARNING, f"not connected to {address}: {why}")
        except GpufleetError as problem:
            self._say(logging.WARNING, f"not connected to {address}: {problem.message}")
        except ConnectionError as problem:
            self._say(logging.WARNING, f"not connected to {address}: {problem}")
        except Exception:
            # Whatever one connection meets, people have turns here: the worker stays and tries the next one.
            _log.exception("the connection to %s ended by an error", address)
        finally:
            await channel.close()

    async def _hold(self, address: Address, stub: Any) -> None:
        call = stub.ConnectWorker()
        try:
            with suppress(asyncio.InvalidStateError):  # it has ended: why, the reading says
                await call.write(sessions_pb2.ConnectWorkerRequest(hello=self._hello()))
            try:
                async with asyncio.timeout(WELCOME_S_MAX):
                    first = await call.read()
            except TimeoutError:
                raise ConnectionError(f"no answer within {WELCOME_S_MAX:g} s") from None
            if first is grpc.aio.EOF or first.WhichOneof("command") != "welcome":
                raise ConnectionError("the scheduler's first message is no welcome")
            since = time.monotonic()
            self._problem = ""
            _log.info("connected to the scheduler at %s", address)
            self._take(first)
            try:
                await self._talk(call)
            finally:
                self._held_s = time.monotonic() - since
        finally:
            call.cancel()

    async def _talk(self, call: Any) -> None:
        sending = asyncio.create_task(self._send(call))
        try:
            # A write fails where the call is over, and so the reading comes to its end.
            while (message := await call.read()) is not grpc.aio.EOF:
                self._take(message)
            if self._has_said_all:
                return
            raise ConnectionError("the scheduler ended the stream")
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send(self, call: Any) -> None:
        """Reports: the first at once, then whatever is new, and else idle times, or that the worker is there."""
        worker = self._worker
        self._ends_told = 0
        is_card_told = False
        while True:
            worker.changed.clear()
            for end in worker.ends:
                if end.number > self._ends_told:
                    await call.write(sessions_pb2.ConnectWorkerRequest(ended=end))
                    self._ends_told = end.number
            said = worker.report()
            if said.report.state == inference_pb2.WORKER_STATE_READY and not is_card_told:
                if (card := worker.card) is not None:
                    said.report.card.CopyFrom(card)
                is_card_told = True
            await call.write(said)
            if self._is_leaving and not worker.changed.is_set():
                self._has_said_all = True
                await call.done_writing()
                return
            try:
                async with asyncio.timeout(REPORT_S if worker.has_turns else QUIET_REPORT_S):
                    await worker.changed.wait()
            except TimeoutError:
                pass

    def _take(self, message: sessions_pb2.ConnectWorkerResponse) -> None:
        worker = self._worker
        match message.WhichOneof("command"):
            case "welcome":
                self._take_time(message.welcome)
            case "expect":
                self._take_time(message.expect)
                worker.expect(message.expect.session, message.expect.epoch, message.expect.identity)
            case "end":
                worker.end(message.end.session, message.end.epoch, message.end.reason)
            case "drain":
                worker.drain()
            case "ends_acknowledged":
                worker.acknowledged(message.ends_acknowledged.number)
            case other:
                _log.warning("the scheduler asks for %s, which this version does not do", other)

    def _take_time(self, message: sessions_pb2.WorkerWelcome | sessions_pb2.ExpectTurn) -> None:
        if message.HasField("server_time"):
            self._worker.set_scheduler_time(message.server_time.ToMicroseconds() / 1e6)

    def _say(self, level: int, text: str) -> None:
        """Log what is new; a try that fails like the one before it is no news."""
        if self._problem != text:
            self._problem = text
            _log.log(level, text)
