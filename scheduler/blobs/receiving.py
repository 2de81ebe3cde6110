"""Files as a stream brings them: each piece is written while the next one comes, and they are synced in groups.

One piece is written and one group synced at a time, behind what comes; so a stream never holds more than two pieces,
and never more than two groups that are not durable, however fast it is.
"""

import asyncio
from types import TracebackType
from typing import Any, Self

from ..state.ids import UserName
from .store import BlobStore

GROUP_BYTES_MAX = 32 * 2**20
"""A group is synced once it has so many bytes; of a large file a group is the last one of it."""
GROUP_FILES_MAX = 256
"""A group is synced once it has so many files."""


class Receiving:
    """`async with Receiving(blobs, user) as files`: takes pieces, file after file; `finish` says what is stored.

    It begins when there is a place for it (`upload_places.py`). Errors: TOO_MANY_STREAMS.

    A failure is raised by the call that comes next. What is not durable when the block is left, by a failure or because
    the stream was cut, is a part: the next upload goes on with it.
    """

    def __init__(self, blobs: BlobStore, user: UserName) -> None:
        self._blobs = blobs
        self._user = user
        self._place = blobs.upload_places.one(user)
        self._current: tuple[str, int] | None = None
        self._has_room = False
        self._group: dict[str, int] = {}
        self._writing: asyncio.Task[None] | None = None
        self._syncing: asyncio.Task[int] | None = None
        self._stored_bytes = 0

    async def __aenter__(self) -> Self:
        await self._place.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        under_way: list[asyncio.Task[Any]] = [task for task in (self._writing, self._syncing) if task is not None]
        try:
            await asyncio.gather(*under_way, return_exceptions=True)
        finally:
            await self._place.__aexit__(None, None, None)

    async def begin(self, digest: str, size: int) -> None:
        """The pieces that follow are of this file, which is to have so many bytes. Errors: those of `take`."""
        await self._end_file()
        self._current, self._has_room = (digest, size), False

    async def take(self, offset: int, data: bytes) -> None:
        """A piece of the file that was begun. Errors: those of BlobStore's `check_room`, `write` and `finish_all`."""
        assert self._current is not None, "a file was begun"
        digest, size = self._current
        await self._written()
        self._writing = asyncio.create_task(self._blobs.on_thread(self._write, digest, size, offset, data))

    async def finish(self) -> int:
        """Make all of it durable; how many bytes are stored of all the files together. Errors: those of `take`."""
        await self._end_file()
        await self._sync()
        await self._synced()
        return self._stored_bytes

    def _write(self, digest: str, size: int, offset: int, data: bytes) -> None:
        if not self._has_room:
            if self._blobs.size_of(self._user, digest) is None:
                self._blobs.check_room(self._user, digest, size)
            self._blobs.keep([(self._user, digest)], is_asked=False)
            self._has_room = True
        self._blobs.write(self._user, digest, offset, data)

    async def _end_file(self) -> None:
        await self._written()
        if self._current is None:
            return
        digest, size = self._current
        self._current, self._group[digest] = None, size
        if len(self._group) >= GROUP_FILES_MAX or sum(self._group.values()) >= GROUP_BYTES_MAX:
            await self._sync()

    async def _written(self) -> None:
        if self._writing is not None:
            await self._writing
            self._writing = None

    async def _sync(self) -> None:
        """Begin to sync the group, once the one before it is synced."""
        await self._synced()
        group, self._group = self._group, {}
        if group:
            self._syncing = asyncio.create_task(self._blobs.on_thread(self._blobs.finish_all, self._user, group))

    async def _synced(self) -> None:
        if self._syncing is not None:
            self._stored_bytes += await self._syncing
            self._syncing = None
