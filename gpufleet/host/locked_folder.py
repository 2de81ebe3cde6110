"""A program's data folder, which one process has at a time."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import GpufleetError, Reason

PID_BYTES_MAX = 32


def lock_folder(path: Path, program: str) -> int:
    """Take the folder for `program`, such as `agent`, making it where it is not; answers the lock, a file descriptor.

    The lock ends when that is closed, or with the process. Raises ALREADY_RUNNING with the pid of who has the folder,
    and FILE_NOT_FOUND where it cannot be used or its file system has no locks. Needs POSIX.
    """
    import fcntl

    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path / f"{program}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as problem:
        raise GpufleetError(
            Reason.FILE_NOT_FOUND,
            f"the data folder {path} cannot be used: {problem.strerror}",
            next_step="Give a folder that this account can write, with --data DIR.",
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, PID_BYTES_MAX, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(lock)
        raise GpufleetError(
            Reason.ALREADY_RUNNING,
            f"another {program} with pid {holder} already uses the data folder {path}",
            next_step=f"Stop that {program}, or give this one its own folder with --data DIR.",
            metadata={"pid": holder},
        ) from None
    except OSError as problem:
        os.close(lock)
        raise GpufleetError(
            Reason.FILE_NOT_FOUND,
            f"the data folder {path} cannot be locked: {problem.strerror}",
            next_step="Give a folder on a file system that has locks, with --data DIR.",
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock
