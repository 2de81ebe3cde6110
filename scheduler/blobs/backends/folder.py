"""Whole files in a folder: FOLDER/USER/DIGEST, and notes in FOLDER/.results/JOB/KEY.json.

When a file was last needed is the time of its last change, so that nothing else has to be stored of it. Where parts are
in another folder, on another file system maybe, a copy takes its name once it is on the disk.
"""

import errno
import os
import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpufleet.errors import GpufleetError, Reason
from gpufleet.host.whole_file import replace_file, sync_path

from ...state.ids import UserName
from ..on_disk import FoundBlob, Key, explained, found_in
from .backend import MARKER, NOTE_BYTES_MAX, NOTES, FoundNote, Reader

COPY_BYTES = 2**20
NEW = ".new"
"""What the name of a copy ends with that has not its own name yet."""
NEW_SECONDS_MAX = 86_400.0
"""A copy that has not got its name after this never will: who made it has died."""


class FileReader:
    """A whole file that is open."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path
        self.size = os.fstat(descriptor).st_size

    def read(self, offset: int, size: int) -> bytes:
        """The bytes from there on. Errors: STORE_UNAVAILABLE."""
        with explained("read", self._path):
            return os.pread(self._descriptor, size, offset)

    def close(self) -> None:
        """Once."""
        os.close(self._descriptor)


class FolderBackend:
    """Errors of the disk: STORE_UNAVAILABLE. `is_own`: it is in the data folder, and parts are in it, too."""

    def __init__(self, folder: Path, *, is_own: bool) -> None:
        self.place = str(folder)
        self.is_remote = not is_own
        self._folder = folder
        self._lock = threading.Lock()
        self._synced_users: set[UserName] = set()

    def prepare(self) -> None:
        """Make the data folder's own; another one must be there. Errors: CONFIG_INVALID."""
        if not self.is_remote:
            with explained("opened", self._folder):
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return
        try:
            is_usable = self._folder.is_dir() and os.access(self._folder, os.R_OK | os.W_OK | os.X_OK)
        except OSError as problem:
            raise self._away(problem.strerror or str(problem)) from None
        if not is_usable:
            raise GpufleetError(
                Reason.CONFIG_INVALID,
                f"files.store is {self._folder}, and that is no folder that this account can write",
                next_step=f"Mount it, or make it for the scheduler's account: mkdir -m 700 {self._folder}",
            )

    def files(self) -> Iterator[FoundBlob]:
        """Every file, and in a data folder every part."""
        with self._there("listed", self._folder):
            for found in found_in(self._folder):
                if found.is_whole or not self.is_remote:
                    yield found
            if self.is_remote:
                self._drop_unfinished()

    def find(self, key: Key) -> FoundBlob | None:
        """What is known of a file; None where it is not stored."""
        with self._there("found", self._path(key)):
            try:
                status = self._path(key).stat(follow_symlinks=False)
            except FileNotFoundError:
                self._must_be_there()
                return None
        return FoundBlob(key, status.st_size, status.st_mtime, is_whole=True)

    def put(self, key: Key, part: Path) -> None:
        """Give a synced part its name, or a synced copy of it."""
        path = self._path(key)
        with self._there("stored", path):
            if not self.is_remote:
                part.replace(path)
                return
            self._must_be_there()
            path.parent.mkdir(mode=0o700, exist_ok=True)
            copy = path.with_name(f".{path.name}.{secrets.token_hex(8)}{NEW}")
            try:
                with part.open("rb") as source, os.fdopen(_new(copy), "wb") as made:
                    shutil.copyfileobj(source, made, COPY_BYTES)
                    made.flush()
                    os.fsync(made.fileno())
                copy.replace(path)
            except BaseException:
                with suppress(OSError):
                    copy.unlink(missing_ok=True)
                raise

    def settle(self, key: Key) -> None:
        """Make durable the names in a user's folder, and, the first time, that of the folder itself."""
        folder = self._path(key).parent
        with self._there("stored", folder):
            sync_path(folder)
            with self._lock:
                if key[0] in self._synced_users:
                    return
            sync_path(self._folder)
            with self._lock:
                self._synced_users.add(key[0])

    def open(self, key: Key) -> Reader | None:
        """Read a file; None where it is not stored."""
        path = self._path(key)
        with self._there("read", path):
            try:
                return FileReader(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), path)
            except FileNotFoundError:
                self._must_be_there()
                return None

    def touch(self, key: Key, at: float) -> bool:
        """Note when a file was last needed; whether it is there."""
        with self._there("kept", self._path(key)):
            try:
                os.utime(self._path(key), (at, at))
            except FileNotFoundError:
                self._must_be_there()
                return False
            return True

    def remove(self, key: Key) -> None:
        """Drop a file, if it is there."""
        with self._there("dropped", self._path(key)):
            self._path(key).unlink(missing_ok=True)

    def read_note(self, name: str) -> tuple[bytes, float] | None:
        """A note, and when it was stored."""
        path = self._folder / NOTES / name
        with self._there("read", path):
            try:
                with path.open("rb") as opened:
                    return opened.read(NOTE_BYTES_MAX), os.fstat(opened.fileno()).st_mtime
            except FileNotFoundError:
                self._must_be_there()
                return None

    def write_note(self, name: str, content: bytes) -> None:
        """Store a note, durably."""
        path = self._folder / NOTES / name
        with self._there("noted", path):
            self._must_be_there()
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(path, content)

    def notes(self) -> Iterator[FoundNote]:
        """Every note. A folder that went meanwhile has none."""
        with self._there("listed", self._folder / NOTES):
            try:
                jobs = [each for each in os.scandir(self._folder / NOTES) if each.is_dir(follow_symlinks=False)]
            except FileNotFoundError:
                self._must_be_there()
                return
            for job in jobs:
                for file in Path(job.path).glob("*.json"):
                    with suppress(FileNotFoundError):
                        yield FoundNote(f"{job.name}/{file.name}", file.stat().st_mtime)

    def remove_note(self, name: str) -> None:
        """Drop a note, and its folder with the last one."""
        path = self._folder / NOTES / name
        with self._there("dropped", path):
            path.unlink(missing_ok=True)
            with suppress(OSError):  # others are in it
                path.parent.rmdir()

    def read_marker(self) -> str | None:
        """The fleet whose files are there; None where nobody's are."""
        with self._there("read", self._folder / MARKER):
            try:
                return (self._folder / MARKER).read_text(errors="replace").strip()
            except FileNotFoundError:
                return None

    def write_marker(self, fleet: str) -> None:
        """Say whose files are there."""
        with self._there("written", self._folder / MARKER):
            replace_file(self._folder / MARKER, f"{fleet}\n".encode())

    def close(self) -> None:
        """Nothing is held."""

    def _path(self, key: Key) -> Path:
        return self._folder / key[0] / key[1]

    def _must_be_there(self) -> None:
        """A folder of another machine that is not mounted has nothing in it, which says nothing of what is stored."""
        if self.is_remote and not (self._folder / MARKER).is_file():
            raise self._away("it is not what it was: its file system is not mounted, or it was emptied")

    def _away(self, why: str) -> GpufleetError:
        return GpufleetError(
            Reason.STORE_UNAVAILABLE,
            f"the folder of stored files, {self._folder}, is away: {why}",
            next_step="An admin mounts it again where the scheduler is; nothing is lost meanwhile.",
        )

    @contextmanager
    def _there(self, what: str, path: Path) -> Iterator[None]:
        if not self.is_remote:
            with explained(what, path):
                yield
            return
        try:
            yield
        except OSError as problem:
            if problem.errno in (errno.ENOSPC, errno.EDQUOT):
                raise GpufleetError(
                    Reason.STORE_UNAVAILABLE,
                    f"the folder of stored files, {self._folder}, is full",
                    next_step="Free its disk; then try again. An upload goes on where it stands.",
                ) from problem
            raise self._away(problem.strerror or str(problem)) from problem

    def _drop_unfinished(self) -> None:
        before = time.time() - NEW_SECONDS_MAX
        for path in self._folder.glob(f"*/.*{NEW}"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < before:
                    path.unlink()


def _new(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
