"""What a node keeps of files that it fetched: each comes once for all its ranks, and is checked before it has its name.

DATA/files/cache/DIGEST[.part]         what was fetched; the least recently used goes first
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio
from gpufleet.v1 import node_agent_pb2 as pb

from gpufleet.errors import GpufleetError, Reason
from gpufleet.host.whole_file import sync_path
from gpufleet.jobs.run_protos import key_to_proto
from gpufleet.jobs.runs import RankKey
from gpufleet.net.status import from_rpc_error

from ..core.launch import InputFile, Refusal, RefusalReason

if TYPE_CHECKING:
    from gpufleet.v1.node_agent_pb2_grpc import NodeAgentAsyncStub

PATIENCE_SECONDS = 300.0
"""A launch is given up when nothing more of a file came for so long: the scheduler is away, or cannot read it."""
PIECE_WAIT_SECONDS = 30.0
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.2, 5.0
FETCHES_MAX = 4
"""Files that come at the same time."""
MISMATCHES_MAX = 2
NEVER_WITHOUT_ANOTHER_LAUNCH = frozenset({Reason.PERMISSION_DENIED, Reason.NOT_BUILT, Reason.METHOD_UNKNOWN})


Came = Callable[[RankKey, int], None]
"""Called with the bytes that have arrived of what a rank needs."""


class NotHad(Exception):
    """A file cannot be had."""

    def __init__(self, reason: RefusalReason, detail: str) -> None:
        super().__init__(detail)
        self.refusal = Refusal(reason, detail)


class FileCache:
    """The files that this node has fetched. `hold` as long as there is a connection."""

    def __init__(
        self,
        node: str,
        incarnation: int,
        folder: Path,
        bytes_max: Callable[[], int],
        came: Came = lambda key, count: None,
    ) -> None:
        self._came = came
        self._node = node
        self._incarnation = incarnation
        self._folder = folder
        self._bytes_max = bytes_max
        self._stub: NodeAgentAsyncStub | None = None
        self._is_connected = asyncio.Event()
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}
        self._fetching = asyncio.Semaphore(FETCHES_MAX)
        self._has_grown = True
        self._trimming = asyncio.Lock()

    async def hold(self, stub: NodeAgentAsyncStub) -> None:
        """Fetch by this connection until cancelled."""
        self._stub = stub
        self._is_connected.set()
        try:
            await asyncio.Event().wait()
        finally:
            self._stub = None
            self._is_connected.clear()

    @asynccontextmanager
    async def cached(self, key: RankKey, file: InputFile, *, makes_room: bool = True) -> AsyncIterator[Path]:
        """A whole file in the cache, fetched where it is not there; it does not give way until it was used."""
        async with self.turn(file.digest):
            yield await self.had(key, file, makes_room=makes_room)

    async def make_room(self, wanted: int) -> None:
        """Let the least recently used files go until so many bytes fit into the cache."""
        await asyncio.to_thread(self._make_room, wanted)

    async def trim(self) -> None:
        """Let the least recently used files go until the rest fits, if any has come since that was done.

        Whoever gives a turn back calls it: what has one stays, and goes with the next call.
        """
        async with self._trimming:
            if self._has_grown:
                self._has_grown = False
                if not await asyncio.to_thread(self._make_room, 0):
                    self._has_grown = True

    def lacks(self, digest: str) -> bool:
        """Whether a file is not in the cache."""
        return not (self._folder / digest).exists()

    @asynccontextmanager
    async def turn(self, digest: str) -> AsyncIterator[None]:
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

    async def had(self, key: RankKey, file: InputFile, *, makes_room: bool = True) -> Path:
        """The file in the cache, fetched where it is not there."""
        path = self._folder / file.digest
        if path.exists():
            self._came(key, file.size_bytes)
            await asyncio.to_thread(os.utime, path)
            return path
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if makes_room:
            await asyncio.to_thread(self._make_room, file.size_bytes)
        try:
            async with self._fetching:
                await self._fetch(key, file)
        finally:
            self._has_grown = True  # not before it has: others make room meanwhile
        return path

    async def _fetch(self, key: RankKey, file: InputFile) -> None:
        part = self._folder / f"{file.digest}.part"
        mismatches, pause_s = 0, RETRY_SECONDS_MIN
        had, since, why = _size_of(part), time.monotonic(), "the scheduler cannot be reached"
        while True:
            try:
                if await self._fetch_rest(key, file, part) == file.digest:
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
                if error.reason is Reason.INPUT_UNUSABLE:
                    raise NotHad(RefusalReason.INPUT_UNUSABLE, error.message) from None
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

    async def _fetch_rest(self, key: RankKey, file: InputFile, part: Path) -> str:
        """Fetch what is missing of it, by the connection that there is; the SHA-256 of all of it."""
        async with asyncio.timeout(PIECE_WAIT_SECONDS):
            await self._is_connected.wait()
        assert self._stub is not None
        offset, sha = await asyncio.to_thread(_begun, part)
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
                await asyncio.to_thread(_append, part, offset, piece.data, sha)
                offset += len(piece.data)
                self._came(key, len(piece.data))
        finally:
            call.cancel()
        if offset < file.size_bytes:
            raise GpufleetError(Reason.CONFLICT, "the file ended before its size was reached")
        if not file.size_bytes:
            await asyncio.to_thread(_append, part, 0, b"", sha)
        return str(sha.hexdigest())

    async def fetch_sources(self, key: RankKey) -> bytes:
        """Where the files are that the inputs of a rank name: an InputSources. Errors: AioRpcError, TimeoutError."""
        async with asyncio.timeout(PIECE_WAIT_SECONDS):
            await self._is_connected.wait()
        assert self._stub is not None
        call = self._stub.FetchBlob(
            pb.FetchBlobRequest(
                node=self._node, incarnation=self._incarnation, key=key_to_proto(key), wants_inputs=True
            )
        )
        data = bytearray()
        try:
            while True:
                async with asyncio.timeout(PIECE_WAIT_SECONDS):
                    piece = await call.read()
                if not isinstance(piece, pb.FetchBlobResponse):
                    return bytes(data)
                data += piece.data
        finally:
            call.cancel()

    def _make_room(self, wanted: int) -> bool:
        """Let the least recently used files of the cache go until so many bytes fit; those that have a turn stay.

        Answers whether they fit now.
        """
        if not self._folder.exists():
            return True  # whatever came, came from the shared folder
        found: list[tuple[float, int, str]] = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # others fetch meanwhile: what was a part has its whole name now
                    about = entry.stat()
                    found.append((about.st_mtime, about.st_size, entry.name))
        found.sort()
        total = sum(size for _, size, _ in found)
        for _, size, name in found:
            if total + wanted <= self._bytes_max():
                break
            if name.removesuffix(".part") not in self._turns:
                (self._folder / name).unlink(missing_ok=True)
                total -= size
        return total + wanted <= self._bytes_max()


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _begun(part: Path) -> tuple[int, Any]:
    """How much there is of a file, and the SHA-256 of that, which goes on with what comes."""
    try:
        with part.open("rb") as file:
            sha: Any = hashlib.file_digest(file, "sha256")
            return file.tell(), sha
    except FileNotFoundError:
        return 0, hashlib.sha256()


def _append(path: Path, offset: int, data: bytes, sha: Any) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        written = 0
        while written < len(data):
            written += os.pwrite(descriptor, data[written:], offset + written)
    finally:
        os.close(descriptor)
    sha.update(data)


def _keep(part: Path) -> None:
    """Make it durable before it has the name of a whole one, which nobody looks into again."""
    sync_path(part)
    part.replace(part.with_suffix(""))
