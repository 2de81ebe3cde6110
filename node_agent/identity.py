"""What an agent keeps about itself: who it is, how often it started, and that it is the only one here."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gpufleet.errors import GpufleetError, Reason
from gpufleet.host.locked_folder import lock_folder
from gpufleet.host.whole_file import replace_file

IDENTITY_FILE = "agent.json"
IDENTITY_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """`agent_id` is random and stays; `incarnation` rises with each start; `highest_term` ever seen of `store_id`.

    `is_from_before`: the agent was here before it could be chosen as whom jobs run, and shares its account as it did.
    """

    agent_id: str
    incarnation: int
    highest_term: int
    is_from_before: bool = False
    store_id: str = ""


class DataFolder:
    """The agent's data folder, held by this process alone until `close`."""

    def __init__(self, path: Path) -> None:
        """Take the folder, making it where it is not; a second agent is refused with the first one's pid."""
        self.path = path
        self._lock = lock_folder(path, "agent")

    @property
    def is_from_before(self) -> bool:
        """As of `Identity`; false of a folder that is new."""
        stored = self._read()
        return stored is not None and stored.is_from_before

    def next_identity(self) -> Identity:
        """The identity of this start: the next incarnation of the stored one, on the disk before its use."""
        stored = self._read() or Identity(agent_id=secrets.token_hex(16), incarnation=0, highest_term=0)
        identity = replace(stored, incarnation=stored.incarnation + 1)
        self.store(identity)
        return identity

    def store(self, identity: Identity) -> None:
        """Write the identity, whole or not at all."""
        try:
            replace_file(self.path / IDENTITY_FILE, json.dumps(asdict(identity)).encode())
        except OSError as problem:
            raise GpufleetError(
                Reason.STORE_UNAVAILABLE,
                f"{self.path / IDENTITY_FILE} cannot be written: {problem.strerror}",
                next_step="Free the disk of the agent's data folder.",
            ) from None

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
                is_from_before=bool(fields.get("is_from_before", True)),
                store_id=str(fields.get("store_id", "")),
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise GpufleetError(
                Reason.CONFIG_INVALID,
                f"the agent's own file {path} cannot be read: {problem}",
                next_step="Restore the file; without it, delete the folder once no job of this node runs.",
            ) from None
