"""What of a rank's folder is to be kept, read as from a stranger: by no link, plain files of the job's own alone.

The agent may be root, and the job has made of the folder what it liked. So every step is taken from a folder that is
open already, and a file counts only if it belongs to whom the folder does: a hard link to somebody else's does not.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import count, islice, takewhile
from pathlib import Path

from gpufleet.jobs.cutting import Part, plans_of
from gpufleet.jobs.files import trouble_with_path
from gpufleet.jobs.folders import Entry, EntryKind, Folder, FolderChunk, ManifestError, manifest_of
from gpufleet.jobs.results import (
    PROBLEM_CHARS_MAX,
    PROBLEMS_MAX,
    RESULT_FILES_MAX,
    RESULT_MANIFEST_BYTES_MAX,
    Chosen,
)

LOOKED_AT_MAX = 1_000_000
"""Names that are looked at; of a folder with more the rest is left."""
LOOKED_SECONDS_MAX = 300.0
"""How long names are looked at: many lines over many names must not keep what others left waiting."""
DEPTH_MAX = 100
"""Folders inside each other; no path that is allowed has more."""


class Changed(Exception):
    """A file is not as it was when it was described."""


@dataclass(frozen=True, slots=True)
class LeftFile:
    """A file as it was found."""

    path: str
    size: int
    modified_ns: int
    inode: int
    is_executable: bool


Plan = tuple[Part[LeftFile], ...]


@dataclass(slots=True)
class Left:
    """What a rank left: the manifest, what each chunk is made of, and what is not among it."""

    manifest: bytes = b""
    plans: dict[str, Plan] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    size_bytes: int = 0
    """Of all that was chosen."""
    file_count: int = 0
    cut: str = ""
    """Why files that could be stored are not in it; what can never be, such as a link, is among the problems alone."""

    def cut_by(self, why: str) -> None:
        """Not all of it is there."""
        self.problems.insert(0, why)
        self.cut = why


def look(root: Path, lines: tuple[str, ...], clock: Callable[[], float] = time.monotonic) -> Left:
    """Describe what the lines choose in a folder; `clock` tells seconds.

    Errors: OSError where it cannot be opened, Changed.
    """
    left, chosen = Left(), Chosen(lines)
    with _opened(root) as top:
        walked = _walk(top, "", os.fstat(top).st_uid, chosen, left, 0)
        until = clock() + LOOKED_SECONDS_MAX
        looked_at = takewhile(lambda _: clock() < until, islice(walked, LOOKED_AT_MAX))
        tally = count()
        # Of a million files no more are held than may be stored.
        found = (file for file, _ in zip((each for each in looked_at if each is not None), tally, strict=False))
        files = nsmallest(RESULT_FILES_MAX, found, key=lambda each: each.path)
        file_count = next(tally)
        if clock() >= until:
            left.cut_by(f"looking took more than {LOOKED_SECONDS_MAX:.0f} s: the rest was not looked at")
        elif next(walked, walked) is not walked:
            left.cut_by(f"the folder holds more than {LOOKED_AT_MAX:,} names: the rest was not looked at")
        walked.close()
        if file_count > RESULT_FILES_MAX:
            left.cut_by(f"{file_count:,} files are chosen, and only the first {RESULT_FILES_MAX:,} are stored")
        plans = list(plans_of(files))
        digests = [hashlib.sha256(_bytes(top, plan)).hexdigest() for plan in plans]
    chunks = tuple(
        FolderChunk(each, sum(part.size for part in plan)) for each, plan in zip(digests, plans, strict=True)
    )
    left.size_bytes, left.file_count = sum(each.size for each in files), len(files)
    entries = tuple(Entry(each.path, EntryKind.FILE, each.size, each.is_executable) for each in files)
    try:
        left.manifest = manifest_of(Folder(entries, chunks))
        if len(left.manifest) > RESULT_MANIFEST_BYTES_MAX:
            raise ManifestError("the paths are too long together")
        left.plans = dict(zip(digests, plans, strict=True))
    except ManifestError as problem:
        left.manifest = b""
        left.cut_by(f"nothing is stored: {problem}")
    left.problems = [each[:PROBLEM_CHARS_MAX] for each in left.problems[:PROBLEMS_MAX]]
    return left


def bytes_of(root: Path, plan: Plan) -> bytes:
    """The bytes of a chunk. Errors: OSError, Changed."""
    with _opened(root) as top:
        return _bytes(top, plan)


def _walk(
    folder: int, path: str, owner: int, chosen: Chosen, left: Left, depth: int
) -> Generator[LeftFile | None, None, None]:
    """Each chosen file below an open folder, and None for every other name."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in islice(entries, LOOKED_AT_MAX + 1))
    for name in names:
        inner = f"{path}/{name}" if path else name
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                yield None
                if depth < DEPTH_MAX:
                    with _inside(folder, name) as opened:
                        yield from _walk(opened, inner, owner, chosen, left, depth + 1)
                continue
            is_chosen = chosen.has(inner)
        except OSError as problem:
            why = f"{inner!a} cannot be read: {problem.strerror}"
            _note(left.problems, why)
            left.cut = left.cut or ("" if problem.errno == errno.ENOENT else why)  # what is gone is not missing
            continue
        why = why_unfit(inner, status, owner) if is_chosen else ""
        if why:
            _note(left.problems, f"{inner!a} {why}")
        if not is_chosen or why:
            yield None
            continue
        is_executable = bool(status.st_mode & 0o100)
        yield LeftFile(inner, status.st_size, status.st_mtime_ns, status.st_ino, is_executable)


def _note(problems: list[str], problem: str) -> None:
    """Keep what is told in the end, and no line for each of a million links."""
    if len(problems) < PROBLEMS_MAX:
        problems.append(problem)


def why_unfit(path: str, status: os.stat_result, owner: int) -> str:
    """Why what is there is not for whoever reads what the job writes, for people; empty where it is."""
    if why := trouble_with_path(path):
        return why
    if stat.S_ISLNK(status.st_mode):
        return "is a link: what it leads to is stored where it lies itself"
    if not stat.S_ISREG(status.st_mode):
        return "is no plain file"
    return "" if status.st_uid == owner else "belongs to another account than the job"


def _bytes(top: int, plan: Plan) -> bytes:
    data = bytearray()
    for part in plan:
        *folders, name = part.file.path.split("/")
        opened = os.dup(top)
        try:
            for folder in folders:
                inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=opened)
                os.close(opened)
                opened = inner
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = os.open(name, flags, dir_fd=opened)
        except OSError as problem:
            raise Changed(f"{part.file.path!a} cannot be read: {problem.strerror}") from None
        finally:
            os.close(opened)
        try:
            data += _read(file, part)
        finally:
            os.close(file)
    return bytes(data)


def _read(file: int, part: Part[LeftFile]) -> bytes:
    """Its bytes, if it is still the file that was found."""
    status = os.fstat(file)
    data = b""
    if stat.S_ISREG(status.st_mode) and status.st_ino == part.file.inode:
        while len(data) < part.size and (more := os.pread(file, part.size - len(data), part.offset + len(data))):
            data += more
    status = os.fstat(file)
    if (status.st_ino, status.st_size, status.st_mtime_ns) != (part.file.inode, part.file.size, part.file.modified_ns):
        raise Changed(f"{part.file.path!a} changed while it was read")
    if len(data) != part.size:
        raise Changed(f"{part.file.path!a} changed while it was read")
    return data


class _Closing:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _opened(root: Path) -> _Closing:
    return _Closing(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))


def _inside(folder: int, name: str) -> _Closing:
    return _Closing(os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder))
