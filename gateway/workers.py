"""Channels to workers, kept from one turn to the next: to dial costs a freed seat almost a millisecond, more with TLS.

All turns of a worker share one channel. Without a turn its connection ends after IDLE_MS_MAX, and is dialled again when
it is wanted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import grpc.aio
from gpufleet.v1 import sessions_pb2

from gpufleet.net.addresses import Address
from gpufleet.net.channel import Options, Target, connect_async

IDLE_MS_MAX = 60_000
"""The connection to a worker without a turn from here is kept for so long."""

WITHOUT_TURN_MAX = 64
"""Channels that are kept for workers without a turn from here; of more the one that waits longest is closed."""

WELL = (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING, grpc.ChannelConnectivity.READY)
"""States of a channel that dials at once. Any other one waits first, after a dial that failed."""


@dataclass(slots=True, eq=False)
class _Kept:
    target: Target
    channel: grpc.aio.Channel
    turns: int = 0


class Workers:
    """The workers that turns of this gateway are at. To be used inside the running loop, and closed there.

    `target` says where the worker of a grant is, and what certificate it must hold.
    """

    def __init__(self, target: Callable[[sessions_pb2.TurnGrant], Target]) -> None:
        self._target = target
        self._kept: dict[Address, _Kept] = {}
        """By where they lead; the one that got or lost a turn last stands last."""

    @asynccontextmanager
    async def reached(self, grant: sessions_pb2.TurnGrant) -> AsyncIterator[grpc.aio.Channel]:
        """A channel to a turn's worker, for the length of the block."""
        target = self._target(grant)
        kept = self._kept.pop(target.address, None)
        if kept is None or kept.target != target or kept.channel.get_state() not in WELL:
            if kept is not None and not kept.turns:
                await kept.channel.close()
            kept = _Kept(target, connect_async(target, _options()))
        self._kept[target.address] = kept
        kept.turns += 1
        try:
            yield kept.channel
        finally:
            kept.turns -= 1
            if not kept.turns:
                await self._keep(kept)

    async def close(self) -> None:
        """Close every channel."""
        kept, self._kept = self._kept, {}
        for each in kept.values():
            await each.channel.close()

    async def _keep(self, left: _Kept) -> None:
        """Keep a channel that has lost its last turn, if it is of any use."""
        address = left.target.address
        if self._kept.get(address) is left:
            del self._kept[address]
            if left.channel.get_state() is grpc.ChannelConnectivity.READY:
                self._kept[address] = left
                await self._close_oldest()
                return
        await left.channel.close()

    async def _close_oldest(self) -> None:
        without_turn = [address for address, each in self._kept.items() if not each.turns]
        for address in without_turn[:-WITHOUT_TURN_MAX]:
            await self._kept.pop(address).channel.close()


def _options() -> Options:
    return (
        ("grpc.client_idle_timeout_ms", IDLE_MS_MAX),
        # Else a new channel would share the old one's pause behind a dial that failed.
        ("grpc.use_local_subchannel_pool", 1),
    )
