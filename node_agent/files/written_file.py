"""A file that somebody writes into the folder of a running job: whole and at once, by the rights of its user."""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress

from gpufleet.v1 import files_pb2

from gpufleet.errors import Reason
from gpufleet.jobs.files import is_digest

from .reached_folder import NotReached, checked_path, folder_below, refusing

FILE_BYTES_MAX = 2**50
HASHED_AT_ONCE = 2**20
PART_PREFIX = ".gpufleet-"
PART_SUFFIX = ".part"


class WrittenFile:
    """A file that is being written: into a part beside its place, which what was cut goes on with."""

    def __init__(self, top: int, asked: files_pb2.WriteFile, owner: int) -> None:
        self._asked = asked
        self._sha = hashlib.sha256()
        path = checked_path(asked.path)
        if not is_digest(asked.digest) or not 0 <= asked.size_bytes <= FILE_BYTES_MAX:
            raise NotReached(Reason.INVALID_ARGUMENT, f"{path!a} has no such size and SHA-256")
        *folders, self._name = path.split("/")
        self._part = f"{PART_PREFIX}{asked.digest[:32]}{PART_SUFFIX}"
        with refusing(path):
            self._folder = folder_below(top, folders)
            try:
                self._descriptor = self._opened(owner)
            except BaseException:
                os.close(self._folder)
                raise

    @property
    def is_whole(self) -> bool:
        """Whether all bytes are there."""
        return self.offset >= self._asked.size_bytes

    def write(self, data: bytes) -> None:
        """Add bytes. NotReached for more than were said, and where the disk is full."""
        if self.offset + len(data) > self._asked.size_bytes:
            raise NotReached(Reason.INVALID_ARGUMENT, f"{self._asked.path!a} came with more bytes than were said")
        with refusing(self._asked.path):
            written = 0
            while written < len(data):
                written += os.pwrite(self._descriptor, data[written:], self.offset + written)
        self._sha.update(data)
        self.offset += len(data)

    def finish(self) -> None:
        """Put it in its place. NotReached where its SHA-256 is another one, or a folder is there."""
        if self._sha.hexdigest() != self._asked.digest:
            with suppress(OSError):
                os.unlink(self._part, dir_fd=self._folder)
            raise NotReached(Reason.DIGEST_MISMATCH, f"other bytes came of {self._asked.path!a} than were said")
        with refusing(self._asked.path):
            os.fchmod(self._descriptor, 0o700 if self._asked.is_executable else 0o600)
            os.fsync(self._descriptor)
            os.rename(self._part, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def close(self) -> None:
        """Let go of it; what came stays, for who goes on."""
        os.close(self._descriptor)
        os.close(self._folder)

    def _opened(self, owner: int) -> int:
        """The part, with what came of it before; anew where the job has made something else of it."""
        self.offset = 0
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with suppress(OSError):
            found = os.open(self._part, flags, dir_fd=self._folder)
            status = os.fstat(found)
            is_ours = stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_uid == owner
            if is_ours and status.st_size <= self._asked.size_bytes:
                while data := os.pread(found, HASHED_AT_ONCE, self.offset):
                    self._sha.update(data)
                    self.offset += len(data)
                return found
            os.close(found)
        with suppress(FileNotFoundError):
            os.unlink(self._part, dir_fd=self._folder)
        return os.open(self._part, flags | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self._folder)
