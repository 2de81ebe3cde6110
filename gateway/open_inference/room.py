"""How much of requests is held at a time. Who finds no room is not read from: their connection stops them, unread."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from gpufleet.errors import GpufleetError, Reason

MESSAGE_BYTES_MAX = 64 * 1024 * 1024
"""The longest request, as a replica takes it, and the longest answer, which is held until it is whole."""

CALLS_MAX = 5_000
"""Calls at a time; further ones are refused with RESOURCE_EXHAUSTED."""

CONNECTION_CALLS_MAX = 500
"""Calls of a connection at a time; a client keeps further ones until some are answered."""

ADDRESS_CALLS_MAX = 1_000
"""Requests of an address at a time, so that nobody has all calls."""

CALLER_READING_MAX, STRANGERS_READING_MAX, READING_MAX = 4, 8, 16
"""Requests that are read at a time: of a caller, of people who are not known together, and in all. Each may be as long
as a message, so that so much comes on top of what is held."""

CALLER_BYTES_MAX = 2 * MESSAGE_BYTES_MAX
"""When so much of a caller's requests is held, no more of theirs is read until some are answered."""

BYTES_MAX = 8 * MESSAGE_BYTES_MAX
"""The same of all; people who are not known leave half of it to those who are."""

CALLER_STREAMS_MAX, STRANGERS_STREAMS_MAX, STREAMS_MAX = 8, 16, 32
"""Streams that are open at a time: of a caller, of people who are not known together, and in all. Each may be sent a
message at any moment, which is held when it has come, so that so much may come on top of what is held, too."""

ROOM_S_MAX = 30.0
"""How long a request waits for room."""

READ_S_MAX = 60.0
"""How long a request may take to come, once there is room for it."""

RETRY_S = 2.0


class Room:
    """What a gateway reads and holds of requests. A caller is a person, or an address of people who are not known."""

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()
        self.reading: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.streams: Counter[str] = Counter()
        self._streams_of_strangers = 0
        self._held_in_all = self._strangers_held = 0
        self._reading_in_all = self._strangers_reading = 0
        self._changed = asyncio.Event()

    @contextmanager
    def call(self, address: str) -> Iterator[None]:
        """One request more of an address, until the end of the block. Raises TOO_MANY_STREAMS."""
        if self.calls[address] >= ADDRESS_CALLS_MAX:
            what = f"{ADDRESS_CALLS_MAX:,} requests of this address are under way"
            raise GpufleetError(Reason.TOO_MANY_STREAMS, what, retry_after_s=RETRY_S)
        self.calls[address] += 1
        try:
            yield
        finally:
            _take(self.calls, address, 1)

    @contextmanager
    def stream(self, caller: str, *, is_known: bool) -> Iterator[None]:
        """One stream more of a caller, until the end of the block. Raises TOO_MANY_STREAMS."""
        if self.streams[caller] >= CALLER_STREAMS_MAX:
            what = f"{CALLER_STREAMS_MAX} streams of this caller are open: many requests go over one"
            raise GpufleetError(Reason.TOO_MANY_STREAMS, what, retry_after_s=RETRY_S)
        is_full = not is_known and self._streams_of_strangers >= STRANGERS_STREAMS_MAX
        if is_full or self.streams.total() >= STREAMS_MAX:
            what = "this gateway has as many open streams as it may; ModelInfer is answered meanwhile"
            raise GpufleetError(Reason.TOO_MANY_STREAMS, what, retry_after_s=RETRY_S)
        self.streams[caller] += 1
        self._streams_of_strangers += not is_known
        try:
            yield
        finally:
            _take(self.streams, caller, 1)
            self._streams_of_strangers -= not is_known

    @contextmanager
    def _counted(self, caller: str, *, is_known: bool) -> Iterator[None]:
        self.reading[caller] += 1
        self._reading_in_all += 1
        self._strangers_reading += not is_known
        try:
            yield
        finally:
            self._reading_in_all -= 1
            self._strangers_reading -= not is_known
            _take(self.reading, caller, 1)
            self._changed.set()

    async def wait(self, caller: str, *, is_known: bool) -> None:
        """Wait for room for a request. Raises QUOTA_EXCEEDED."""
        try:
            async with asyncio.timeout(ROOM_S_MAX):
                while not self._has_room(caller, is_known=is_known):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            what = "the requests that are under way hold as many bytes as they may at this moment"
            raise GpufleetError(Reason.QUOTA_EXCEEDED, what, retry_after_s=RETRY_S) from None

    async def read(self, caller: str, read: Callable[[], Awaitable[bytes]], *, is_known: bool) -> bytes:
        """Read a request once there is room for it. Raises QUOTA_EXCEEDED, DEADLINE."""
        await self.wait(caller, is_known=is_known)
        with self._counted(caller, is_known=is_known):
            try:
                async with asyncio.timeout(READ_S_MAX):
                    return await read()
            except TimeoutError:
                raise GpufleetError(Reason.DEADLINE, f"the request did not come within {READ_S_MAX:g} s") from None

    @contextmanager
    def hold(self, caller: str, size_bytes: int, *, is_known: bool) -> Iterator[None]:
        """Hold a request that was read, until the end of the block."""
        self.held[caller] += size_bytes
        self._held_in_all += size_bytes
        self._strangers_held += 0 if is_known else size_bytes
        try:
            yield
        finally:
            self._held_in_all -= size_bytes
            self._strangers_held -= 0 if is_known else size_bytes
            _take(self.held, caller, size_bytes)
            self._changed.set()

    def _has_room(self, caller: str, *, is_known: bool) -> bool:
        if self.reading[caller] >= CALLER_READING_MAX or self.held[caller] >= CALLER_BYTES_MAX:
            return False
        if self._reading_in_all >= READING_MAX or self._held_in_all >= BYTES_MAX:
            return False
        is_room_of_strangers = self._strangers_reading < STRANGERS_READING_MAX and self._strangers_held < BYTES_MAX // 2
        return is_known or is_room_of_strangers


def _take(counted: Counter[str], caller: str, number: int) -> None:
    counted[caller] -= number
    if not counted[caller]:
        del counted[caller]
