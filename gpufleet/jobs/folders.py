"""Folders that go with a job: their manifests, as scheduler, agent and gpuctl all hold to them.

A manifest (FolderManifest in files.proto) comes from anybody who has a token, and a node writes files by it: so the
scheduler checks it where a job names it, and the node again where it is used. What stands here is all that is checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from google.protobuf.message import DecodeError

from gpufleet.v1 import files_pb2

from .files import PATH_BYTES_MAX, trouble_with_path

ENTRIES_MAX = 100_000
CHUNKS_MAX = 100_000
CHUNK_BYTES_MAX = 8 * 2**20
MANIFEST_BYTES_MAX = 16 * 2**20
CONTENT_BYTES_MAX = 2**50
"""No number of bytes is larger; what a deployment takes is a setting."""
DIGEST_BYTES = 32
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}(/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}){0,8}")
"""What most paths look like: of these nothing more has to be asked."""


class ManifestError(Exception):
    """A manifest that no job may name; its text says why, for people."""


class EntryKind(Enum):
    """What lies at a path."""

    FILE = auto()
    LINK = auto()
    EMPTY_FOLDER = auto()


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, a symbolic link or an empty folder; `target` is a link's, `size_bytes` a file's."""

    path: str
    kind: EntryKind = EntryKind.FILE
    size_bytes: int = 0
    is_executable: bool = False
    target: str = ""


@dataclass(frozen=True, slots=True)
class FolderChunk:
    """A part of the contents of the files, by its SHA-256 in hexadecimal."""

    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Folder:
    """What a manifest says: the contents of the files, in the order of the entries, are the chunks in theirs."""

    entries: tuple[Entry, ...]
    chunks: tuple[FolderChunk, ...]

    @property
    def content_bytes(self) -> int:
        """How many bytes the files have together."""
        return sum(each.size_bytes for each in self.chunks)


def manifest_of(folder: Folder) -> bytes:
    """The manifest of a folder. Raises ManifestError."""
    _check(folder)
    data = files_pb2.FolderManifest(
        entries=[
            files_pb2.FolderEntry(
                path=each.path,
                size_bytes=each.size_bytes,
                is_executable=each.is_executable,
                link_target=each.target,
                is_empty_folder=each.kind is EntryKind.EMPTY_FOLDER,
            )
            for each in folder.entries
        ],
        chunks=[
            files_pb2.FolderChunk(digest=bytes.fromhex(each.digest), size_bytes=each.size_bytes)
            for each in folder.chunks
        ],
    ).SerializeToString(deterministic=True)
    if len(data) > MANIFEST_BYTES_MAX:
        raise ManifestError(f"it has {len(data):,} bytes, mostly of paths; {MANIFEST_BYTES_MAX:,} are the most")
    return data


def folder_of(data: bytes) -> Folder:
    """The folder of a manifest. Raises ManifestError."""
    if len(data) > MANIFEST_BYTES_MAX:
        raise ManifestError(f"it has {len(data):,} bytes; {MANIFEST_BYTES_MAX:,} are the most")
    try:
        message = files_pb2.FolderManifest.FromString(data)
    except DecodeError:
        raise ManifestError("it is not in the format of a FolderManifest") from None
    message.DiscardUnknownFields()
    if message.SerializeToString(deterministic=True) != data:
        raise ManifestError("it holds fields that are not known here, or twice, or in another order")
    folder = Folder(
        tuple(map(_entry, message.entries)),
        tuple(_chunk(number, each) for number, each in enumerate(message.chunks)),
    )
    _check(folder)
    return folder


def _entry(message: files_pb2.FolderEntry) -> Entry:
    if message.link_target and message.is_empty_folder:
        raise ManifestError(f"{message.path[:PATH_BYTES_MAX]!r} is a link and a folder")
    kind = EntryKind.FILE
    if message.link_target:
        kind = EntryKind.LINK
    elif message.is_empty_folder:
        kind = EntryKind.EMPTY_FOLDER
    return Entry(message.path, kind, message.size_bytes, message.is_executable, message.link_target)


def _chunk(number: int, message: files_pb2.FolderChunk) -> FolderChunk:
    if len(message.digest) != DIGEST_BYTES:
        raise ManifestError(f"chunk {number:,} has no SHA-256")
    return FolderChunk(message.digest.hex(), message.size_bytes)


def _check(folder: Folder) -> None:
    for what, number, most in (
        ("entries", len(folder.entries), ENTRIES_MAX),
        ("chunks", len(folder.chunks), CHUNKS_MAX),
    ):
        if number > most:
            raise ManifestError(f"it has {number:,} {what}; {most:,} are the most")
    for chunk in folder.chunks:
        if not 1 <= chunk.size_bytes <= CHUNK_BYTES_MAX:
            raise ManifestError(f"a chunk has {chunk.size_bytes:,} bytes; 1 to {CHUNK_BYTES_MAX:,} are allowed")
    before = ""
    for entry in folder.entries:
        if not _PLAIN_PATH.fullmatch(entry.path) and (why := trouble_with_path(entry.path)):
            raise ManifestError(f"the path of an entry {why}")
        if entry.path <= before:
            raise ManifestError(f"{entry.path!r} comes behind {before!r}: paths are in order, and each once")
        before = entry.path
        if not 0 <= entry.size_bytes <= CONTENT_BYTES_MAX:
            raise ManifestError(f"{entry.path!r} has {entry.size_bytes:,} bytes")
        if entry.kind is not EntryKind.FILE and (entry.size_bytes or entry.is_executable):
            raise ManifestError(f"{entry.path!r} is no file, and has a size or is a program")
    _check_places(folder.entries)
    said, have = sum(each.size_bytes for each in folder.entries), folder.content_bytes
    if said != have:
        raise ManifestError(f"its files have {said:,} bytes, and its chunks {have:,}")


def _check_places(entries: Sequence[Entry]) -> None:
    """No entry lies in one that holds nothing, and each link leads to a place that is here."""
    paths = {each.path for each in entries}
    folders = folders_above(paths)
    if clash := next((each.path for each in entries if each.path in folders), None):
        raise ManifestError(f"{clash!r} is an entry, and others lie in it")
    links = {each.path for each in entries if each.kind is EntryKind.LINK}
    for each in entries:
        if each.kind is EntryKind.LINK and (why := trouble_with_link(each.path, each.target, paths, folders, links)):
            raise ManifestError(f"{each.path!r} is a link that {why}")


def folders_above(paths: Iterable[str]) -> set[str]:
    """All folders that these paths lie in, but for the whole one."""
    found: set[str] = set()
    for path in paths:
        above = path.rpartition("/")[0]
        while above and above not in found:
            found.add(above)
            above = above.rpartition("/")[0]
    return found


def trouble_with_link(path: str, target: str, paths: set[str], folders: set[str], links: set[str]) -> str:
    """Why a link may not be in a folder of these paths, for people; empty where it may.

    Each step to where it leads is looked at: behind another link `..` would not be where it seems to be.
    """
    if target.startswith("/"):
        return "is not relative"
    if len(target.encode(errors="replace")) > PATH_BYTES_MAX or "\x00" in target:
        return "leads to what no path is"
    here = path.split("/")[:-1]
    steps = [step for step in target.split("/") if step not in ("", ".")]
    for number, step in enumerate(steps):
        if step == "..":
            if not here:
                return "leads out of the folder"
            here.pop()
            continue
        here.append(step)
        place = "/".join(here)
        is_last = number == len(steps) - 1
        if place in links and not is_last:
            return f"leads through another one, {place!r}"
        if place not in folders and not (place in paths and is_last):
            return f"leads to {place!r}, which does not go along"
    return "" if here else "leads to the folder itself"
