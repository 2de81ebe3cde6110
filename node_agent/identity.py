"""What an agent keeps about itself: who it is, how often it started, and that it is the only one here."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gpufleet.errors import GpufleetError, Reason

LOCK_FILE = "agent.lock"
IDENTITY_FILE = "agent.json"
IDENTITY_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """`agent_id` is random and stays; `incarnation` rises with each start; `highest_term` ever seen."""

    agent_id: str
    incarnation: int
    highest_term: int


class DataFolder:
    """The agent's data folder, held by this process alone until `close`."""

    def __init__(self, path: Path) -> None:
        """Take the folder, making it where it is not; a second agent is refused with the first one's pid."""
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
                f"an agent with pid {holder} already uses the data folder {path}",
                next_step="Stop that agent, or give this one its own folder with --data DIR.",
                metadata={"pid": holder},
            ) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def next_identity(self) -> Identity:
        """The identity of this start: the next incarnation of the stored one, on the disk before its use."""
        stored = self._read() or Identity(agent_id=secrets.token_hex(16), incarnation=0, highest_term=0)
        identity = replace(stored, incarnation=stored.incarnation + 1)
        self.store(identity)
        return identity

    def store(self, identity: Identity) -> None:
        """Write the identity, whole or not at all."""
        try:
            self._write(identity)
        except OSError as problem:
            raise GpufleetError(
                Reason.STORE_UNAVAILABLE,
                f"{self.path / IDENTITY_FILE} cannot be written: {problem.strerror}",
                next_step="Free the disk of the agent's data folder.",
            ) from None

    def _write(self, identity: Identity) -> None:
        unfinished = self.path / f".{IDENTITY_FILE}"
        with unfinished.open("w") as file:
            json.dump(asdict(identity), file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self.path / IDENTITY_FILE)
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        """Let the next agent have the folder."""
        os.close(self._lock)

    def _read(self) -> Identity | None:
        path = self.path / IDENTITY_FILE
        try:
            with path.open("rb") as file:
                fields = json.loads(file.read(IDENTITY_BYTES_MAX))
            return Identity(
                agent_id=str(fields["agent_id"]),
                incarnation=int(fields["incarnation"]),
                highest_term=int(fields["highest_term"]),
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise GpufleetError(
                Reason.CONFIG_INVALID,
                f"the agent's own file {path} cannot be read: {problem}",
                next_step="Restore the file; without it, delete the folder once no job of this node runs.",
            ) from None
