"""Copies of folders that go with jobs, laid out beforehand: the next job with the same folder takes one by a rename.

    DATA/files/spares/NAME/    one that is being made, or waits; an agent that starts removes what it finds

To make thousands of files takes a file system seconds where its disk is busy, so it is done behind a job's start and
not before it. A spare copy is made as a job's own is, no process has been in it, and it is given away once; so a job
has a copy of its own as ever. One is made where a folder came at least twice, and only of what is in the cache.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gpufleet.jobs.folders import ManifestError
from gpufleet.jobs.runs import RankKey

from ..core.launch import InputFile, InputFolder
from .file_cache import NotHad
from .job_folders import Cache, lay_out_folder
from .placing import place_apart_below

_log = logging.getLogger(__name__)

SPARES_MAX = 4
"""Folders of which there is a spare copy, one each; what was made first goes first."""
SPARE_BYTES_MAX, SPARE_ENTRIES_MAX = 512 * 2**20, 20_000
"""Of a larger folder none is made, nor of one that has more than a quarter of what the cache may hold."""
FREE_BYTES_MIN = 2**30
"""What must stay free on the disk."""
KNOWN_MAX = 256
"""Folders that are known to have come; the one that came least lately is forgotten first."""
COMES_AGAIN = 2
"""From so many jobs on a folder counts as one that comes again."""


class NoSpare(Exception):
    """There is no room for a copy, or something of the folder is not in the cache any more."""


@dataclass(slots=True)
class _Spare:
    """A copy; `made` says whether it is whole, once that is known. Who claims it first has it."""

    place: Path
    made: asyncio.Future[bool]
    is_claimed: bool = False


class SpareFolders:
    """The spare copies of this node, below `folder`. `bytes_max` is what the cache may hold."""

    def __init__(self, folder: Path, cache: Cache, bytes_max: Callable[[], int]) -> None:
        self._folder = folder
        self._cache = cache
        self._bytes_max = bytes_max
        self._spares: dict[InputFolder, _Spare] = {}
        self._came: OrderedDict[InputFolder, int] = OrderedDict()

    @property
    def bytes(self) -> int:
        """What the copies that wait take: a job that has such a folder needs no more."""
        return sum(folder.content_bytes for folder, spare in self._spares.items() if not spare.is_claimed)

    async def take(self, folder: InputFolder, place: Path) -> bool:
        """Put a spare copy of the folder where nothing is; False where there is none. It waits for one that is made.

        Errors: OSError.
        """
        self._came[folder] = self._came.get(folder, 0) + 1
        self._came.move_to_end(folder)
        while len(self._came) > KNOWN_MAX:
            self._came.popitem(last=False)
        spare = self._spares.get(folder)
        if spare is None or spare.is_claimed:
            return False
        spare.is_claimed = True
        try:
            is_made = await asyncio.shield(spare.made)
        except asyncio.CancelledError:
            spare.is_claimed = False
            raise
        if is_made:
            del self._spares[folder]
            await asyncio.to_thread(os.rename, spare.place, place)
        return is_made

    async def make(self, key: RankKey, folder: InputFolder) -> None:
        """Make a spare copy of a folder that a rank has, where it is worth it and there is none."""
        if folder in self._spares or not self._is_worth_it(folder):
            return
        spare = _Spare(self._folder / uuid.uuid4().hex, asyncio.get_running_loop().create_future())
        self._spares[folder] = spare
        try:
            await asyncio.to_thread(_make_place, spare.place, folder.content_bytes)
            await lay_out_folder(_AtHand(self._cache), key, folder, spare.place)
            spare.made.set_result(True)
        except (NoSpare, NotHad, ManifestError, OSError) as problem:
            _log.info("no spare copy of a folder is made: %s", problem)
        finally:
            if not spare.made.done():
                del self._spares[folder]
                spare.made.set_result(False)
        if not spare.made.result():
            await asyncio.to_thread(shutil.rmtree, spare.place, ignore_errors=True)
        await self._drop_oldest()

    def _is_worth_it(self, folder: InputFolder) -> bool:
        if self._came.get(folder, 0) < COMES_AGAIN or folder.entry_count > SPARE_ENTRIES_MAX:
            return False
        return folder.content_bytes <= min(SPARE_BYTES_MAX, self._bytes_max() // SPARES_MAX)

    async def _drop_oldest(self) -> None:
        waiting = [folder for folder, spare in self._spares.items() if spare.made.done() and not spare.is_claimed]
        for folder in waiting[: max(0, len(self._spares) - SPARES_MAX)]:
            spare = self._spares.pop(folder)
            await asyncio.to_thread(shutil.rmtree, spare.place, ignore_errors=True)


def _make_place(place: Path, content_bytes: int) -> None:
    """Make the folder of a copy. Errors: NoSpare, OSError."""
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    place_apart_below(place.parent)
    place.mkdir(mode=0o700)
    if (free := shutil.disk_usage(place).free) - content_bytes < FREE_BYTES_MIN:
        raise NoSpare(f"the disk has {free:,} bytes free")


class _AtHand:
    """The cache, of which nothing is fetched and nothing gives way."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    @asynccontextmanager
    async def cached(self, key: RankKey, file: InputFile, *, makes_room: bool) -> AsyncIterator[Path]:
        """A file that is there. Errors: NoSpare."""
        if self._cache.lacks(file.digest):
            raise NoSpare(f"{file.path} is not in the cache")
        async with self._cache.cached(key, file, makes_room=makes_room) as path:
            yield path

    async def make_room(self, wanted: int) -> None:
        """Only asked for where something is not there. Errors: NoSpare."""
        raise NoSpare(f"{wanted:,} bytes of it are not in the cache")

    def lacks(self, digest: str) -> bool:
        """Whether it is not there."""
        return self._cache.lacks(digest)
