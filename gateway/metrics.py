"""The gateway's metrics on /metrics, for who has a reader's token of the scheduler's."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc.aio
from gpufleet.v1 import scheduler_pb2, scheduler_pb2_grpc

from gpufleet.config.gateway_settings import GatewaySettings
from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.channel import Target, connect_async
from gpufleet.net.status import from_rpc_error
from gpufleet.telemetry.metrics import Metrics, Readings, on_loop
from gpufleet.telemetry.metrics_door import MetricsDoor, packed

from .measures import INSTRUMENTS

ASK_S_MAX = 5.0
GOOD_S = 60.0
"""A token that the scheduler has let through is not asked about again for so long."""

GOOD_AWAY_S = 24 * 3600.0
"""The same while the scheduler is not heard: just then the metrics are wanted."""

TOKENS_MAX = 100
"""Tokens that are remembered, by their digests."""


class MetricsOutlet:
    """Made inside the running loop; binds the port at once. Raises what is wrong with it."""

    def __init__(
        self, settings: GatewaySettings, metrics: Metrics, target: Target, read: Callable[[], Readings]
    ) -> None:
        self._metrics = metrics
        self._target = target
        self._good: OrderedDict[str, float] = OrderedDict()
        self._door: MetricsDoor | None = None

        async def reading() -> Readings:
            return read()

        if metrics.is_on:
            metrics.observe(INSTRUMENTS, on_loop(asyncio.get_running_loop(), reading))
        if settings.metrics.port is not None:
            self._door = MetricsDoor(
                settings.metrics,
                check=self._check,
                page=self._page,
                cert_file=settings.tls.cert_file,
                key_file=settings.tls.key_file,
            )

    async def run(self) -> None:
        """Serve until cancelled; without a port there is nothing to do."""
        if self._door is not None:
            await self._door.serve()

    async def _page(self, is_packed: bool) -> bytes:
        def made() -> bytes:
            text = self._metrics.text()
            return packed(text) if is_packed else text

        return await asyncio.to_thread(made)

    async def _check(self, token: str | None) -> None:
        """Let through whom the scheduler lets see the queue; the gateway knows no tokens."""
        if token is None:
            raise GpufleetError(Reason.TOKEN_MISSING)
        digest = hashlib.sha256(token.encode()).hexdigest()
        age_s = time.monotonic() - self._good.get(digest, float("-inf"))
        if age_s < GOOD_S:
            return
        try:
            await self._ask(token)
        except GpufleetError as error:
            if error.code.name in ("UNAVAILABLE", "DEADLINE_EXCEEDED") and age_s < GOOD_AWAY_S:
                return
            self._good.pop(digest, None)
            raise
        self._good[digest] = time.monotonic()
        self._good.move_to_end(digest)
        while len(self._good) > TOKENS_MAX:
            self._good.popitem(last=False)

    async def _ask(self, token: str) -> None:
        channel = connect_async(replace(self._target, token=token))
        stub: Any = scheduler_pb2_grpc.SchedulerStub(channel)
        try:
            await stub.Queue(scheduler_pb2.QueueRequest(page_size=1), timeout=ASK_S_MAX)
        except grpc.aio.AioRpcError as problem:
            raise from_rpc_error(problem) from None
        finally:
            await channel.close()
