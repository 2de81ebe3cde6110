"""Blobs as files: FOLDER/USER/DIGEST, and FOLDER/USER/DIGEST.part for what is not whole yet.

A part is appended to in order, and renamed when it is whole, synced and has its digest; so a crash leaves a part, which
the next upload goes on with. What is wrong in it shows in its digest, and it is dropped. Files that came together are
synced together, as `receiving.py` does, and their folder once for all of them. When a file was last needed is the time
of its last change, so that nothing else has to be stored of it.
"""

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpufleet.errors import GpufleetError, Reason
from gpufleet.host.whole_file import sync_path

from ..state.ids import UserName
from .folders import Folders
from .on_disk import PART, FoundBlob, Key, digest_of, explained, found_in, write_at
from .results import Results

COUNTED_BYTES_MIN = 4_096
"""A file counts as so many bytes at least, as it does on a disk."""
TURNS = 64
"""Locks that uploads share, by the file."""
SYNCS_AT_ONCE = 16
"""Files of a group that are synced at the same time: a disk writes them together."""
USED_GRAIN_SECONDS = 60.0
"""When a file was last needed is written down no finer: after a restart it may seem to be so much longer ago."""
RESULTS_FOLDER = ".results"
"""No user is called so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobLimits:
    """The limits that the settings ask for, in bytes; `free_bytes` is what must stay free on the disk."""

    file_bytes: int
    user_bytes: int
    user_files: int
    free_bytes: int
    folder_bytes: int = 2**50


@dataclass(slots=True)
class _Blob:
    """What is known of a file; `sha` is that of its bytes so far, None after a restart.

    `is_named`: it has the name of a whole one. `is_whole` it is once a crash cannot take that from it. `noted_at` is
    the `used_at` that its file tells.
    """

    size: int
    used_at: float
    is_named: bool
    is_whole: bool
    noted_at: float
    sha: Any = None


@dataclass(slots=True)
class _Used:
    """What a user has stored, as it is counted."""

    bytes: int = 0
    files: int = 0


class BlobStore:
    """Every method may be called from any thread. Errors of the disk: STORE_UNAVAILABLE."""

    def __init__(
        self, folder: Path, limits: Callable[[], BlobLimits], wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._folder = folder
        self._limits = limits
        self._now = wall_clock
        self._lock = threading.RLock()
        self._blobs: dict[Key, _Blob] = {}
        self._used: dict[UserName, _Used] = {}
        self._synced_users: set[UserName] = set()
        self._turns = [threading.Lock() for _ in range(TURNS)]
        self.folders = Folders(self.open)
        self.results = Results(folder / RESULTS_FOLDER, wall_clock)
        with explained("opened", folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for found in found_in(folder):
                known = self._blobs.get(found.key)
                if known is None or not known.is_whole:
                    self._note(found.key, _blob_of(found))

    @property
    def file_bytes_max(self) -> int:
        """How many bytes a file may have."""
        return self._limits().file_bytes

    @property
    def folder_bytes_max(self) -> int:
        """How many bytes the files of a folder may have together."""
        return self._limits().folder_bytes

    def size_of(self, user: UserName, digest: str) -> int | None:
        """The size of a whole file in bytes; None where the user has none."""
        blob = self._blobs.get((user, digest))
        return blob.size if blob is not None and blob.is_whole else None

    def stored_bytes(self, user: UserName, digest: str) -> int:
        """How many of its first bytes are stored."""
        blob = self._blobs.get((user, digest))
        return 0 if blob is None else blob.size

    def keep(self, wanted: Iterable[Key]) -> None:
        """Somebody needs these now: they are dropped no sooner than `unused` after this."""
        for user, digest in wanted:
            with self._lock:
                blob = self._blobs.get((user, digest))
                if blob is None:
                    continue
                blob.used_at = now = self._now()
                if abs(now - blob.noted_at) < USED_GRAIN_SECONDS:
                    continue
                path = self._path(user, digest, is_whole=blob.is_named)
                with explained("kept", path):
                    os.utime(path, (now, now))
                blob.noted_at = now

    def check_room(self, user: UserName, digest: str, size: int) -> None:
        """Refuse a file that is not to be stored. Errors: FILE_TOO_LARGE, QUOTA_EXCEEDED, STORE_UNAVAILABLE."""
        limits = self._limits()
        if size > limits.file_bytes:
            raise GpufleetError(
                Reason.FILE_TOO_LARGE, f"the file has {size:,} bytes; at most {limits.file_bytes:,} are taken"
            )
        self._check_quota(user, digest, size, limits)
        self._check_disk(size - self.stored_bytes(user, digest), limits)

    def write(self, user: UserName, digest: str, offset: int, data: bytes) -> int:
        """Add a piece; how many bytes are stored then. What is stored already is passed over.

        Errors: OFFSET_OUT_OF_RANGE for a piece behind a hole, and those of `check_room`.
        """
        with self._writer(user, digest):
            blob = self._blobs.get((user, digest))
            stored = 0 if blob is None else blob.size
            if offset > stored:
                raise GpufleetError(
                    Reason.OFFSET_OUT_OF_RANGE,
                    f"the piece begins at byte {offset:,}, and {stored:,} are stored",
                    next_step="Send the piece before it first; FindMissingBlobs tells how many bytes are stored.",
                    metadata={"digest": digest},
                )
            fresh = memoryview(data)[stored - offset :]
            if blob is not None and (blob.is_named or not fresh):
                return stored
            limits = self._limits()
            self._check_quota(user, digest, stored + len(fresh), limits)
            self._check_disk(len(fresh), limits)
            path = self._path(user, digest, is_whole=False)
            with explained("written", path):
                path.parent.mkdir(mode=0o700, exist_ok=True)
                write_at(path, stored, fresh)
            with self._lock:
                sha = hashlib.sha256() if blob is None else blob.sha
                now = self._now()
                blob = _Blob(stored + len(fresh), now, is_named=False, is_whole=False, noted_at=now, sha=sha)
                self._note((user, digest), blob)
            if sha is not None:
                sha.update(fresh)
            return blob.size

    def finish(self, user: UserName, digest: str, size: int) -> int:
        """`finish_all` of one file; how many bytes of it are stored."""
        return self.finish_all(user, {digest: size})

    def finish_all(self, user: UserName, sizes: Mapping[str, int]) -> int:
        """Make durable what came of these files, and files of those that are whole; how many bytes of them are stored.

        `sizes` says how many bytes each is to have, by its digest. Errors: DIGEST_MISMATCH names one that has another
        digest, and is dropped; all others are stored then, too.
        """
        with ThreadPoolExecutor(max(1, min(SYNCS_AT_ONCE, len(sizes)))) as pool:
            wrong = [each for each in pool.map(lambda each: self._name(user, *each), sizes.items()) if each is not None]
        self._sync_folder(user)
        with self._lock:
            blobs = [blob for each in sizes if (blob := self._blobs.get((user, each))) is not None]
            for blob in blobs:
                blob.is_whole = blob.is_named
        if wrong:
            raise wrong[0]
        return sum(blob.size for blob in blobs)

    def _name(self, user: UserName, digest: str, size: int) -> GpufleetError | None:
        """Sync what came of a file, and give it its name if it is whole; drops it and says why where it is wrong."""
        with self._writer(user, digest):
            blob = self._blobs.get((user, digest))
            if blob is None or blob.is_named:
                return None  # another upload of it has just failed, or has finished it
            path = self._path(user, digest, is_whole=False)
            with explained("synced", path):
                sync_path(path)
                if blob.size < size:
                    return None
                is_right = blob.size == size and digest_of(path, blob.sha) == digest
            if not is_right:
                self._drop((user, digest))
                why = f"{blob.size:,} bytes came, and they are not {digest}"
                return GpufleetError(Reason.DIGEST_MISMATCH, why, metadata={"digest": digest})
            with explained("stored", path), self._lock:
                path.replace(self._path(user, digest, is_whole=True))
                blob.is_named, blob.sha = True, None
            return None

    def _sync_folder(self, user: UserName) -> None:
        """Make the names of a user's files durable, and, the first time, that of the folder they are in."""
        folder = self._folder / user
        with explained("stored", folder):
            if not folder.exists():
                return  # nothing of theirs was ever written
            sync_path(folder)
            if user not in self._synced_users:
                sync_path(self._folder)
                self._synced_users.add(user)

    def open(self, user: UserName, digest: str) -> int | None:
        """A descriptor to read a whole file with; None where it is not stored."""
        path = self._path(user, digest, is_whole=True)
        with explained("read", path):
            try:
                return os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                return None

    def prune(self, unused_s: float, needed: Collection[Key]) -> int:
        """Drop what no job has needed for this long; how many files. What is needed counts as used now."""
        self.keep(key for key in needed if key in self._blobs)
        before = self._now() - unused_s
        dropped = 0
        for key in [key for key, blob in list(self._blobs.items()) if blob.used_at < before]:
            with self._writer(*key), self._lock:
                blob = self._blobs.get(key)
                if blob is not None and blob.used_at < before and key not in needed:
                    self._drop(key)
                    dropped += 1
        return dropped

    @contextmanager
    def _writer(self, user: UserName, digest: str) -> Iterator[None]:
        """One at a time writes a file; two uploads of the same one take turns, piece by piece."""
        with self._turns[hash((user, digest)) % TURNS]:
            yield

    def _note(self, key: Key, blob: _Blob | None) -> None:
        """Know a file, or know no more of it, and count it."""
        used = self._used.setdefault(key[0], _Used())
        before = self._blobs.pop(key, None)
        if before is not None:
            used.bytes, used.files = used.bytes - max(before.size, COUNTED_BYTES_MIN), used.files - 1
        if blob is not None:
            self._blobs[key] = blob
            used.bytes, used.files = used.bytes + max(blob.size, COUNTED_BYTES_MIN), used.files + 1

    def _drop(self, key: Key) -> None:
        with self._lock:
            self._note(key, None)
        for is_whole in (False, True):
            path = self._path(*key, is_whole=is_whole)
            with explained("dropped", path):
                path.unlink(missing_ok=True)

    def _check_quota(self, user: UserName, digest: str, size: int, limits: BlobLimits) -> None:
        with self._lock:
            all_, own = self._used.get(user, _Used()), self._blobs.get((user, digest))
            files, used = all_.files, all_.bytes
        if own is not None:
            files, used = files - 1, used - max(own.size, COUNTED_BYTES_MIN)
        if files >= limits.user_files:
            raise _over(f"{files:,} files of {user} are stored, and {limits.user_files:,} are the most")
        if used + max(size, COUNTED_BYTES_MIN) > limits.user_bytes:
            what = f"{user} has {used:,} bytes of files stored; with {size:,} more"
            raise _over(f"{what} they would be over {limits.user_bytes:,}")

    def _check_disk(self, size: int, limits: BlobLimits) -> None:
        with explained("measured", self._folder):
            free = shutil.disk_usage(self._folder).free
        if size > 0 and free - size < limits.free_bytes:
            raise GpufleetError(
                Reason.STORE_UNAVAILABLE,
                f"the disk of the scheduler's data folder has {free:,} bytes free, of which {limits.free_bytes:,} "
                "are kept for what it stores itself",
                next_step="Free the disk; then try again. The upload goes on where it stands.",
            )

    def _path(self, user: UserName, digest: str, *, is_whole: bool) -> Path:
        return self._folder / user / (digest if is_whole else digest + PART)


def _over(why: str) -> GpufleetError:
    return GpufleetError(
        Reason.QUOTA_EXCEEDED,
        why,
        next_step="Files that no job needs are dropped after [files] keep_unused; an admin can raise the limits there.",
    )


def _blob_of(found: FoundBlob) -> _Blob:
    is_whole, at = found.is_whole, found.used_at
    return _Blob(found.size, at, is_named=is_whole, is_whole=is_whole, noted_at=at)
