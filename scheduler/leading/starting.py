"""A scheduler until it leads: it stands by, or opens the store as soon as the database lets it in.

Meanwhile it ends when it is told to, and reads its settings again as one that leads does.
"""

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpufleet.config.live import Live, Reloaded
from gpufleet.config.scheduler_settings import SchedulerSettings
from gpufleet.errors import GpufleetError
from gpufleet.host.service_manager import ServiceManager
from gpufleet.telemetry.logs import ProgramLog, fields
from gpufleet.telemetry.metrics import Metrics

from ..clock import is_set_within
from ..known_store import Memory
from ..store.errors import StoreUnavailable
from .opening import Opened, open_shared, shared_of
from .standing_by import StandBy

log = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

DATABASE_SECONDS_MAX = 600.0
"""A start waits so long for a database that is away, starting or recovering; then it fails, and says why."""

RETRY_SECONDS = 0.5
"""Between two tries to open the store."""

SIGN_SECONDS = 60.0
"""systemd hears within this time that the start still waits; it is longer than any one try takes."""


@contextmanager
def stop_signals() -> Iterator[asyncio.Event]:
    """An event that SIGTERM and SIGINT set until the end of the block."""
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stopping.set)
    try:
        yield stopping
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)


def reload_settings(settings: Live[SchedulerSettings], program_log: ProgramLog) -> Reloaded | None:
    """Read the settings again, and say what changed; None where they are wrong, and all stay as they were."""
    try:
        reloaded = settings.reload()
    except GpufleetError as error:
        log.error("the settings were not reloaded", extra=fields(why=error.message))
        return None
    program_log.apply(settings.now.log)
    for change in reloaded.applied:
        log.info("setting changed", extra=fields(change=str(change)))
    for change in reloaded.waiting:
        log.warning("setting waits for a restart", extra=fields(change=str(change)))
    return reloaded


async def come_to_lead(
    settings: Live[SchedulerSettings], memory: Memory, metrics: Metrics, service: ServiceManager
) -> Opened | None:
    """Stand by, or open the store at once, as the settings say; None where it was told to stop before.

    Errors: those of StandBy.lead and of open_when_there.
    """
    with stop_signals() as stopping:
        if not settings.now.standby:
            opened = await open_when_there(settings.now, memory, metrics, service, stopping)
        else:
            service.ready("stands by for the scheduler that leads")
            lives = asyncio.create_task(service.watch(), name="service-manager")
            try:
                opened = await StandBy(settings.now, memory, metrics).lead(stopping)
            finally:
                lives.cancel()
        if opened is not None and stopping.is_set():
            await asyncio.to_thread(opened.close)
            return None
        return opened


async def open_when_there(
    settings: SchedulerSettings,
    memory: Memory,
    metrics: Metrics,
    service: ServiceManager,
    stopping: asyncio.Event,
    *,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> Opened | None:
    """Open a store that others may share as soon as its server takes writes; None where it was told to stop before.

    Errors: those of open_store; StoreUnavailable where waiting helps nothing, or took DATABASE_SECONDS_MAX.
    """
    shared, began_s = shared_of(settings, metrics), monotonic_s()
    from ..store.server_state import ServerState, server_state

    told, was_writable = "", False
    while not stopping.is_set():
        try:
            store = await asyncio.to_thread(open_shared, shared, memory)
            if told:
                log.info("the database takes writes", extra=fields(waited_seconds=round(monotonic_s() - began_s, 1)))
            return Opened(store, shared)
        except StoreUnavailable as problem:
            state = await asyncio.to_thread(server_state, shared.url)
            # One that came back in between is tried once more; what it refuses then is no matter of waiting.
            came_back = state is ServerState.WRITABLE and not was_writable
            was_writable = state is ServerState.WRITABLE
            if not (state.may_pass or came_back) or monotonic_s() - began_s > DATABASE_SECONDS_MAX:
                raise
            if state.may_pass:
                if told != state.value:
                    log.warning(
                        "waiting for the database: it %s",
                        state.value,
                        extra=fields(seconds_max=round(DATABASE_SECONDS_MAX), why=str(problem)),
                    )
                told = state.value
                service.not_yet(f"waits for the database, which {state.value}", SIGN_SECONDS)
        await is_set_within(stopping, RETRY_SECONDS)
    return None
