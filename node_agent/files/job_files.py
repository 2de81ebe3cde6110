"""The files that go with jobs: fetched once for the node, kept in a cache, copied into a folder of each rank alone.

    DATA/files/cache/                      what was fetched: see file_cache.py
    DATA/files/spares/                     copies of folders for the jobs to come: see spare_folders.py
    DATA/files/attempts/JOB.ATTEMPT.RANK/  what a rank has; removed when the attempt is forgotten
    DATA/files/ways/JOB.ATTEMPT.RANK       how each of them came
    DATA/files/removed/                    what is being removed

A rank never sees the cache: it gets a copy, which shares its blocks where the file system can (FICLONE). So whatever
gives way in the cache, no job misses it.

What lies in the folder that the node shares is read there, each time and by the rights of the job's user, and never
kept for others: that somebody knows what a file holds does not say that he may have it.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.host.whole_file import replace_file
from gpufleet.jobs.files import clash_among, is_digest, trouble_with_path
from gpufleet.jobs.folders import ManifestError
from gpufleet.jobs.runs import FileRun, FileWay, RankKey

from ..core.launch import InputFile, InputFolder, JobInput, Refusal, RefusalReason
from .file_cache import Came, FileCache, NotHad
from .job_folders import lay_out_folder
from .job_inputs import lay_out_inputs
from .laying_over import lay_over
from .placing import place_apart_below, shares_blocks
from .shared_root import FICLONE, NotRead, SharedRoot
from .spare_folders import SpareFolders

if TYPE_CHECKING:
    from gpufleet.v1.node_agent_pb2_grpc import NodeAgentAsyncStub

_log = logging.getLogger(__name__)


class JobFiles:
    """The files of this node's ranks. `hold` as long as there is a connection."""

    def __init__(
        self,
        node: str,
        incarnation: int,
        folder: Path,
        cache_bytes: Callable[[], int],
        root: SharedRoot | None = None,
        came: Came = lambda key, count: None,
    ) -> None:
        self._cache = FileCache(node, incarnation, folder / "cache", cache_bytes, came)
        self._spares_folder = folder / "spares"
        self._spares = SpareFolders(self._spares_folder, self._cache, cache_bytes)
        self._attempts, self._removed = folder / "attempts", folder / "removed"
        self._ways = folder / "ways"
        self._root = root
        self._shares_blocks: bool | None = None

    async def hold(self, stub: NodeAgentAsyncStub) -> None:
        """Fetch by this connection until cancelled."""
        await self._cache.hold(stub)

    def free_bytes(self) -> int | None:
        """Bytes that files of a job to come may take. None where copies share their blocks, or nobody can say."""
        try:
            if self._shares_blocks is None:
                self._attempts.mkdir(parents=True, exist_ok=True)
                self._shares_blocks = shares_blocks(self._attempts.parent)
            return None if self._shares_blocks else shutil.disk_usage(self._attempts).free + self._spares.bytes
        except OSError:
            return None

    def folder_of(self, key: RankKey) -> Path:
        """Where the files of a rank are."""
        return self._attempts / key.name

    def runs_of(self, key: RankKey) -> tuple[FileRun, ...]:
        """How the files of a rank came; empty where it has none, or nobody knows."""
        try:
            return runs_from((self._ways / key.name).read_text("ascii"))
        except (OSError, ValueError):
            return ()

    async def lay_out(
        self,
        key: RankKey,
        files: Iterable[InputFile],
        folder: InputFolder | None = None,
        *,
        kept: InputFolder | None = None,
        inputs: tuple[JobInput, ...] = (),
        user: str = "",
    ) -> Refusal | None:
        """Fetch what is not here, and place a copy of each file; why that is not possible, None where all are there.

        What an earlier attempt `kept` is laid over all others.
        Errors: AccountUnusable, where a file is to be read by the rights of a user who has no account here.
        """
        wanted = tuple(files)
        if why := _wrong_with(wanted):
            return Refusal(RefusalReason.BAD_REQUEST, why)
        try:
            await self.remove(key)
            self._attempts.mkdir(parents=True, exist_ok=True)
            place_apart_below(self._attempts)
            if folder is None or not await self._spares.take(folder, self.folder_of(key)):
                self.folder_of(key).mkdir(mode=0o700)
                if folder is not None:
                    await lay_out_folder(self._cache, key, folder, self.folder_of(key))
            ways = [await self._laid_out(key, file, user) for file in wanted]
            if inputs:
                await lay_out_inputs(self._cache, key, inputs, self.folder_of(key))
            if kept is not None:
                await lay_over(self._cache, key, kept, self.folder_of(key))
            await asyncio.to_thread(self._note_ways, key, ways)
            await self._cache.trim()
        except NotHad as problem:
            return problem.refusal
        except ManifestError as problem:
            return Refusal(RefusalReason.BAD_REQUEST, f"the manifest of the folder: {problem}")
        except OSError as problem:
            return Refusal(RefusalReason.FILES_UNAVAILABLE, f"the job's files cannot be written here: {problem}")
        return None

    async def make_spare(self, key: RankKey, folder: InputFolder) -> None:
        """A rank has started that has this folder: make ready for the next one, where that is worth it."""
        await self._spares.make(key, folder)
        await self._cache.trim()  # of what was in use for it, nothing could give way meanwhile

    async def _laid_out(self, key: RankKey, file: InputFile, user: str) -> FileWay:
        """Place one file; which way it came. Errors: NotHad, AccountUnusable, OSError."""
        problem: NotRead | None = None
        async with self._cache.turn(file.digest):
            is_cached = not file.is_only_shared and not self._cache.lacks(file.digest)
            if file.shared_path and self._root is not None and not is_cached:
                problem = await self._read_in_root(self._root, key, file, user)
                if problem is None:
                    return FileWay.SHARED_ROOT
                _log.warning("%s cannot be read in the shared folder: it %s", file.shared_path, problem)
            if file.is_only_shared:
                raise _not_had(file, problem)
            cached = await self._cache.had(key, file)
            await asyncio.to_thread(_place, cached, self.folder_of(key), file)
        return FileWay.CACHE if is_cached else FileWay.WIRE

    async def _read_in_root(self, root: SharedRoot, key: RankKey, file: InputFile, user: str) -> NotRead | None:
        """Place a copy of what lies in the shared folder; why that is not possible."""
        target = self.folder_of(key) / file.path
        descriptor = await asyncio.to_thread(_new_file, target, file)
        try:
            await root.copy(file, user, descriptor)
        except NotRead as problem:
            await asyncio.to_thread(target.unlink)
            return problem
        finally:
            os.close(descriptor)
        return None

    def _note_ways(self, key: RankKey, ways: list[FileWay]) -> None:
        self._ways.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self._ways / key.name, text_of(ways).encode(), is_synced=False)

    async def remove(self, key: RankKey) -> None:
        """Remove a rank's files, whatever it has made of them; it is under another name at once."""
        gone = self._removed / uuid.uuid4().hex
        with suppress(OSError):
            (self._ways / key.name).unlink(missing_ok=True)
        try:
            if not self.folder_of(key).exists():
                return
            gone.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder_of(key).rename(gone)
        except OSError as problem:
            _log.warning("the files of attempt %s cannot be removed: %s", key, problem)
            return
        await asyncio.to_thread(_delete, gone)

    async def sweep(self, known: Iterable[RankKey]) -> None:
        """Remove what an earlier start of the agent left of ranks that nobody knows."""
        kept = {self.folder_of(key) for key in known}
        for outer in (self._attempts, self._spares_folder):
            with suppress(FileNotFoundError):
                for folder in tuple(outer.iterdir()):
                    if folder not in kept:
                        self._removed.mkdir(mode=0o700, parents=True, exist_ok=True)
                        folder.rename(self._removed / uuid.uuid4().hex)
        with suppress(FileNotFoundError):
            for note in tuple(self._ways.iterdir()):
                if self._attempts / note.name not in kept:
                    note.unlink()
        with suppress(FileNotFoundError):
            for folder in tuple(self._removed.iterdir()):
                await asyncio.to_thread(_delete, folder)


def _wrong_with(files: tuple[InputFile, ...]) -> str:
    for file in files:
        if why := trouble_with_path(file.path):
            return f"the path of a file {why}"
        if not is_digest(file.digest):
            return f"the digest of {file.path!r} is none"
        if file.shared_path and (why := trouble_with_path(file.shared_path)):
            return f"the path of {file.path!r} in the shared folder {why}"
    clash = clash_among(file.path for file in files)
    return "" if clash is None else clash[1]


def _not_had(file: InputFile, problem: NotRead | None) -> NotHad:
    """Of a file that is nowhere but in a shared folder."""
    if problem is None:
        detail = f"{file.path}: this node has no shared folder"
        return NotHad(RefusalReason.FILES_UNAVAILABLE, detail)
    reason = RefusalReason.FILES_CHANGED if problem.is_lasting else RefusalReason.FILES_UNAVAILABLE
    return NotHad(reason, f"{file.shared_path} in the shared folder {problem}")


def _new_file(target: Path, file: InputFile) -> int:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = 0o700 if file.is_executable else 0o600
    return os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)


def _place(cached: Path, folder: Path, file: InputFile) -> None:
    with cached.open("rb") as source, os.fdopen(_new_file(folder / file.path, file), "wb") as copy:
        try:
            fcntl.ioctl(copy.fileno(), FICLONE, source.fileno())
        except OSError as problem:
            if problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                raise
            shutil.copyfileobj(source, copy, 2**20)


def text_of(ways: Iterable[FileWay]) -> str:
    """How files came, as it is noted: `3 WIRE`, a line for those of one kind that follow each other."""
    return "".join(f"{len(tuple(same))} {way.name}\n" for way, same in groupby(ways))


def runs_from(text: str) -> tuple[FileRun, ...]:
    """What was noted. Errors: ValueError."""
    counted = (line.split(" ") for line in text.splitlines())
    return tuple(FileRun(way=FileWay(way), count=int(count)) for count, way in counted)


def _delete(folder: Path) -> None:
    """Delete a folder, also one whose rights the job took away. Each step is taken from an open folder, by no link:
    what still runs of that user may rename in it."""
    for _, folders, _, descriptor in os.fwalk(folder):
        for name in folders:
            with suppress(OSError):
                inner = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
                try:
                    os.chmod(f"/proc/self/fd/{inner}", 0o700)  # noqa: PTH101 - what was opened
                finally:
                    os.close(inner)
    shutil.rmtree(folder, ignore_errors=True)
