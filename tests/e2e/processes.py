"""The real programs as processes: started as an installation starts them, killed as an operator or a crash would."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from node_agent.__main__ import KEEPER_FOLDER
from node_agent.keeper.client import Keepers
from node_agent.keeper.supervisor import NAME as SUPERVISOR_NAME
from node_agent.machine import installed_version
from tests.ports import kept_port

DEADLINE_SECONDS = 120.0
"""How long anything may take that a test waits for; far more than it takes, and never a measure of speed."""

POLL_SECONDS = 0.01
LOG_TAIL_CHARS = 6_000


async def until(what: str, condition: Callable[[], object] | Callable[[], Awaitable[object]]) -> None:
    """Return once the condition holds; fail the test when it never does."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        answer = condition()
        if isinstance(answer, Awaitable):
            answer = await answer
        if answer:
            return
        assert time.monotonic() < deadline, f"it never came to this: {what}"
        await asyncio.sleep(POLL_SECONDS)


class Program:
    """One program with its data folder: `start`, `kill` or `stop`, and `start` again on the same folder."""

    def __init__(
        self, name: str, data: Path, module: str, flags: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self.data = data
        self.flags = [*flags, "--data", str(data)]
        self.log = data.with_name(f"{data.name}.log")
        self.environment = dict(environment)
        self.inside: Sequence[str] = ()
        """What its command line begins with: how to get into the place that it runs in, another network for one."""
        self.program: Sequence[str] = ("-P", "-m", module)
        """What the interpreter is told to run."""
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} does not run"
        return self.process.pid

    def spawn(self, *more_flags: str) -> None:
        """Start the process and wait for nothing."""
        assert self.process is None, f"{self.name} runs already"
        self.process = self._popen(*self.flags, *more_flags)

    def _popen(self, *flags: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*self.inside, sys.executable, *self.program, *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=clean_environment(self.log.parent, self.environment),
                cwd=self.log.parent,
            )

    def kill(self) -> None:
        """SIGKILL: no word to anybody."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    async def stop(self) -> int:
        """SIGTERM, and its exit code once it has left."""
        self.signal(signal.SIGTERM)
        return await self.ended()

    async def ended(self) -> int:
        """Its exit code once it has left by itself."""
        process = self.process
        assert process is not None, f"{self.name} does not run"
        await until(f"{self.name} has left", lambda: process.poll() is not None)
        self.process = None
        return process.returncode

    def signal(self, number: int) -> None:
        """Send it a signal."""
        assert self.process is not None, f"{self.name} does not run"
        self.process.send_signal(number)

    def log_text(self) -> str:
        """Everything that it ever wrote to stderr."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def must_run(self) -> bool:
        """Fail the test when the process has left."""
        assert self.process is not None
        assert self.process.poll() is None, f"{self.name} left with {self.process.returncode}:\n{self.tail()}"
        return True

    def tail(self) -> str:
        """The end of its log."""
        return tail_of(self.log)


class SchedulerProcess(Program):
    """A scheduler; it keeps its port over restarts."""

    def __init__(self, data: Path, flags: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> None:
        super().__init__("scheduler", data, "gpufleet.scheduler", flags, environment or {})
        self.address = ""

    async def start(self) -> None:
        """Start it, and return once it serves."""
        listening = self.data / "listening"
        listening.unlink(missing_ok=True)
        self.spawn("--port", self.address.rpartition(":")[2] or str(kept_port()))
        await until("the scheduler serves", lambda: self.must_run() and listening.exists())
        self.address = listening.read_text().strip()

    def token(self, role: str) -> str:
        """One of the tokens of its first start: admin, agent or gateway."""
        return (self.data / f"{role}.token").read_text().strip()


class AgentProcess(Program):
    """A node agent with its keeper and jobs, which outlive it until `end_keeper`."""

    def __init__(
        self,
        scheduler: SchedulerProcess,
        data: Path,
        node: str,
        flags: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        token_file = scheduler.data / "agent.token"
        every = ("--scheduler", scheduler.address, "--node-id", node, "--token-file", str(token_file))
        # Else what it does with users' jobs would follow from who runs the tests.
        whole = {
            "GPUCTL_AGENT_ISOLATION_USERS": "shared",
            "GPUCTL_AGENT_ISOLATION_UID_CLAIMS": str(data.parent / "uid-claims"),
            **(environment or {}),
        }
        super().__init__(f"agent {node}", data, "gpufleet.node_agent", [*every, *flags], whole)
        self.node = node
        self._log_begin = 0
        """Where in its log the newest start is told of."""

    def spawn(self, *more_flags: str) -> None:
        self._log_begin = self.log.stat().st_size if self.log.exists() else 0
        super().spawn(*more_flags)

    def has_registered(self) -> bool:
        """Whether the scheduler has taken this start of it up, and not only one before."""
        with self.log.open("rb") as log:
            log.seek(self._log_begin)
            return b"registered with the scheduler" in log.read()

    def keeper_pids(self, *, with_supervisors: bool = False) -> list[int]:
        """The live keeper processes of this data folder.

        What a keeper has just forked looks like one until it has a name or a program of its own: it is known by its
        parent.
        """
        found: dict[int, int] = {}
        for path in Path("/proc").iterdir():
            if not path.name.isdecimal():
                continue
            try:
                command = (path / "cmdline").read_bytes().split(b"\0")
                state, parent = (path / "stat").read_text().rpartition(")")[2].split()[:2]
                is_supervisor = (path / "comm").read_text().strip() == SUPERVISOR_NAME
            except OSError:
                continue
            is_keeper = any(word.endswith(b"node_agent.keeper") for word in command)
            if is_supervisor and not with_supervisors:
                continue
            if is_keeper and state not in "ZX" and any(os.fsencode(self.data) in word for word in command):
                found[int(path.name)] = int(parent)
        return [pid for pid, parent in found.items() if with_supervisors or parent not in found]

    async def end_keeper(self) -> None:
        """End the keeper and whatever runs; the agent must be gone."""
        if not self.inside:
            await end_keepers(self.data)
            return
        process = self._popen("stop-keeper", "--data", str(self.data), "--kill")
        await until(f"the keeper of {self.node} has left", lambda: process.poll() is not None)
        assert process.returncode == 0, self.tail()


async def end_keepers(agent_data: Path) -> None:
    """End the keepers of an agent's folder with what they hold: `stop-keeper --kill`, without a program for it.

    In a loop of its own: the threads that it takes end with it, and the caller's loop may outlive a test.
    """
    folder, command = agent_data / KEEPER_FOLDER, (sys.executable, "-P", "-m", "gpufleet.node_agent.keeper")

    async def end() -> None:
        async with await Keepers.open(folder, build=installed_version(), command=command) as keepers:
            refusal = await keepers.shutdown(kill=True)
        assert refusal is None, refusal

    with ThreadPoolExecutor(1) as pool:
        await asyncio.wrap_future(pool.submit(asyncio.run, end()))


def tail_of(log: Path) -> str:
    """The end of a log file."""
    return log.read_text(errors="replace")[-LOG_TAIL_CHARS:] if log.exists() else "  (there is none)"


def clean_environment(home: Path, more: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without what would configure the programs, and with a home of the test's own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GPUCTL_", "OTEL_"))}
    kept["XDG_CONFIG_HOME"] = str(home / "config")
    kept["XDG_STATE_HOME"] = str(home / "state")
    return kept | dict(more)
