"""Where the scheduler's metrics leave: by OTLP from the SDK's thread, and on /metrics for who has a reader's token."""

import asyncio
from collections.abc import Callable

from gpufleet.config.scheduler_settings import SchedulerSettings
from gpufleet.telemetry.metrics import Metrics, on_loop
from gpufleet.telemetry.metrics_door import MetricsDoor

from ..api.roles import Authenticator
from ..audit.log import AuditLog
from ..engine import Engine
from .fleet import INSTRUMENTS, read_fleet
from .page import Page

LIKE_CALL = "Scheduler/ListDevices"
"""Who may make this call may read the metrics: they tell the same of all devices."""


class MetricsOutlet:
    """Made inside the running loop; binds the port at once. Raises what is wrong with it."""

    def __init__(
        self,
        settings: SchedulerSettings,
        engine: Engine,
        metrics: Metrics,
        authenticator: Authenticator,
        audit: AuditLog,
        file_store_error: Callable[[], str],
    ) -> None:
        self._authenticator = authenticator
        self._page = Page(engine, metrics)
        self._door: MetricsDoor | None = None
        if metrics.is_on:
            loop = asyncio.get_running_loop()
            metrics.observe(INSTRUMENTS, on_loop(loop, lambda: read_fleet(engine, audit, file_store_error)))
        if settings.metrics.port is not None:
            self._door = MetricsDoor(
                settings.metrics,
                check=self._check,
                page=self._page.text,
                cert_file=settings.tls.cert_file,
                key_file=settings.tls.key_file,
            )

    async def run(self) -> None:
        """Serve until cancelled; without a port there is nothing to do."""
        try:
            if self._door is not None:
                await self._door.serve()
            await asyncio.get_running_loop().create_future()
        finally:
            await self._page.close()

    async def _check(self, token: str | None) -> None:
        self._authenticator.caller_of(LIKE_CALL, token)
