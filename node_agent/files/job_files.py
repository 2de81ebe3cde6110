"""The files that go with jobs: fetched once for the node, kept in a cache, copied into a folder of each rank alone.

    DATA/files/cache/DIGEST[.part]         what was fetched; the least recently used goes first
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
import hashlib
import logging
import os
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio
from gpufleet.v1 import node_agent_pb2 as pb

from gpufleet.errors import GpufleetError, Reason
from gpufleet.host.whole_file import replace_file, sync_path
from gpufleet.jobs.files import clash_among, is_digest, trouble_with_path
from gpufleet.jobs.folders import ManifestError
from gpufleet.jobs.run_protos import key_to_proto
from gpufleet.jobs.runs import FileRun, FileWay, RankKey
from gpufleet.net.status import from_rpc_error

from ..core.launch import InputFile, InputFolder, Refusal, RefusalReason
from .job_folders import lay_out_folder
from .shared_root import FICLONE, NotRead, SharedRoot

if TYPE_CHECKING:
    from gpufleet.v1.node_agent_pb2_grpc import NodeAgentAsyncStub

_log = logging.getLogger(__name__)

PATIENCE_SECONDS = 300.0
"""A launch is given up when nothing more of a file came for so long: the scheduler is away, or cannot read it."""
PIECE_WAIT_SECONDS = 30.0
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.2, 5.0
FETCHES_MAX = 4
"""Files that come at the same time."""
MISMATCHES_MAX = 2
NEVER_WITHOUT_ANOTHER_LAUNCH = frozenset({Reason.PERMISSION_DENIED, Reason.NOT_BUILT, Reason.METHOD_UNKNOWN})


class NotHad(Exception):
    """A file cannot be had."""

    def __init__(self, reason: RefusalReason, detail: str) -> None:
        super().__init__(detail)
        self.refusal = Refusal(reason, detail)


class JobFiles:
    """The files of this node's ranks. `hold` as long as there is a connection."""

    def __init__(
        self,
        node: str,
        incarnation: int,
        folder: Path,
        cache_bytes: Callable[[], int],
        root: SharedRoot | None = None,
    ) -> None:
        self._node = node
        self._incarnation = incarnation
        self._cache, self._attempts, self._removed = folder / "cache", folder / "attempts", folder / "removed"
        self._ways = folder / "ways"
        self._root = root
        self._cache_bytes = cache_bytes
        self._stub: NodeAgentAsyncStub | None = None
        self._is_connected = asyncio.Event()
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}
        self._fetching = asyncio.Semaphore(FETCHES_MAX)

    async def hold(self, stub: NodeAgentAsyncStub) -> None:
        """Fetch by this connection until cancelled."""
        self._stub = stub
        self._is_connected.set()
        try:
            await asyncio.Event().wait()
        finally:
            self._stub = None
            self._is_connected.clear()

    def folder_of(self, key: RankKey) -> Path:
        """Where the files of a rank are."""
        return self._attempts / key.name

    @asynccontextmanager
    async def cached(self, key: RankKey, file: InputFile, *, makes_room: bool = True) -> AsyncIterator[Path]:
        """A whole file in the cache, fetched where it is not there; it does not give way until it was used."""
        async with self._turn(file.digest):
            yield await self._had(key, file, makes_room=makes_room)

    async def make_room(self, wanted: int) -> None:
        """Let the least recently used files go until so many bytes fit into the cache."""
        await asyncio.to_thread(self._make_room, wanted)

    def lacks(self, digest: str) -> bool:
        """Whether a file is not in the cache."""
        return not (self._cache / digest).exists()

    def runs_of(self, key: RankKey) -> tuple[FileRun, ...]:
        """How the files of a rank came; empty where it has none, or nobody knows."""
        try:
            return runs_from((self._ways / key.name).read_text("ascii"))
        except (OSError, ValueError):
            return ()

    async def lay_out(
        self, key: RankKey, files: Iterable[InputFile], folder: InputFolder | None = None, *, user: str = ""
    ) -> Refusal | None:
        """Fetch what is not here, and place a copy of each file; why that is not possible, None where all are there.

        Errors: AccountUnusable, where a file is to be read by the rights of a user who has no account here.
        """
        wanted = tuple(files)
        if why := _wrong_with(wanted):
            return Refusal(RefusalReason.BAD_REQUEST, why)
        try:
            await self.remove(key)
            self._cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder_of(key).mkdir(mode=0o700, parents=True)
            if folder is not None:
                await lay_out_folder(self, key, folder, self.folder_of(key))
            ways = [await self._laid_out(key, file, user) for file in wanted]
            await asyncio.to_thread(self._note_ways, key, ways)
            await asyncio.to_thread(self._make_room, 0)
        except NotHad as problem:
            return problem.refusal
        except ManifestError as problem:
            return Refusal(RefusalReason.BAD_REQUEST, f"the manifest of the folder: {problem}")
        except OSError as problem:
            return Refusal(RefusalReason.FILES_UNAVAILABLE, f"the job's files cannot be written here: {problem}")
        return None

    async def _laid_out(self, key: RankKey, file: InputFile, user: str) -> FileWay:
        """Place one file; which way it came. Errors: NotHad, AccountUnusable, OSError."""
        problem: NotRead | None = None
        async with self._turn(file.digest):
            is_cached = not file.is_only_shared and (self._cache / file.digest).exists()
            if file.shared_path and self._root is not None and not is_cached:
                problem = await self._read_in_root(self._root, key, file, user)
                if problem is None:
                    return FileWay.SHARED_ROOT
                _log.warning("%s cannot be read in the shared folder: it %s", file.shared_path, problem)
            if file.is_only_shared:
                raise _not_had(file, problem)
            cached = await self._had(key, file)
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
        with suppress(FileNotFoundError):
            for folder in tuple(self._attempts.iterdir()):
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

    @asynccontextmanager
    async def _turn(self, digest: str) -> AsyncIterator[None]:
        """One at a time fetches and copies a file; the others find it there. What has a turn never gives way."""
        lock, users = self._turns.get(digest, (asyncio.Lock(), 0))
        self._turns[digest] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._turns[digest]
            self._turns[digest] = (lock, users - 1)
            if users == 1:
                del self._turns[digest]

    async def _had(self, key: RankKey, file: InputFile, *, makes_room: bool = True) -> Path:
        """The file in the cache, fetched where it is not there."""
        path = self._cache / file.digest
        if path.exists():
            await asyncio.to_thread(os.utime, path)
            return path
        self._cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        if makes_room:
            await asyncio.to_thread(self._make_room, file.size_bytes)
        async with self._fetching:
            await self._fetch(key, file)
        return path

    async def _fetch(self, key: RankKey, file: InputFile) -> None:
        part = self._cache / f"{file.digest}.part"
        mismatches, pause_s = 0, RETRY_SECONDS_MIN
        had, since, why = _size_of(part), time.monotonic(), "the scheduler cannot be reached"
        while True:
            try:
                await self._fetch_rest(key, file, part)
                if await asyncio.to_thread(_digest_of, part) == file.digest:
                    await asyncio.to_thread(_keep, part)
                    return
                part.unlink()
                mismatches, why = mismatches + 1, f"{file.path}: other bytes came than were uploaded"
                if mismatches >= MISMATCHES_MAX:
                    raise NotHad(RefusalReason.FILES_UNAVAILABLE, why)
            except grpc.aio.AioRpcError as problem:
                error = from_rpc_error(problem)
                if error.reason is Reason.FILE_NOT_UPLOADED:
                    raise NotHad(RefusalReason.FILES_GONE, f"{file.path}: {error.message}") from None
                if error.reason in NEVER_WITHOUT_ANOTHER_LAUNCH:
                    raise NotHad(RefusalReason.FILES_UNAVAILABLE, f"{file.path}: {error.message}") from None
                if error.reason is Reason.OFFSET_OUT_OF_RANGE:
                    part.unlink(missing_ok=True)
                why = error.message
            except (TimeoutError, GpufleetError) as problem:
                why = str(problem) or "the scheduler sent nothing"
            if _size_of(part) > had:
                had, since, pause_s = _size_of(part), time.monotonic(), RETRY_SECONDS_MIN
            elif time.monotonic() - since > PATIENCE_SECONDS:
                raise NotHad(RefusalReason.FILES_UNAVAILABLE, f"{file.path} could not be fetched: {why}")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_SECONDS_MAX)

    async def _fetch_rest(self, key: RankKey, file: InputFile, part: Path) -> None:
        """Fetch what is missing of it, by the connection that there is."""
        async with asyncio.timeout(PIECE_WAIT_SECONDS):
            await self._is_connected.wait()
        assert self._stub is not None
        offset = _size_of(part)
        request = pb.FetchBlobRequest(
            digest=file.digest, offset=offset, node=self._node, incarnation=self._incarnation, key=key_to_proto(key)
        )
        call = self._stub.FetchBlob(request)
        try:
            while True:
                async with asyncio.timeout(PIECE_WAIT_SECONDS):
                    piece = await call.read()
                if not isinstance(piece, pb.FetchBlobResponse):
                    break
                if piece.offset != offset or offset + len(piece.data) > file.size_bytes:
                    raise GpufleetError(Reason.CONFLICT, "a piece came that does not follow the one before it")
                await asyncio.to_thread(_append, part, offset, piece.data)
                offset += len(piece.data)
        finally:
            call.cancel()
        if offset < file.size_bytes:
            raise GpufleetError(Reason.CONFLICT, "the file ended before its size was reached")
        if not file.size_bytes:
            await asyncio.to_thread(_append, part, 0, b"")

    def _make_room(self, wanted: int) -> None:
        """Let the least recently used files of the cache go until so many bytes fit; those that have a turn stay."""
        if not self._cache.exists():
            return  # whatever came, came from the shared folder
        found: list[tuple[float, int, str]] = []
        with os.scandir(self._cache) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # others fetch meanwhile: what was a part has its whole name now
                    about = entry.stat()
                    found.append((about.st_mtime, about.st_size, entry.name))
        found.sort()
        total = sum(size for _, size, _ in found)
        for _, size, name in found:
            if total + wanted <= self._cache_bytes():
                return
            if name.removesuffix(".part") not in self._turns:
                (self._cache / name).unlink(missing_ok=True)
                total -= size


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


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _append(path: Path, offset: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        written = 0
        while written < len(data):
            written += os.pwrite(descriptor, data[written:], offset + written)
    finally:
        os.close(descriptor)


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _keep(part: Path) -> None:
    """Make it durable before it has the name of a whole one, which nobody looks into again."""
    sync_path(part)
    part.replace(part.with_suffix(""))


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
    """Delete a folder, also one whose rights the job took away."""
    for path, folders, _ in os.walk(folder):
        for name in folders:
            inner = Path(path) / name
            if not inner.is_symlink():
                with suppress(OSError):
                    inner.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
