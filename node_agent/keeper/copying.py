"""A copy of what an attempt writes, in a file that its submitter named, beside the spool that nothing is missing in."""

import contextlib
import os
import stat

from ..core.launch import Isolation, Refusal, RefusalReason
from .linux import acting_as

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
"""Appended to, so that another attempt, or another rank, takes nothing away; a named pipe must hold up nobody."""


def open_copy(path: str, isolation: Isolation | None = None) -> int | Refusal:
    """Open the file, which is made where it is not there; a Refusal that blames the job where it cannot be.

    That of an isolated job is opened by the rights of its user alone, in the folders of the machine: its submitter
    names it, and this process is root.
    """
    account = acting_as(isolation.uid, isolation.gid, isolation.groups) if isolation else contextlib.nullcontext()
    try:
        with account:
            fd = os.open(path, _FLAGS, 0o666)
    except OSError as error:
        return _refusal(path, error.strerror or str(error))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return _refusal(path, "not a regular file")
    return fd


def unusable_copy(path: str, isolation: Isolation | None = None) -> Refusal | None:
    """Say what is wrong with the file before anything is started."""
    opened = open_copy(path, isolation) if path else None
    if isinstance(opened, int):
        os.close(opened)
        return None
    return opened


class OutputCopy:
    """The copy of one attempt, both streams as they come. Once it cannot be written it ends there, and says so once."""

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd: int | None = fd

    def write(self, data: memoryview) -> bytes:
        """Append; answers a line for the attempt's own output when the copy has just ended for good."""
        try:
            while data and self._fd is not None:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            self.close()
            why = f"{self._path}: {error.strerror}"
            return f"\ngpufleet: the copy of the output ends here ({why}); gpuctl logs has all of it\n".encode()
        return b""

    def close(self) -> None:
        """No more comes."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _refusal(path: str, why: str) -> Refusal:
    return Refusal(RefusalReason.OUTPUT_FILE_UNUSABLE, f"output file {path[:500]!r}: {why}")
