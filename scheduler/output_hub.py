"""Output on its way: from the nodes to the store, and to those who follow it.

Followers see bytes before they are synced; the node keeps what is not synced, so that bytes and offsets stay equal
after a crash. An end of output is announced only when it is synced.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gpufleet.telemetry.logs import fields

from .clock import is_set_within
from .listeners import Listeners, add, drop
from .outputs.errors import OutputStoreUnavailable
from .ports import OutputStore
from .state.attempts import OutputEnd, OutputStream
from .state.ids import JobId, RankKey
from .store.errors import TermSuperseded

SYNC_SECONDS = 0.1
SYNC_BYTES = 4 * 1024 * 1024
"""Output is synced this often, or after this much, whichever comes first, and at the end of a stream."""
TROUBLE_PAUSE_SECONDS = 0.5
"""How often, at most, it is told that output cannot be stored, or can again."""
FOLLOWER_BYTES = 1024 * 1024
"""What a follower may be behind before it reads from the store instead."""

StreamKey = tuple[RankKey, OutputStream]
T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class OutputFollower:
    """Bytes that a reader has not taken yet. `is_behind`: some were left out; they are in the store."""

    pieces: deque[tuple[StreamKey, int, bytes]] = field(default_factory=deque)
    pending_bytes: int = 0
    is_behind: bool = False
    wakeup: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, stream: StreamKey, offset: int, data: bytes) -> None:
        """Note new bytes, or, when too many wait, that the store must be read."""
        if self.pending_bytes + len(data) > FOLLOWER_BYTES:
            self.pieces.clear()
            self.pending_bytes = 0
            self.is_behind = True
        if not self.is_behind:
            self.pieces.append((stream, offset, data))
            self.pending_bytes += len(data)
        self.wakeup.set()

    def take(self) -> tuple[list[tuple[StreamKey, int, bytes]], bool]:
        """What is new, and whether the store must be read first."""
        pieces, behind = list(self.pieces), self.is_behind
        self.pieces.clear()
        self.pending_bytes = 0
        self.is_behind = False
        self.wakeup.clear()
        return pieces, behind


class OutputHub:
    """Appends on a thread of its own, syncs in batches, and wakes followers."""

    def __init__(
        self,
        store: OutputStore,
        on_synced: Callable[[RankKey, tuple[OutputEnd, ...]], None],
        on_trouble: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._on_synced = on_synced
        self._on_trouble = on_trouble
        self._telling_trouble: asyncio.TimerHandle | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="output")
        self._followers: dict[JobId, Listeners[OutputFollower]] = {}
        self._awaited: dict[RankKey, tuple[OutputEnd, ...]] = {}
        self._checks: set[asyncio.Task[None]] = set()
        self._unsynced_bytes = 0
        self._sync_is_due = asyncio.Event()
        self._sync_at_once = asyncio.Event()
        self._superseded: TermSuperseded | None = None
        self.synced_listeners: Listeners[Callable[[list[tuple[RankKey, OutputStream, int]]], None]] = Listeners()
        self._append_error = ""
        self._sync_error = ""

    @property
    def error(self) -> str:
        """What is wrong with the store; what was stored before may still be synced while nothing more is taken."""
        return self._append_error or self._sync_error

    async def on_thread(self, call: Callable[[], T]) -> T:
        """Run a call of the store on its thread. A store that is no longer ours ends run(), whoever found it out."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        except TermSuperseded as error:
            self._superseded = error
            self._sync_is_due.set()
            self._sync_at_once.set()
            raise

    def on_thread_soon(self, call: Callable[[], None]) -> None:
        """Let the store's thread make a call, which never fails, after those that wait."""
        self._thread.submit(call)

    async def append(self, chunks: list[tuple[RankKey, OutputStream, int, bytes, bool]]) -> None:
        """Store chunks in order and hand them to followers. Raises what the store raises; nothing is lost then."""

        def write() -> None:
            for key, stream, offset, data, _ in chunks:
                if data:
                    self._store.append(key, stream, offset, data)

        try:
            await self.on_thread(write)
        except OutputStoreUnavailable as error:
            self._note(append_error=str(error))
            raise
        self._note(append_error="")
        for key, stream, offset, data, is_end in chunks:
            self._unsynced_bytes += len(data)
            for follower in self._followers.get(key.job, ()):
                follower.put((key, stream), offset, data)
            if is_end:
                self._sync_at_once.set()
        if self._unsynced_bytes >= SYNC_BYTES:
            self._sync_at_once.set()
        self._sync_is_due.set()

    async def run(self) -> None:
        """Sync until cancelled. Errors: TermSuperseded; the program must end."""
        while True:
            await self._sync_is_due.wait()
            if self._superseded is not None:
                raise self._superseded
            if not self._sync_at_once.is_set():
                await is_set_within(self._sync_at_once, SYNC_SECONDS)
            self._sync_is_due.clear()
            self._sync_at_once.clear()
            self._unsynced_bytes = 0
            try:
                risen = await self.on_thread(self._store.sync)
            except OutputStoreUnavailable as error:
                self._note(sync_error=str(error))
                self._sync_is_due.set()
                await asyncio.sleep(SYNC_SECONDS)
                continue
            self._note(sync_error="")
            self._announce(risen)

    def _note(self, *, append_error: str | None = None, sync_error: str | None = None) -> None:
        """Remember what is wrong with the store, and log when it begins and when it is over."""
        before = self.error
        self._append_error = self._append_error if append_error is None else append_error
        self._sync_error = self._sync_error if sync_error is None else sync_error
        if self.error and not before:
            log.error("output cannot be stored; the nodes keep it", extra=fields(why=self.error))
        if before and not self.error:
            log.info("output is stored again")
        if bool(before) != bool(self.error) and self._telling_trouble is None:
            loop = asyncio.get_running_loop()
            self._telling_trouble = loop.call_later(TROUBLE_PAUSE_SECONDS, self._tell_trouble)

    def _tell_trouble(self) -> None:
        self._telling_trouble = None
        self._on_trouble()

    def _announce(self, risen: list[tuple[RankKey, OutputStream, int]]) -> None:
        for listener in list(self.synced_listeners):
            listener(risen)
        for key in dict.fromkeys(key for key, _, _ in risen):
            if key in self._awaited:
                self._check_soon(key)

    def await_end(self, key: RankKey, ends: tuple[OutputEnd, ...]) -> None:
        """Announce these ends by `on_synced` once everything below them is synced.

        Where more is stored than was written, how far that goes is announced instead: it is not this rank's alone.
        """
        if not any(end.end_offset for end in ends):
            self._on_synced(key, ends)
            return
        self._awaited[key] = ends
        self._check_soon(key)

    def _check_soon(self, key: RankKey) -> None:
        """Ask the store, on its thread: after a restart it may have to make sure of what it holds first."""
        check = asyncio.create_task(self._check_awaited(key), name=f"awaited-{key}")
        self._checks.add(check)
        check.add_done_callback(self._checks.discard)

    async def _check_awaited(self, key: RankKey) -> None:
        ends = self._awaited.get(key)
        if ends is None:
            return

        def stored() -> tuple[OutputEnd, ...]:
            return tuple(replace(end, end_offset=self._store.synced(key, end.stream)) for end in ends)

        # The next sync asks again, or run() ends.
        with suppress(OutputStoreUnavailable, TermSuperseded):
            found = await self.on_thread(stored)
            missing = any(have.end_offset < end.end_offset for have, end in zip(found, ends, strict=True))
            if missing or self._awaited.get(key) is not ends:
                return
            del self._awaited[key]
            if found != ends:
                log.error("more output is stored than was written", extra=fields(attempt=str(key), stored=str(found)))
            self._on_synced(key, found)

    def stop_awaiting(self, job: JobId) -> None:
        """The job has ended: nothing of it is waited for any more."""
        for key in [key for key in self._awaited if key.job == job]:
            del self._awaited[key]

    def follow(self, job: JobId) -> OutputFollower:
        """A new follower of a job's output."""
        follower = OutputFollower()
        add(self._followers, job, follower)
        return follower

    def unfollow(self, job: JobId, follower: OutputFollower) -> None:
        """The follower is gone."""
        drop(self._followers, job, follower)

    @property
    def store(self) -> OutputStore:
        """The store, for reads on the output thread."""
        return self._store

    def close(self) -> None:
        """End the thread and release the store."""
        if self._telling_trouble is not None:
            self._telling_trouble.cancel()
        for check in self._checks:
            check.cancel()
        self._thread.shutdown()
        self._store.close()
