"""Where `up` keeps things: under --data DIR, else each program's usual folder.

`up --data DIR` makes a context whose token lies in DIR: so it is known what the context in use was started with.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpufleet.config.contexts import read_contexts
from gpufleet.config.paths import contexts_file, log_file, state_dir


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

    @property
    def grpc_listening(self) -> Path:
        """Where `gateway` writes the same of its port for gRPC."""
        return self.gateway / "listening.grpc"

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


def folders_of_context() -> Folders | None:
    """The folders that the context in use speaks of, where an `up --data DIR` of theirs is written down."""
    contexts = read_contexts(contexts_file(os.environ), [])
    name = os.environ.get("GPUCTL_CONTEXT") or contexts.current
    values = contexts.tables.get(name, {})
    token = values.get("token_file")
    if not isinstance(token, str):
        return None
    folders = folders_of(Path(token).expanduser().parent.parent)
    record = read_record(folders.record)
    # The folder may have been used again, or the context by hand: both must speak of one scheduler.
    is_its = record is not None and folders.admin_token == Path(token).expanduser()
    return folders if is_its and record is not None and record.address == values.get("scheduler") else None


def up_command() -> str:
    """What starts again what died of the fleet that the context in use speaks of."""
    folders = folders_of_context()
    return "gpuctl up" if folders is None else f"gpuctl up --data {shlex.quote(str(folders.record))}"


RECORD_FILE = "up.json"
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Started:
    """A process that was started: its pid and start, which together are unique until the machine restarts."""

    name: str
    pid: int
    start_ticks: int

    def is_running(self) -> bool:
        """Whether it still runs. One that ended and was not waited for does not."""
        found = _state_and_start(self.pid)
        return found is not None and found[0] not in "ZX" and found[1] == self.start_ticks

    def stop(self, wait_s: float, *, while_waiting: Callable[[], object] = lambda: None) -> bool:
        """SIGTERM, and SIGKILL when it has not ended in `wait_s`; answers whether it ended by itself."""
        if not self._signal(signal.SIGTERM) or self._ends_within(wait_s, while_waiting):
            return True
        self._signal(signal.SIGKILL)
        self._ends_within(wait_s, while_waiting)
        return False

    def _signal(self, number: signal.Signals) -> bool:
        if not self.is_running():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def _ends_within(self, wait_s: float, while_waiting: Callable[[], object]) -> bool:
        deadline = time.monotonic() + wait_s
        while self.is_running():
            if time.monotonic() >= deadline:
                return False
            while_waiting()
            time.sleep(POLL_S)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Everything that one `up` started. `node` is empty without an agent."""

    address: str
    scheduler_data: str
    agent_data: str
    node: str
    programs: tuple[Started, ...]
    is_stopping: bool = False
    """Whether somebody is stopping them: who watches them need not wonder."""
    by: Started | None = None
    """The `up` that starts them or stays with them; None where they were let go."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What `up` was asked for, to start again as it was what has died; empty of an `up` of before there was this."""

    def running(self) -> list[Started]:
        """The programs that still run."""
        return [program for program in self.programs if program.is_running()]


def started(name: str, pid: int) -> Started:
    """The process with this pid, now; it must be a child of ours, so that the pid is still its own."""
    found = _state_and_start(pid)
    assert found is not None, "a child keeps its pid until it is waited for"
    return Started(name, pid, found[1])


def write_record(folder: Path, record: Record) -> None:
    """Write it, whole or not at all."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = folder / f".{RECORD_FILE}.{os.getpid()}"
    try:
        unfinished.write_text(json.dumps(asdict(record), indent=2) + "\n")
        unfinished.replace(folder / RECORD_FILE)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


def read_record(folder: Path) -> Record | None:
    """The record; None when there is none, or none that can be read: then it names nothing to stop."""
    try:
        values = json.loads((folder / RECORD_FILE).read_text())
        programs = tuple(Started(**each) for each in values.pop("programs"))
        by = values.pop("by", None)
        return Record(programs=programs, by=None if by is None else Started(**by), **values)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def remove_record(folder: Path) -> None:
    """Nothing runs any more."""
    (folder / RECORD_FILE).unlink(missing_ok=True)


def _state_and_start(pid: int) -> tuple[str, int] | None:
    try:
        # The name stands in brackets and may hold brackets and blanks itself.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[19])
