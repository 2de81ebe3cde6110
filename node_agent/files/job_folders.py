"""A folder that goes with a job: its manifest is checked again here, and its contents are written chunk by chunk.

What the manifest says comes from somebody with a token, and the agent may be root: so every path is made in a folder
that the agent has just made and that no process of the job has been in, files are made anew and never followed, and
links come last, when nothing is written any more.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpufleet.jobs.files import is_digest
from gpufleet.jobs.folders import (
    MANIFEST_BYTES_MAX,
    EntryKind,
    Folder,
    ManifestError,
    folder_of,
    folders_above,
)
from gpufleet.jobs.runs import RankKey

from ..core.launch import InputFile, InputFolder

CHUNKS_AT_ONCE = 4
"""Chunks of a folder that are fetched and written at the same time."""
NO_COPY_IN_KERNEL = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF})
"""What file systems that cannot share or copy by themselves say of it."""


class Cache(Protocol):
    """What a node keeps of files that it fetched."""

    def cached(self, key: RankKey, file: InputFile, *, makes_room: bool) -> AbstractAsyncContextManager[Path]:
        """A whole file, fetched where it is not here; it stays until it was used."""
        ...

    async def make_room(self, wanted: int) -> None:
        """Let what was not used for longest go until so many bytes fit."""
        ...

    def lacks(self, digest: str) -> bool:
        """Whether it has to be fetched."""
        ...


@dataclass(frozen=True, slots=True)
class _Span:
    """A part of a file, in a chunk; `is_whole` where it is all of it."""

    path: str
    mode: int
    offset: int
    chunk_offset: int
    size: int
    is_whole: bool


async def lay_out_folder(cache: Cache, key: RankKey, folder: InputFolder, place: Path) -> None:
    """Write a folder's contents into a new, empty one. Errors: ManifestError, OSError, and those of the cache."""
    if not is_digest(folder.digest) or not 0 <= folder.size_bytes <= MANIFEST_BYTES_MAX:
        raise ManifestError("the launch does not say rightly which it is")
    manifest = InputFile(path="the manifest of the folder", digest=folder.digest, size_bytes=folder.size_bytes)
    async with cache.cached(key, manifest, makes_room=True) as path:
        wanted = await asyncio.to_thread(_read, path)
    if (len(wanted.entries), wanted.content_bytes) != (folder.entry_count, folder.content_bytes):
        raise ManifestError("it does not say what the launch says of it")
    await asyncio.to_thread(_make_folders, place, wanted)
    await write_files(cache, key, wanted, {each.path: each.path for each in wanted.entries}, place)
    await asyncio.to_thread(_make_links, place, wanted)


async def write_files(cache: Cache, key: RankKey, folder: Folder, placed: Mapping[str, str], place: Path) -> None:
    """Write files of a folder where they are to lie, each by its path in it; the folders above them are there.

    Errors: OSError, and those of the cache.
    """
    spans = await asyncio.to_thread(_spans, folder, placed)
    sizes = {each.digest: each.size_bytes for each in folder.chunks if each.digest in spans}
    if missing := sum(size for digest, size in sizes.items() if cache.lacks(digest)):
        await cache.make_room(missing)
    todo = iter(sizes.items())
    workers = [asyncio.create_task(_write_chunks(cache, key, place, todo, spans)) for _ in range(CHUNKS_AT_ONCE)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    await asyncio.to_thread(_make_empty_files, place, folder, placed)


async def _write_chunks(
    cache: Cache, key: RankKey, place: Path, todo: Iterator[tuple[str, int]], spans: dict[str, list[_Span]]
) -> None:
    for digest, size in todo:
        file = InputFile(path="a part of the folder", digest=digest, size_bytes=size)
        async with cache.cached(key, file, makes_room=False) as path:
            await asyncio.to_thread(_write, path, place, spans[digest])


def _read(path: Path) -> Folder:
    with path.open("rb") as file:
        return folder_of(file.read(MANIFEST_BYTES_MAX + 1))


def _spans(folder: Folder, placed: Mapping[str, str]) -> dict[str, list[_Span]]:
    """What lies in each chunk of the files that are placed. A chunk may be in the contents more than once."""
    found: dict[str, list[_Span]] = defaultdict(list)
    files = (each for each in folder.entries if each.size_bytes)
    entry, done = next(files, None), 0
    for chunk in folder.chunks:
        at = 0
        while at < chunk.size_bytes:
            assert entry is not None  # the sums of both are the same
            size = min(entry.size_bytes - done, chunk.size_bytes - at)
            is_whole = size == entry.size_bytes
            if (path := placed.get(entry.path)) is not None:
                found[chunk.digest].append(_Span(path, _mode(entry.is_executable), done, at, size, is_whole))
            at, done = at + size, done + size
            if done == entry.size_bytes:
                entry, done = next(files, None), 0
    return found


def _make_folders(place: Path, folder: Folder) -> None:
    empty = [each.path for each in folder.entries if each.kind is EntryKind.EMPTY_FOLDER]
    for path in sorted({*folders_above(each.path for each in folder.entries), *empty}):
        Path(place, path).mkdir(0o700)


def _write(chunk: Path, place: Path, spans: Iterable[_Span]) -> None:
    """Write each part of a chunk where it belongs."""
    with chunk.open("rb") as source:
        data: bytes | None = None
        for span in spans:
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_EXCL if span.is_whole else 0)
            target = os.open(f"{place}/{span.path}", flags, span.mode)
            try:
                if not span.is_whole and _copied(source.fileno(), target, span):
                    continue
                if data is None:
                    data = os.pread(source.fileno(), os.fstat(source.fileno()).st_size, 0)
                part = memoryview(data)[span.chunk_offset : span.chunk_offset + span.size]
                if len(part) != span.size:
                    raise OSError(errno.EIO, f"a file of the cache is too short: {chunk.name}")
                written = 0
                while written < span.size:
                    written += os.pwrite(target, part[written:], span.offset + written)
            finally:
                os.close(target)


def _copied(source: int, target: int, span: _Span) -> bool:
    """Let the kernel copy it, which shares the blocks where the file system can; False where it cannot."""
    done = 0
    while done < span.size:
        try:
            more = os.copy_file_range(source, target, span.size - done, span.chunk_offset + done, span.offset + done)
        except OSError as problem:
            if problem.errno in NO_COPY_IN_KERNEL:
                return False
            raise
        if not more:
            raise OSError(errno.EIO, f"a file of the cache is too short for {span.path}")
        done += more
    return True


def _make_empty_files(place: Path, folder: Folder, placed: Mapping[str, str]) -> None:
    """What needs no chunk."""
    for entry in folder.entries:
        path = placed.get(entry.path)
        if entry.kind is EntryKind.FILE and not entry.size_bytes and path is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(f"{place}/{path}", flags, _mode(entry.is_executable)))


def _make_links(place: Path, folder: Folder) -> None:
    """Links, behind everything that is written."""
    for entry in folder.entries:
        if entry.kind is EntryKind.LINK:
            Path(place, entry.path).symlink_to(entry.target)


def _mode(is_executable: bool) -> int:
    return 0o700 if is_executable else 0o600
