"""From a folder to its manifest: what is in it, how it is cut, and the digest of each chunk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.jobs.cutting import plans_of
from gpufleet.jobs.folders import Entry, EntryKind, Folder, FolderChunk, ManifestError, manifest_of
from gpufleet.v1 import job_pb2

from . import known_chunks
from .known_chunks import Plan
from .scanning import OPTION, FoundFile, Limits, ScannedFolder, ignore_line, scan

READERS = 4
"""Chunks that are read at the same time, of 8 MiB at most each."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A folder that can be sent: its manifest, and what each chunk is made of, by digest."""

    found: ScannedFolder
    manifest: bytes
    plans: dict[str, Plan]
    folder: job_pb2.InputFolder

    def manifest_from(self, offset: int) -> Iterator[bytes]:
        """The rest of the manifest."""
        yield self.manifest[offset:]


def prepare(root: Path, limits: Limits) -> Prepared:
    """Describe a folder. Errors: those of `scan`, and CONFLICT for a file that changes while it is read."""
    found = scan(root, limits)
    plans = list(plans_of(found.files))
    digests = _digests(root, plans)
    chunks = tuple(
        FolderChunk(digest, sum(part.size for part in plan)) for digest, plan in zip(digests, plans, strict=True)
    )
    folder = Folder(_entries(found), chunks)
    try:
        manifest = manifest_of(folder)
    except ManifestError as problem:
        raise invalid(OPTION, f"{root} cannot go along: {problem}") from None
    described = job_pb2.InputFolder(
        digest=hashlib.sha256(manifest).hexdigest(),
        size_bytes=len(manifest),
        entry_count=len(folder.entries),
        content_bytes=folder.content_bytes,
    )
    return Prepared(found, manifest, dict(zip(digests, plans, strict=True)), described)


def _entries(found: ScannedFolder) -> tuple[Entry, ...]:
    entries = [Entry(each.path, EntryKind.FILE, each.size, each.is_executable) for each in found.files]
    entries += [Entry(path, EntryKind.LINK, target=target) for path, target in found.links.items()]
    entries += [Entry(path, EntryKind.EMPTY_FOLDER) for path in found.empty_folders]
    return tuple(sorted(entries, key=lambda each: each.path))


def _digests(root: Path, plans: Sequence[Plan]) -> list[str]:
    """The SHA-256 of each chunk; what did not change since it was last sent is not read."""
    known = known_chunks.load(root)
    keys = [known_chunks.key_of(plan) for plan in plans]
    new = [plan for key, plan in zip(keys, plans, strict=True) if key not in known]
    with ThreadPoolExecutor(READERS) as pool:
        read = iter(list(pool.map(lambda plan: hashlib.sha256(bytes_of(root, plan)).hexdigest(), new)))
    digests = [known[key] if key in known else next(read) for key in keys]
    settled = {
        key: digest
        for key, digest, plan in zip(keys, digests, plans, strict=True)
        if key in known or known_chunks.is_settled(plan)
    }
    if settled != known:
        known_chunks.save(root, settled)
    return digests


def bytes_of(root: Path, plan: Plan) -> bytes:
    """The bytes of a chunk. Errors: CONFLICT where one of its files is not as it was found, FILE_NOT_FOUND."""
    return b"".join(_read(root, part.file, part.offset, part.size) for part in plan)


def _read(root: Path, file: FoundFile, offset: int, size: int) -> bytes:
    try:
        descriptor = os.open(f"{root}/{file.path}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise changed(root, file.path) from None
    except OSError as problem:
        raise GpufleetError(
            Reason.FILE_NOT_FOUND,
            f"{file.path!a} cannot be read: {problem.strerror}",
            next_step=f"Leave it out: {ignore_line(root, file.path)}",
        ) from None
    try:
        data = b""
        while len(data) < size and (more := os.pread(descriptor, size - len(data), offset + len(data))):
            data += more
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    is_same = (status.st_size, status.st_mtime_ns, status.st_ino) == (file.size, file.modified_ns, file.inode)
    if not is_same or len(data) != size:
        raise changed(root, file.path)
    return data


def changed(root: Path, path: str) -> GpufleetError:
    """A file is not as it was a moment ago."""
    return GpufleetError(
        Reason.CONFLICT,
        f"{path!a} changed while the folder was read; nothing was submitted",
        next_step=f"Submit again when nothing writes to it, or leave it out: {ignore_line(root, path)}",
    )
