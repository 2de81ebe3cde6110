"""Keeps the agent connected: dials, registers, holds the streams, and dials again with growing pauses.

Several addresses are tried in turn, so that a scheduler may come back elsewhere. What is wrong is logged when it
changes and not with every try.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from gpufleet.v1 import node_agent_pb2, node_agent_pb2_grpc

from gpufleet.errors import GpufleetError, Reason
from gpufleet.host.agent_state import LOST, REFUSED, REGISTERED, UNREACHABLE
from gpufleet.net.addresses import Address
from gpufleet.net.channel import Target, connect_async, connected_within
from gpufleet.net.status import from_rpc_error

from .heartbeat import StaleTerm
from .streams import until_first

if TYPE_CHECKING:
    from gpufleet.v1.node_agent_pb2_grpc import NodeAgentAsyncStub

_log = logging.getLogger(__name__)

PROTOCOL_VERSION = 1
"""The version of the contract that this agent speaks."""

RETRY_SECONDS_MIN = 0.1
RETRY_SECONDS_MAX = 5.0
"""The pause between two rounds over the addresses doubles from the first to the second."""

REGISTER_SECONDS_MAX = 10.0
"""A scheduler that does not answer a registration in this time is taken for absent."""


FOLLOWING_RETRY_SECONDS_MAX = 1.0
CONNECT_SECONDS_MAX = 1.0
"""Of several addresses: the longest pause, and how long one of them may take to be connected before the next."""

DIALS_MAX = 2
"""In a try: an agent that is given a credential dials again with it, at once."""


class Link:
    """The way to the scheduler.

    `target_of` is asked before each dial, so that a token file that was replaced is read again. `hold` keeps one
    connection until it ends and raises what ended it; `accept` raises StaleTerm for a scheduler of an older term.
    `tell` hears whenever this stands otherwise than before: (address, state, error), states as in gpufleet/agent_state.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        *,
        target_of: Callable[[Address], Target],
        registration: Callable[[], node_agent_pb2.RegisterRequest],
        accept: Callable[[node_agent_pb2.RegisterResponse], None],
        hold: Callable[[NodeAgentAsyncStub, node_agent_pb2.RegisterResponse], Coroutine[Any, Any, None]],
        tell: Callable[[Address, str, GpufleetError | None], None] = lambda *_: None,
    ) -> None:
        assert addresses
        self._addresses = tuple(addresses)
        self._target_of = target_of
        self._registration = registration
        self._accept = accept
        self._hold = hold
        self._tell = tell
        self._renewal = asyncio.Event()
        self._problems: dict[Address, str] = {}
        self._held_s = 0.0
        self._has_several = len(self._addresses) > 1
        self._pause_s_max = FOLLOWING_RETRY_SECONDS_MAX if self._has_several else RETRY_SECONDS_MAX

    def renew(self) -> None:
        """Register again, because what is registered has changed."""
        self._renewal.set()

    async def run(self) -> None:
        """Stay connected until cancelled."""
        pause_s = RETRY_SECONDS_MIN
        while True:
            self._held_s = 0.0
            for address in self._addresses:
                await self._try(address)
            if self._held_s > RETRY_SECONDS_MAX:
                pause_s = RETRY_SECONDS_MIN
            # A fleet whose scheduler restarts must not come back in one beat.
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, self._pause_s_max)

    async def _try(self, address: Address) -> None:
        for _ in range(DIALS_MAX):
            if not await self._dial(address):
                return

    async def _dial(self, address: Address) -> bool:
        """Dial once and hold the connection. Answers whether to dial again at once, as somebody else."""
        try:
            target = self._target_of(address)
            channel = connect_async(replace(target, is_one_of_several=self._has_several))
        except GpufleetError as error:
            text = f"cannot connect to {address}: {error.message} {error.next_step}"
            self._say(address, logging.ERROR, text, REFUSED, error)
            return False
        try:
            if self._has_several:
                await connected_within(channel, CONNECT_SECONDS_MAX)
            return await self._register_and_hold(address, node_agent_pb2_grpc.NodeAgentStub(channel))
        except GpufleetError as error:
            self._say_refused(address, error)
        except StaleTerm as problem:
            stale = GpufleetError(Reason.CONFLICT, f"not obeying {address}: {problem}")
            self._say(address, logging.ERROR, stale.message, REFUSED, stale)
        except ConnectionError as problem:
            ended = GpufleetError(Reason.SCHEDULER_UNREACHABLE, str(problem))
            self._say(address, logging.WARNING, f"disconnected from {address}: {problem}", LOST, ended)
        except Exception:
            # Whatever one connection meets, jobs run here: the agent stays and tries the next one.
            _log.exception("the connection to %s ended by an error", address)
        finally:
            await channel.close()
        return False

    async def _register_and_hold(self, address: Address, stub: NodeAgentAsyncStub) -> bool:
        while True:
            self._renewal.clear()
            try:
                answer = await stub.Register(self._registration(), timeout=REGISTER_SECONDS_MAX)
            except grpc.aio.AioRpcError as problem:
                raise from_rpc_error(problem) from None
            self._accept(answer)
            if answer.credential:
                return True
            await self._hold_until_renewed(address, stub, answer)

    async def _hold_until_renewed(
        self, address: Address, stub: NodeAgentAsyncStub, answer: node_agent_pb2.RegisterResponse
    ) -> None:
        self._problems.clear()
        _log.info("connected to %s, seen as %s", address, answer.seen_address or "unknown")
        self._tell(address, REGISTERED, None)
        _log.info("registered with the scheduler, version %s, term %d", answer.scheduler_version, answer.term)
        since = time.monotonic()
        try:
            await until_first(self._hold(stub, answer), self._wait_for_renewal())
        except grpc.aio.AioRpcError as problem:
            raise ConnectionResetError(from_rpc_error(problem).message) from None
        finally:
            self._held_s = time.monotonic() - since

    async def _wait_for_renewal(self) -> None:
        await self._renewal.wait()

    def _say_refused(self, address: Address, error: GpufleetError) -> None:
        if error.reason in (Reason.SCHEDULER_UNREACHABLE, Reason.DEADLINE):
            text = f"not connected to {address}: {error.message}"
            self._say(address, logging.WARNING, text, UNREACHABLE, error)
        else:
            text = f"connected to {address} and not registered: {error.reason.name}: {error.message} {error.next_step}"
            self._say(address, logging.ERROR, text, REFUSED, error)

    def _say(self, address: Address, level: int, text: str, state: str, error: GpufleetError) -> None:
        """Log and tell what is new about an address; a try that fails like the one before it is no news."""
        if self._problems.get(address) != text:
            self._problems[address] = text
            _log.log(level, text)
            self._tell(address, state, error)
