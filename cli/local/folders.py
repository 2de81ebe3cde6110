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
    gateway: Path

    @property
    def admin_token(self) -> Path:
        """The token of this account, which the scheduler's first start makes."""
        return self.scheduler / "admin.token"

    @property
    def agent_token(self) -> Path:
        """The token of agents."""
        return self.scheduler / "agent.token"

    @property
    def gateway_token(self) -> Path:
        """The token of gateways."""
        return self.scheduler / "gateway.token"

    def listening(self, name: str) -> Path:
        """Where `scheduler` or `gateway` writes HOST:PORT while it serves."""
        return self._of(name) / "listening"

    def log(self, name: str) -> Path:
        """The log of `scheduler`, `agent` or `gateway`."""
        return log_file(self._of(name), name)

    def _of(self, name: str) -> Path:
        return {"scheduler": self.scheduler, "agent": self.agent, "gateway": self.gateway}[name]


def folders_of(data: Path | None) -> Folders:
    """The folders below `data`, or the usual ones."""
    if data is None:
        return Folders(state_dir("up"), state_dir("scheduler"), state_dir("agent"), state_dir("gateway"))
    whole = data.expanduser().absolute()
    return Folders(whole, whole / "scheduler", whole / "agent", whole / "gateway")
