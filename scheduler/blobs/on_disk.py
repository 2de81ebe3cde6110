"""Blobs as files: their names, how a piece is written, what an error of the disk is called."""

import errno
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpufleet.errors import GpufleetError, Reason

from ..state.ids import UserName

PART = ".part"
"""What the name of a file ends with that is not whole."""
_NAME = re.compile(r"(?P<digest>[0-9a-f]{64})(?P<part>\.part)?")

Key = tuple[UserName, str]
"""Whose, and the digest."""


@dataclass(frozen=True, slots=True)
class FoundBlob:
    """A file as it was found; `used_at` is when it was last needed, in seconds of the wall clock."""

    key: Key
    size: int
    used_at: float
    is_whole: bool


def found_in(folder: Path) -> Iterator[FoundBlob]:
    """Every blob below a folder. Errors: OSError."""
    for user in sorted(folder.iterdir()):
        if user.is_dir() and not user.name.startswith("."):
            for entry in os.scandir(user):
                if matched := _NAME.fullmatch(entry.name):
                    status = entry.stat(follow_symlinks=False)
                    key = (UserName(user.name), matched["digest"])
                    yield FoundBlob(key, status.st_size, status.st_mtime, matched["part"] is None)


def write_at(path: Path, position: int, data: memoryview) -> None:
    """Write all of it, or leave the file as long as it was. Errors: OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(descriptor, data[written:], position + written)
        except OSError:
            os.ftruncate(descriptor, position)
            raise
        # The disk begins with it now: whoever syncs it a moment later waits for little.
        with suppress(OSError):
            os.posix_fadvise(descriptor, position, len(data), os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def digest_of(path: Path, sha: Any) -> str:
    """The SHA-256 of a file; `sha` is that of what was written, None where nobody knows. Errors: OSError."""
    if sha is None:
        with path.open("rb") as file:
            sha = hashlib.file_digest(file, "sha256")
    return str(sha.hexdigest())


@contextmanager
def explained(what: str, path: Path) -> Iterator[None]:
    """Raise errors of the disk as STORE_UNAVAILABLE: the file cannot be `what`."""
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise GpufleetError(
            Reason.STORE_UNAVAILABLE,
            f"a file for a job cannot be {what} ({path.name or path}): {why}",
            next_step="Free the disk of the scheduler's data folder; then try again."
            if error.errno in (errno.ENOSPC, errno.EDQUOT)
            else "",
        ) from error
