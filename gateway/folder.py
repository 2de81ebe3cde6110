"""The gateway's data folder: its log, and where it listens. One gateway has it at a time."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from gpufleet.addresses import Address
from gpufleet.errors import GpufleetError, Reason

LOCK_FILE = "gateway.lock"
LISTENING_FILE = "listening"
"""HOST:PORT, while it serves."""


class DataFolder:
    """Held by this process alone until `close`. Raises ALREADY_RUNNING, FILE_NOT_FOUND."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as problem:
            raise GpufleetError(
                Reason.FILE_NOT_FOUND,
                f"the data folder {path} cannot be used: {problem.strerror}",
                next_step="Give a folder that this account can write, with --data DIR.",
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._lock)
            raise GpufleetError(
                Reason.ALREADY_RUNNING,
                f"a gateway with pid {holder} already uses the data folder {path}",
                next_step="Stop that gateway, or give this one its own folder with --data DIR.",
                metadata={"pid": holder},
            ) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def tell_listening(self, address: Address) -> None:
        """Write down where the gateway listens, whole or not at all."""
        listening = self.path / LISTENING_FILE
        unfinished = listening.with_name(f".{listening.name}.new")
        unfinished.write_text(f"{address}\n")
        unfinished.replace(listening)

    def close(self) -> None:
        """Leave it to the next one."""
        with suppress(OSError):
            (self.path / LISTENING_FILE).unlink(missing_ok=True)
        os.close(self._lock)
