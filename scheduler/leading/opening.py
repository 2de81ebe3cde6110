"""Opens the store of a start of the scheduler, and what it needs beside that where others may share it."""

import importlib.metadata
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpufleet.config.scheduler_settings import SchedulerSettings
from gpufleet.host.locked_folder import lock_folder
from gpufleet.net.addresses import Address
from gpufleet.telemetry.metrics import OFF as NO_METRICS
from gpufleet.telemetry.metrics import Metrics

from ..known_store import Memory
from ..store.opening import open_store, parse_url, without_psycopg
from ..store.store import SqlStore
from ..verifying import store_url
from .beats import Beats
from .database_clock import DatabaseClock
from .judging import LeadingRole, Run
from .keys import fingerprints_of
from .shown import observe

if TYPE_CHECKING:
    from .runs import Runs

CLOCK_QUESTIONS = 3


@dataclass(frozen=True, slots=True)
class Shared:
    """What a scheduler has beside a store that others may share."""

    url: str
    own: Run
    runs: "Runs"
    clock: DatabaseClock
    beats: Beats

    def hear_clock(self) -> None:
        """Ask the database for its time before anything is counted by it. Errors: StoreUnavailable."""
        for _ in range(CLOCK_QUESTIONS):
            asked_us = self.clock.count_us()
            clock_us = self.runs.clock_us()
            self.clock.heard(asked_us, self.clock.count_us(), clock_us)


@dataclass(frozen=True, slots=True)
class Opened:
    """An opened store: this process leads. `shared` is None where nobody can share it."""

    store: SqlStore
    shared: Shared | None

    def wall_us(self) -> Callable[[], int] | None:
        """The wall that the scheduler's clock is nudged towards; None for that of this machine."""
        return None if self.shared is None else self.shared.clock.now_us

    def close(self) -> None:
        """Let go of it before anything was served, so that another may lead."""
        if self.shared is not None:
            self.shared.beats.close()
        self.store.close()


def can_be_shared(settings: SchedulerSettings) -> bool:
    """Whether another scheduler may have the same store."""
    return parse_url(store_url(settings)).get_backend_name() != "sqlite"


@contextmanager
def data_folder_held(settings: SchedulerSettings) -> Iterator[None]:
    """Have the data folder for this process alone, whether it leads or stands by, until the end of the block.

    The lock is the kernel's: who was killed has it no more, and no row of the store needs to be believed. Where the
    store is SQLite its own lock does the same. Errors: ALREADY_RUNNING, FILE_NOT_FOUND.
    """
    lock = lock_folder(settings.data, "scheduler") if can_be_shared(settings) else None
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def open_at_once(settings: SchedulerSettings, memory: Memory, metrics: Metrics = NO_METRICS) -> Opened:
    """Open the store now. Errors: those of open_store, StoreLocked among them where another scheduler leads."""
    if not can_be_shared(settings):
        return Opened(open_store(store_url(settings), memory.admit), None)
    shared = shared_of(settings, metrics)
    return Opened(open_shared(shared, memory), shared)


def open_shared(shared: Shared, memory: Memory) -> SqlStore:
    """The same of a store that can be shared: it beats from the moment that it has the lock."""

    def begin() -> None:
        shared.hear_clock()
        shared.beats.begin()

    try:
        store = open_store(shared.url, memory.admit, identity=shared.own.identity, when_locked=begin)
    except BaseException:
        shared.beats.close()
        raise
    shared.beats.leads(store)
    return store


def shared_of(settings: SchedulerSettings, metrics: Metrics = NO_METRICS) -> Shared:
    """What this run of the program needs; nothing is asked of the store yet. Errors: StoreUrlInvalid."""
    try:
        from ..store.postgres import new_identity
        from .runs import Runs
    except ImportError as error:
        raise without_psycopg(error) from error

    url = store_url(settings)
    own = Run(
        identity=new_identity(),
        host=socket.gethostname(),
        pid=os.getpid(),
        address=str(Address(settings.host, settings.port)),
        data_folder=str(settings.data.absolute()),
        version=importlib.metadata.version("gpufleet"),
        role=LeadingRole.STANDING_BY,
    )
    clock = DatabaseClock()
    runs = Runs(url, own.identity)
    beats = Beats(runs, own, clock, lambda: fingerprints_of(settings))
    observe(metrics, own.identity, lambda: beats.last)
    return Shared(url, own, runs, clock, beats)
