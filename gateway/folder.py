"""The gateway's data folder: its log, and where it listens. One gateway has it at a time."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from gpufleet.host.locked_folder import lock_folder
from gpufleet.net.addresses import Address

LISTENING_FILE = "listening"
"""HOST:PORT, while it serves."""

GRPC_LISTENING_FILE = "listening.grpc"
"""The same of its port for gRPC, where it has one."""


class DataFolder:
    """Held by this process alone until `close`. Raises ALREADY_RUNNING, FILE_NOT_FOUND."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = lock_folder(path, "gateway")

    def tell_listening(self, address: Address, name: str = LISTENING_FILE) -> None:
        """Write down where the gateway listens, whole or not at all."""
        listening = self.path / name
        unfinished = listening.with_name(f".{listening.name}.new")
        unfinished.write_text(f"{address}\n")
        unfinished.replace(listening)

    def close(self) -> None:
        """Leave it to the next one."""
        for name in (LISTENING_FILE, GRPC_LISTENING_FILE):
            with suppress(OSError):
                (self.path / name).unlink(missing_ok=True)
        os.close(self._lock)
