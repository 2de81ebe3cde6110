"""The leader's side: it beats as long as its event loop and its commits move, and ends when another one leads.

A thread beats, from the moment that this process has the lock, over a connection that waits for no commit. Whoever
reads a large store, or brings its tables up to date, beats as well: it is no leader that hangs.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from gpufleet.telemetry.logs import fields

from ..store.errors import StoreUnavailable, TermSuperseded
from ..store.store import SqlStore
from .database_clock import DatabaseClock
from .judging import LeadingRole, Look, Run
from .keys import Fingerprint

if TYPE_CHECKING:
    from .runs import Runs

log = logging.getLogger(__name__)

BEAT_SECONDS = 0.5
TICK_SECONDS = 0.25
"""How often the event loop says that it moves."""
LOOP_SECONDS_MAX = 1.0
"""An event loop that has not moved for longer does not move: there is no beat."""
COMMIT_SECONDS_MAX = 10.0
"""The same of a commit that has neither come to its end nor failed."""
BEGIN_SECONDS_MAX = 900.0
"""A start may take so long from the lock until it serves; beyond that it counts as one that hangs."""
ALONE_SECONDS_MAX = 10.0
"""A leader that does not reach its store for longer, while another stands by, is no leader any more."""
FORGET_EVERY_BEATS = 120
CLOSE_SECONDS_MAX = 5.0


class Beats:
    """Keeps the row of who leads, and knows of the others.

    `keys` answers the keys that are there now.
    """

    def __init__(
        self,
        runs: "Runs",
        own: Run,
        clock: DatabaseClock,
        keys: Callable[[], dict[str, Fingerprint]],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runs = runs
        self._own = replace(own, role=LeadingRole.BEGINNING)
        self._clock = clock
        self._keys = keys
        self._kept_keys: dict[str, Fingerprint] | None = None
        self._monotonic_s = monotonic_s
        self._begun_s = monotonic_s()
        self._looped_s: float | None = None
        self._heard_s = self._begun_s
        self.last = Look()
        """What the store said at the newest beat."""
        self._is_silent = False
        self._store: SqlStore | None = None
        self._on_end: Callable[[TermSuperseded], None] = lambda why: None
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    @property
    def identity(self) -> str:
        """What this run of the program is named by."""
        return self._own.identity

    def begin(self) -> None:
        """The lock is held. It may have been held before, and lost again while the store was opened."""
        if self._thread is None:
            self._begun_s = self._heard_s = self._monotonic_s()
            self._ending = threading.Event()
            self._thread = threading.Thread(target=self._beat_on, args=(self._ending,), name="beats", daemon=True)
            self._thread.start()

    def leads(self, store: SqlStore) -> None:
        """The store is opened, in its term."""
        self._store = store
        self._own = replace(self._own, term=store.term)

    def serves(self, address: str) -> None:
        """It is reached there from now on."""
        self._own = replace(self._own, role=LeadingRole.LEADING, address=address)

    def tick(self) -> None:
        """The event loop moves."""
        self._looped_s = self._monotonic_s()

    async def run(self) -> None:
        """Say that the event loop moves, as long as nobody else leads. Errors: TermSuperseded."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[TermSuperseded] = loop.create_future()

        def end(why: TermSuperseded) -> None:
            if not ended.done():
                ended.set_result(why)

        self._on_end = partial(_on_loop, loop, end)
        while not ended.done():
            self.tick()
            await asyncio.wait({ended}, timeout=TICK_SECONDS)
        raise ended.result()

    def close(self) -> None:
        """Beat no more, and leave: a standby need not wait. `begin` begins anew."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ending.set()
            thread.join(CLOSE_SECONDS_MAX)
        self._runs.close()

    def why_not(self) -> str:
        """What does not move; empty where all does."""
        now_s = self._monotonic_s()
        if self._own.role is LeadingRole.BEGINNING and self._looped_s is None:
            return "" if now_s - self._begun_s <= BEGIN_SECONDS_MAX else "the start takes too long"
        if self._looped_s is not None and now_s - self._looped_s > LOOP_SECONDS_MAX:
            return "the event loop does not move"
        began_s = None if self._store is None else self._store.commit_began_s
        if began_s is not None and now_s - began_s > COMMIT_SECONDS_MAX:
            return "a commit does not come to its end"
        return ""

    def beat(self) -> TermSuperseded | None:
        """One beat, or none where something does not move. Answers why this process must end; None where it need not.

        Errors: StoreUnavailable.
        """
        why_not = self.why_not()
        if bool(why_not) != self._is_silent:
            self._is_silent = bool(why_not)
            log.warning("no beats, so that a standby takes over: %s", why_not) if why_not else log.info("beats go on")
        sequence = 0 if self._store is None else self._store.newest_sequence()
        own = None if why_not else replace(self._own, sequence=sequence)
        asked_us = self._clock.count_us()
        look = self._runs.look(own)
        if look.clock_us:
            self._clock.heard(asked_us, self._clock.count_us(), look.clock_us)
        self.last, self._heard_s = look, self._monotonic_s()
        if self._own.term and look.term > self._own.term:
            return TermSuperseded(
                f"another scheduler leads in term {look.term}; the term of this one was {self._own.term}"
            )
        if self._own.term and look.has_runs:
            self._keep_keys()
        return None

    def why_alone(self, problem: StoreUnavailable) -> TermSuperseded | None:
        """Why a leader that cannot beat must end: another may lead by now, and nothing tells this one."""
        silent_s = self._monotonic_s() - self._heard_s
        others = [run for run in self.last.runs if run.role is LeadingRole.STANDING_BY]
        # A server that refuses is down for a standby as well, and nodes are told to stop what people cancel meanwhile.
        if not others or silent_s < ALONE_SECONDS_MAX or is_down(str(problem)) or self._runs.can_nobody_write():
            return None
        return TermSuperseded(
            f"the store has not answered for {silent_s:.0f} s, and {others[0].host} stands by: it may lead by now"
        )

    def _keep_keys(self) -> None:
        keys = self._keys()
        if keys and keys != self._kept_keys:
            self._runs.keep_fingerprints(keys)
            self._kept_keys = keys

    def _beat_on(self, ending: threading.Event) -> None:
        count, has_failed = 0, False
        while not ending.wait(0 if not count else BEAT_SECONDS):
            count += 1
            try:
                end = self.beat()
                if count % FORGET_EVERY_BEATS == 0:
                    self._runs.forget_old()
                has_failed = False
            except StoreUnavailable as problem:
                if not has_failed:
                    log.warning("the store takes no beats", extra=fields(why=str(problem)))
                has_failed = True
                end = self.why_alone(problem)
            if end is not None:
                self._on_end(end)
                return
        try:
            self._runs.leave(self._own.identity)
        except StoreUnavailable as problem:
            log.info("the row of this scheduler stays", extra=fields(why=str(problem)))


def _on_loop(loop: asyncio.AbstractEventLoop, end: Callable[[TermSuperseded], None], why: TermSuperseded) -> None:
    with suppress(RuntimeError):  # the loop is closed: the program is ending
        loop.call_soon_threadsafe(end, why)


DOWN = (
    "Connection refused",
    "the database system is starting up",
    "the database system is shutting down",
    "the database system is in recovery mode",
    "the database system is not yet accepting connections",
)


def is_down(problem: str) -> bool:
    """Whether a server itself says that it is away, and not only the way to it."""
    return any(each in problem for each in DOWN)
