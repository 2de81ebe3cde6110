"""A PostgreSQL on a machine with a network of its own, which is killed and comes back."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from tests.several_nodes.network import LAN, Machine
from tests.store.postgres_server import PostgresServer


class StoreMachine(PostgresServer):
    """One that the schedulers reach over their network."""

    def __init__(self, programs: Path, folder: Path, machine: Machine) -> None:
        super().__init__(programs, folder, inside=machine.inside, host=machine.address)
        self._machine = machine
        with (folder / "data" / "pg_hba.conf").open("a") as access:
            access.write(f"host all all {LAN}.0/24 trust\n")

    def network_url(self, database: str) -> str:
        """The store as its schedulers name it."""
        return f"postgresql://gpufleet@{self._machine.address}:{self.port}/{database}"

    def kill(self) -> None:
        """SIGKILL for the server and each of its children: nothing is flushed, and nobody is told."""
        assert self._process is not None
        for pid in self._machine.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)
