"""The folder of a job that runs, as people reach into it: listed, read and written, while the job does what it likes.

Every step is taken from a folder that is open already, and through no link: so nothing outside is reached, whatever the
job renames meanwhile. It is called by the rights of the job's user (`account_thread.py`), and by nothing more.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress

from gpufleet.v1 import files_pb2

from gpufleet.errors import Reason
from gpufleet.jobs.files import trouble_with_path
from gpufleet.jobs.results import Chosen

from .beneath import NotPlain, open_beneath
from .leavings import why_unfit

LISTED_MAX = 20_000
"""Names that are looked at for one list."""
DEPTH_MAX = 100
"""Folders inside each other that are looked into."""
LEFT_OUT_MAX = 100
"""Names of which it is told why they are not in a list."""
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class NotReached(Exception):
    """What was asked for is not done. `reason` is one of the error table."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ResultsAlone:
    """What of a folder somebody else reaches than the job's owner and admins: plain files that its lines choose.

    They are the files that would be stored if the job ended now. Of any other name it is not said whether it is there.
    """

    def __init__(self, lines: tuple[str, ...], owner: int) -> None:
        self._chosen = Chosen(lines)
        self._owner = owner

    def chooses(self, path: str) -> bool:
        """Whether a file at this path is one of them."""
        return self._chosen.has(path)

    def why_unfit(self, path: str, status: os.stat_result) -> str:
        """Why what is there is no file for them, for people; empty where it is."""
        return why_unfit(path, status, self._owner)

    def has(self, path: str, status: os.stat_result) -> bool:
        """Whether what is at this path is one of them."""
        return self.chooses(path) and not self.why_unfit(path, status)

    @contextmanager
    def refusing(self, path: str) -> Iterator[None]:
        """Say the same of what is not there, and of what is not for them. Raises NotReached."""
        try:
            yield
        except NotReached:
            raise self.refusal(path) from None

    def refusal(self, path: str) -> NotReached:
        """What is said of a path at which there is nothing for them."""
        return NotReached(Reason.FILE_NOT_FOUND, f"{path[:200]!a} is no file that the job's --download chooses")


class ReachedFile:
    """A file that is being read, as it was when it was opened; with `alone` only one of those. Raises NotReached."""

    def __init__(self, top: int, path: str, alone: ResultsAlone | None = None) -> None:
        path = checked_path(path)
        with nullcontext() if alone is None else alone.refusing(path), refusing(path):
            self._descriptor = open_beneath(top, path)
        self._status = os.fstat(self._descriptor)
        if alone is not None and not alone.has(path, self._status):
            os.close(self._descriptor)
            raise alone.refusal(path)
        self._path = path
        self._sha = hashlib.sha256()
        self._at = 0
        self.version = "-".join(f"{each:x}" for each in _version(self._status))

    @property
    def entry(self) -> files_pb2.FolderEntry:
        """What it is."""
        size = self._status.st_size
        return files_pb2.FolderEntry(path=self._path, size_bytes=size, is_executable=bool(self._status.st_mode & 0o100))

    @property
    def is_whole(self) -> bool:
        """Whether all of it was read."""
        return self._at >= self._status.st_size

    def read(self, size: int) -> bytes:
        """Its next bytes, so many unless it ends. NotReached where it has changed."""
        wanted = min(size, self._status.st_size - self._at)
        with refusing(self._path):
            data = os.pread(self._descriptor, wanted, self._at)
        if len(data) < wanted:
            raise self._changed()
        self._sha.update(data)
        self._at += len(data)
        return data

    def digest(self) -> str:
        """Its SHA-256, when all of it was read. NotReached where it has changed meanwhile."""
        if _version(os.fstat(self._descriptor)) != _version(self._status):
            raise self._changed()
        return self._sha.hexdigest()

    def close(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)

    def _changed(self) -> NotReached:
        return NotReached(Reason.CONFLICT, f"{self._path!a} changed while it was read")


def listed(
    top: int, path: str, left_out: list[str], alone: ResultsAlone | None = None
) -> Iterator[files_pb2.FolderEntry]:
    """Files, links and empty folders below a path, or the file that it names; with `alone` only those files.

    NotReached where there is nothing.
    """
    if path.strip("/") in ("", "."):
        yield from _walk(top, "", left_out, [0], 0, alone)
        return
    path = checked_path(path)
    if alone is None:
        yield from _listed_at(top, path, left_out, None)
        return
    with alone.refusing(path):
        is_any = False
        for entry in _listed_at(top, path, left_out, alone):
            is_any = True
            yield entry
        if not is_any:
            raise alone.refusal(path)


def _listed_at(top: int, path: str, left_out: list[str], alone: ResultsAlone | None) -> Iterator[files_pb2.FolderEntry]:
    with refusing(path):
        *folders, name = path.split("/")
        above = folder_below(top, folders, makes=False)
        try:
            status = os.stat(name, dir_fd=above, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                inner = os.open(name, _FOLDER, dir_fd=above)
                try:
                    yield from _walk(inner, path, left_out, [0], 0, alone)
                finally:
                    os.close(inner)
            elif alone is not None and not alone.has(path, status):
                raise alone.refusal(path)
            elif (entry := _entry(above, name, path, status)) is not None:
                yield entry
            else:
                raise NotReached(Reason.FILE_NOT_FOUND, f"{path!a} is no file")
        finally:
            os.close(above)


def _walk(
    folder: int, path: str, left_out: list[str], seen: list[int], depth: int, alone: ResultsAlone | None
) -> Iterator[files_pb2.FolderEntry]:
    readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        with os.scandir(readable) as found:
            names = sorted(each.name for each in found)
    finally:
        os.close(readable)
    if not names and path and alone is None:
        yield files_pb2.FolderEntry(path=path, is_empty_folder=True)
    for name in names:
        inner = f"{path}/{name}" if path else name
        seen[0] += 1
        if seen[0] > LISTED_MAX:
            if seen[0] == LISTED_MAX + 1:
                left_out.insert(0, f"more than {LISTED_MAX:,} names are there: the rest was not looked at")
            return
        why = trouble_with_path(inner) or ""
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode) and not why and depth < DEPTH_MAX:
                opened = os.open(name, _FOLDER, dir_fd=folder)
                try:
                    yield from _walk(opened, inner, left_out, seen, depth + 1, alone)
                finally:
                    os.close(opened)
                continue
            why = why or ("" if alone is None else alone.why_unfit(inner, status))
            entry = None if why else _entry(folder, name, inner, status)
            why = why or ("is neither a file nor a link" if entry is None else "")
        except OSError as problem:
            entry, why = None, f"cannot be looked at: {problem.strerror}"
        if alone is not None and not alone.chooses(inner):
            continue
        if entry is not None:
            yield entry
        elif len(left_out) < LEFT_OUT_MAX:
            left_out.append(f"{inner!a} {why}")


def _entry(folder: int, name: str, path: str, status: os.stat_result) -> files_pb2.FolderEntry | None:
    if stat.S_ISLNK(status.st_mode):
        target = os.readlink(name, dir_fd=folder).encode(errors="replace").decode()
        return files_pb2.FolderEntry(path=path, link_target=target or "?")
    if not stat.S_ISREG(status.st_mode):
        return None
    return files_pb2.FolderEntry(path=path, size_bytes=status.st_size, is_executable=bool(status.st_mode & 0o100))


def folder_below(top: int, folders: list[str], *, makes: bool = True) -> int:
    """A descriptor of a folder below, which is made where it is not there. OSError."""
    opened = os.dup(top)
    try:
        for name in folders:
            if makes:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=opened)
            inner = os.open(name, _FOLDER, dir_fd=opened)
            os.close(opened)
            opened = inner
    except BaseException:
        os.close(opened)
        raise
    return opened


def checked_path(path: str) -> str:
    """A path inside the folder. Raises NotReached."""
    path = path.strip("/")
    if why := trouble_with_path(path):
        raise NotReached(Reason.INVALID_ARGUMENT, f"the path {path[:200]!a} {why}")
    return path


def _version(status: os.stat_result) -> tuple[int, int, int]:
    return (status.st_ino, status.st_size, status.st_mtime_ns)


@contextmanager
def refusing(path: str) -> Iterator[None]:
    """Say what the system says of a path. Raises NotReached."""
    try:
        yield
    except NotPlain as problem:
        raise NotReached(Reason.FILE_NOT_FOUND, f"{path!a} is {problem}, and no plain file") from None
    except OSError as problem:
        reason, words = _WORDS.get(problem.errno or 0, (Reason.CONFLICT, problem.strerror or str(problem)))
        raise NotReached(reason, f"{path!a} {words}") from None


_WORDS = {
    errno.ENOENT: (Reason.FILE_NOT_FOUND, "is not there"),
    errno.ENOTDIR: (Reason.CONFLICT, "lies behind what is no folder, or a link"),
    errno.ELOOP: (Reason.CONFLICT, "lies behind a link, which is not followed"),
    errno.EISDIR: (Reason.CONFLICT, "is a folder there"),
    errno.EACCES: (Reason.PERMISSION_DENIED, "is shut to the account that the job runs as"),
    errno.EPERM: (Reason.PERMISSION_DENIED, "is shut to the account that the job runs as"),
    errno.ENOSPC: (Reason.QUOTA_EXCEEDED, "has no room: the disk of the node is full"),
    errno.EDQUOT: (Reason.QUOTA_EXCEEDED, "has no room: the quota of the job's account is used up"),
}
