"""How many streams bring files at the same time, of all users together: each holds some bytes while it does.

A stream holds the piece that is written and the one behind it, and what gRPC has taken in for it beyond these. Further
streams wait, and what they send waits where it comes from. So that nobody's slow streams keep others out, one user has
a part of the places.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gpufleet.errors import GpufleetError, Reason

from ..state.ids import UserName

STREAM_BYTES = 8 * 2**20
"""What a stream holds, as measured: two pieces of 1 MiB as messages and as bytes, and what gRPC has of the next."""
ALL_BYTES_MAX = 256 * 2**20
"""What the streams of all users hold together."""
PLACES = ALL_BYTES_MAX // STREAM_BYTES
PLACES_OF_USER = PLACES // 4
WAIT_SECONDS_MAX = 60.0
"""How long a stream waits for a place."""


class UploadPlaces:
    """The places of one scheduler; for its event loop."""

    def __init__(self) -> None:
        self._taken: Counter[UserName] = Counter()
        self._line: deque[tuple[UserName, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def one(self, user: UserName) -> AsyncIterator[None]:
        """Hold a place; who waited longest goes first, of those whose user has one free. Errors: TOO_MANY_STREAMS."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append((user, turn))
        self._call()
        try:
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                await turn
        except TimeoutError:
            self._leave(user, turn)
            why = f"{self._taken.total()} streams bring files, {self._taken[user]} of them yours, and none has ended"
            raise GpufleetError(
                Reason.TOO_MANY_STREAMS,
                why,
                retry_after_s=WAIT_SECONDS_MAX,
                next_step="Upload it again later: it goes on where it stands.",
            ) from None
        except BaseException:
            self._leave(user, turn)
            raise
        try:
            yield
        finally:
            self._leave(user, turn)

    def _leave(self, user: UserName, turn: asyncio.Future[None]) -> None:
        if turn.done() and not turn.cancelled():
            self._taken[user] -= 1
        else:
            self._line.remove((user, turn))
        self._call()

    def _call(self) -> None:
        """Give what is free to those who wait."""
        for user, turn in tuple(self._line):
            if self._taken.total() >= PLACES:
                return
            if self._taken[user] < PLACES_OF_USER:
                self._line.remove((user, turn))
                self._taken[user] += 1
                turn.set_result(None)
