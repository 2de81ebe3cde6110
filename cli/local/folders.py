"""Where `up` keeps things: under --data DIR, else each program's usual folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpufleet.paths import log_file, state_dir


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of one `up`."""

    record: Path
    scheduler: Path
    agent: Path

    @property
    def admin_token(self) -> Path:
        """The token of this account, which the scheduler's first start makes."""
        return self.scheduler / "admin.token"

    @property
    def agent_token(self) -> Path:
        """The token of agents."""
        return self.scheduler / "agent.token"

    @property
    def listening(self) -> Path:
        """Where the scheduler writes HOST:PORT while it serves."""
        return self.scheduler / "listening"

    def log(self, name: str) -> Path:
        """The log of `scheduler` or `agent`."""
        return log_file(self.scheduler if name == "scheduler" else self.agent, name)


def folders_of(data: Path | None) -> Folders:
    """The folders below `data`, or the usual ones."""
    if data is None:
        return Folders(state_dir("up"), state_dir("scheduler"), state_dir("agent"))
    whole = data.expanduser().absolute()
    return Folders(whole, whole / "scheduler", whole / "agent")
